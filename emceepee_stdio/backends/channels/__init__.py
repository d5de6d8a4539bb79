"""Channels: how a server is reached, as a child process or over HTTP."""
