"""The official conformance suite, with emceepee as the client and as the server."""
