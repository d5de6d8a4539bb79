"""JSON-RPC over bytes, for both sides of stdio: codec, framing, correlation, pipes and children.

The core (`codec`, `lines`, `peer`) is synchronous and reads no clock; `caller` is the thin async
layer on it; `pipes`, `process` and `watchdog` touch the operating system.
"""
