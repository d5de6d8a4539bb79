"""The clients of this machine: emceepee put in, taken out, and their servers taken over."""
