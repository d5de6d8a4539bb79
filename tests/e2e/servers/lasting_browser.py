"""A browser for tests that stays, as a real one does: its first process ends, and another goes on.

Usage: lasting_browser.py PIDFILE URL
"""

import os
import sys
import time
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        Path(sys.argv[1]).write_text(str(os.getpid()))
        build_opener(ProxyHandler({})).open(sys.argv[2], timeout=60).read()
        time.sleep(600)
    os._exit(0)
