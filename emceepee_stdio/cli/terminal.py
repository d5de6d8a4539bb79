"""All that people read: results on stdout, everything else on stderr.

Nothing else in the package writes to either while a command runs.
"""

import json
import sys

__all__ = ["Terminal"]


class Terminal:
    """The two streams of a command."""

    def line(self, text: str = "") -> None:
        """One line of the result."""
        sys.stdout.write(f"{text}\n")

    def data(self, value: object) -> None:
        """A result for programs: JSON, indented."""
        self.line(json.dumps(value, indent=2, ensure_ascii=False))

    def note(self, text: str) -> None:
        """A word beside the result: a warning, an error, a sign of life."""
        sys.stderr.write(f"{text}\n")
