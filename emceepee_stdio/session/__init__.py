"""The one session of this process: its state, its servers, and what connects them."""
