"""Backends: one MCP server each, supervised, whatever the channel and the protocol era."""
