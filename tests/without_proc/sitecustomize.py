"""A Linux as if it were macOS: it says so, and refuses what Linux alone has.

On PYTHONPATH, with /proc hidden (`make test-without-proc`), processes of ours and of the tests take
the way of POSIX without /proc. The kernel and its limits are still those of Linux.
"""

import os
import sys
import sysconfig

# Where the facts of this Python stand depends on the name of the system.
os.environ["_PYTHON_SYSCONFIGDATA_NAME"] = sysconfig._get_sysconfigdata_name()
sys.platform = "darwin"
del os.pidfd_open
