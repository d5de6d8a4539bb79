"""The journals of all processes in one directory, read as one."""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from emceepee_stdio.journal.merged_reader import MergedReader
from emceepee_stdio.journal.records import Record

__all__ = ["JournalReader", "Line"]

_NAME = re.compile(r"(emceepee-.+\.jsonl)(?:\.\d+)?", re.ASCII)

_decode = msgspec.json.Decoder(Record).decode


@dataclass(frozen=True, slots=True)
class Line:
    """One line as it is in the file, and what it says; `record` is None for what is not ours."""

    raw: bytes
    at: float
    record: Record | None

    @classmethod
    def of(cls, raw: bytes, otherwise: float) -> "Line":
        """A line without a time of its own has that of its neighbour."""
        try:
            record = _decode(raw)
            at = datetime.fromisoformat(record.timestamp).timestamp()
        except (ValueError, OverflowError, RecursionError):
            return cls(raw, otherwise, None)
        return cls(raw, at, record)


class JournalReader(MergedReader[Line]):
    """Begins at the end of every journal; `rewind` goes back, `read` goes on."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, _NAME, Line.of)
