"""The one session of this process: its state, its backends, and what connects the two."""
