"""JSON-RPC over bytes, for both sides of stdio: codec, framing, correlation, pipes and children.

The core (`codec`, `framing`, `peer`) is synchronous and reads no clock; `pipes`, `process` and
`process_guard` touch the operating system.
"""
