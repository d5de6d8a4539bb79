"""A long random mix of calls and faults against the real proxy, judged by a model.

`python -m tests.faults --seed N --steps M` runs and replays, `--minutes 30` is the soak.
"""
