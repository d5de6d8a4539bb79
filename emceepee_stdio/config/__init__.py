"""The configuration: the servers, and the settings of the proxy.

Owns the file's keys, defaults, bounds and spellings. A mistake in one entry costs that entry, a
mistake in one setting falls back to its default; neither ever shows a value that may be a secret.
"""

from emceepee_stdio.config.load import default_path, load_file, load_text
from emceepee_stdio.config.server import RestartOverrides
from emceepee_stdio.config.settings import (
    BrokenServer,
    Config,
    FixedValues,
    Limits,
    Logging,
    Policy,
    PolicyMode,
    QuestionsMode,
    RestartConfig,
    ServerConfig,
    Settings,
    Timeouts,
    config_schema,
)

__all__ = [
    "BrokenServer",
    "Config",
    "FixedValues",
    "Limits",
    "Logging",
    "Policy",
    "PolicyMode",
    "QuestionsMode",
    "RestartConfig",
    "RestartOverrides",
    "ServerConfig",
    "Settings",
    "Timeouts",
    "config_schema",
    "default_path",
    "load_file",
    "load_text",
]
