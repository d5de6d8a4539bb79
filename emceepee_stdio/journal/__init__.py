"""The journal: JSON lines of what the proxy did, without secrets.

Owns the files and their rotation, and the table of known events. It never blocks and never fails
its caller. Reading is `journal_reader`, which a proxy never needs and therefore is not loaded here.
"""

from emceepee_stdio.journal.journal_events import JournalEvent, Level
from emceepee_stdio.journal.journal_files import default_directory
from emceepee_stdio.journal.writer import Journal, JournalStatistics, write_to_stderr
from emceepee_stdio.redaction.known_secrets import MOST_GIVEN, Secrets, given_secrets
from emceepee_stdio.redaction.redact import (
    redact,
    redact_argv,
    redact_env,
    redact_text,
    redact_url,
)
from emceepee_stdio.redaction.secret_patterns import PrivateKeyLines

__all__ = [
    "MOST_GIVEN",
    "Journal",
    "JournalEvent",
    "JournalStatistics",
    "Level",
    "PrivateKeyLines",
    "Secrets",
    "default_directory",
    "given_secrets",
    "redact",
    "redact_argv",
    "redact_env",
    "redact_text",
    "redact_url",
    "write_to_stderr",
]
