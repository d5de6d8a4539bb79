"""What the client meets: the protocol of a static surface, on stdin and stdout.

`protocol` and `hello` load nothing but the standard library, so that a client is greeted before the
rest of the proxy is there.
"""
