"""Backends: one supervised MCP server each, over any channel and in either protocol era."""
