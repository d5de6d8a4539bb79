"""One line of the journal: as JSON for the file, as a sentence for stderr.

A record is made of redacted data only, so nothing that is written from one can hold a secret.
"""

import re
from collections.abc import Mapping
from typing import cast

import msgspec

from emceepee_stdio.journal.redact import CUT, redact
from emceepee_stdio.visible_text import on_one_line

__all__ = ["MAX_LINE_BYTES", "MAX_STDERR_CHARS", "MAX_STRING_CHARS", "Record"]

MAX_LINE_BYTES = 64 * 1024  # so that no single message fills a journal
MAX_STRING_CHARS = 16 * 1024  # so that a long text leaves room for the other fields
MAX_STDERR_CHARS = 500  # a few lines of a terminal; the file has the rest

_MAX_NAME_CHARS = 200  # of events, servers and ids; more than one of these is data
# As a JSON string inside JSON this can double; the rest of the line fits beside it.
_HEAD_BYTES = 28 * 1024

_PLAIN_WORD = re.compile(r"[^\s\"'=\\]+")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened, when, and to whom. The order of the fields is their order in the file."""

    timestamp: str
    level: str
    event: str
    session: str
    server: str | None = None
    request_id: str | int | None = None
    data: dict[str, object]

    @classmethod
    def of(
        cls,
        data: Mapping[str, object],
        *,
        timestamp: str,
        level: str,
        event: str,
        session: str,
        server: str | None = None,
        request_id: str | int | None = None,
    ) -> "Record":
        """A record without secrets, bounded, whatever the data is."""
        return cls(
            timestamp=timestamp,
            level=level,
            event=_name(event),
            session=session,
            server=None if server is None else _name(server),
            request_id=request_id if isinstance(request_id, int | None) else _name(request_id),
            data=cast(
                "dict[str, object]",
                redact(data, max_chars=MAX_STRING_CHARS, max_total=MAX_LINE_BYTES),
            ),
        )

    def as_json(self) -> bytes:
        line = msgspec.json.encode(self)
        if len(line) >= MAX_LINE_BYTES:
            data = msgspec.json.encode(self.data)
            head = data[:_HEAD_BYTES].decode("utf-8", "ignore")
            line = msgspec.json.encode(
                msgspec.structs.replace(self, data={CUT: head, "bytes": len(data)})
            )
        return line + b"\n"

    def as_text(self) -> bytes:
        """One readable line, safe to show on a terminal."""
        fields = {"server": self.server, "request_id": self.request_id, **self.data}
        words = [f"emceepee: {self.level}: {self.event}"]
        words += [f"{name}={_word(value)}" for name, value in fields.items() if value is not None]
        text = on_one_line(" ".join(words)[: MAX_STDERR_CHARS + 1])
        if len(text) > MAX_STDERR_CHARS:
            text = text[: MAX_STDERR_CHARS - 1] + "…"
        return text.encode() + b"\n"


def _name(text: str) -> str:
    return str(redact(text, max_chars=_MAX_NAME_CHARS))


def _word(value: object) -> str:
    if isinstance(value, str) and _PLAIN_WORD.fullmatch(value):
        return value
    return msgspec.json.encode(value).decode()
