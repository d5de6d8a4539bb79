"""JSON-RPC over bytes: codec, framing, correlation, pipes and child processes.

The core (`codec`, `framing`, `peer`) is synchronous and reads no clock; `pipes`, `process` and
`process_guard` touch the operating system.
"""
