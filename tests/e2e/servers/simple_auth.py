"""The example `simple-auth` of the mcp SDK: somebody else's authorization server and its server.

Usage: simple_auth.py SOURCE auth_server|server OPTION…

It reads its settings with a package that is not needed for anything else: here they are defaults.
"""

import importlib
import sys
from types import ModuleType

from pydantic import BaseModel

settings = ModuleType("pydantic_settings")
settings.__dict__.update(BaseSettings=BaseModel, SettingsConfigDict=dict)
sys.modules["pydantic_settings"] = settings

sys.path.insert(0, sys.argv.pop(1))
importlib.import_module(f"mcp_simple_auth.{sys.argv.pop(1)}").main()
