"""A browser for tests that stays, as a real one does: its first process ends, and another goes on.

Usage: lasting_browser.py PIDFILE URL
"""

import os
import subprocess
import sys
import time
from pathlib import Path

BROWSER = Path(__file__).with_name("browser.py")

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        Path(sys.argv[1]).write_text(str(os.getpid()))
        subprocess.run([sys.executable, BROWSER, sys.argv[2]], check=True)
        time.sleep(600)
    os._exit(0)
