"""The records of requests of all processes in one directory, read as one, by when each ended."""

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from emceepee_stdio.journal.merged_reader import MergedReader
from emceepee_stdio.trace.request_records import DroppedRecords, RequestRecord

__all__ = ["RequestLine", "RequestReader"]

_NAME = re.compile(r"(requests-.+\.jsonl)(?:\.\d+)?", re.ASCII)

_decode_record = msgspec.json.Decoder(RequestRecord).decode
_decode_dropped = msgspec.json.Decoder(DroppedRecords).decode


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One line as it is in the file, and what it says; `record` is None for what is not ours."""

    raw: bytes
    at: float
    record: RequestRecord | DroppedRecords | None

    @classmethod
    def of(cls, raw: bytes, otherwise: float) -> "RequestLine":
        try:
            record = _decode_record(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return cls._of_dropped(raw, otherwise)
        return cls(raw, record.end_ms / 1000, record)

    @classmethod
    def _of_dropped(cls, raw: bytes, otherwise: float) -> "RequestLine":
        try:
            dropped = _decode_dropped(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return cls(raw, otherwise, None)
        return cls(raw, dropped.start_ms / 1000, dropped)


class RequestReader(MergedReader[RequestLine]):
    """Begins at the end of every file; `rewind` goes back, `read` goes on."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, _NAME, RequestLine.of)
