"""The state of a session: pure, synchronous, without a clock.

Every change takes `now`; every class with deadlines has `next_deadline()` and `expire(now=…)`; what
happened comes back as a value. Nothing here waits, writes or knows who is listening.
"""
