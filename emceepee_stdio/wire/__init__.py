"""JSON-RPC over bytes: codec, framing, correlation, pipes and child processes.

The core (`codec`, `framing`, `peer`) is synchronous and reads no clock; `pipes`, `process` and
`process_guard` touch the operating system, and `system` is what differs between systems.
"""

import sys

if sys.platform == "win32":
    from emceepee_stdio.wire import windows as system
else:
    from emceepee_stdio.wire import posix as system

__all__ = ["system"]
