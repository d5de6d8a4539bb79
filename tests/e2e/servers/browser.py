"""A browser for tests: opens the address that it is given, and follows where it leads.

Usage: browser.py URL
"""

import sys
from urllib.request import ProxyHandler, build_opener

build_opener(ProxyHandler({})).open(sys.argv[1], timeout=60).read()
