"""How a backend is reached: a child process on our own wire, or HTTP."""
