"""The client's side: MCP on stdin and stdout, tool calls, and questions to the person.

`protocol` and `hello` load nothing but the standard library, so that a client is greeted before the
rest of the proxy is there.
"""
