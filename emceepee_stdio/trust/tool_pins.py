"""Tools as they were when they were first seen, and how they differ from that now.

A server that was trusted for what it said may say something else later. All that it says of each
tool is compared; what a person has not seen is not what they agreed to.
"""

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from emceepee_stdio.trust.approval_request import shown

__all__ = ["Changes", "Pinned", "compare", "pin", "pin_all"]

# What a person reads first; whatever else a server says of a tool comes after it.
_FIRST = ("title", "description", "inputSchema", "outputSchema", "annotations")
_MAX_TEXT_CHARS = 8_000  # of a larger tool only the hash is kept: a change is told, not shown
_MAX_TOOLS = 2_000  # of one server, to bound the file; tools beyond that are not pinned


class Pinned(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tool as it was seen: its hash, and what of it a person may want to compare."""

    digest: str
    text: str = ""


class Changes(Struct, frozen=True, kw_only=True):
    """What is different now: of each changed tool a readable diff, of each added one its text."""

    changed: dict[str, str] = field(default_factory=dict[str, str])
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    texts: dict[str, str] = field(default_factory=dict[str, str])

    def __bool__(self) -> bool:
        return bool(self.changed or self.added or self.removed)

    def text(self) -> str:
        """All of it for a person to read."""
        parts = [f"Changed: {shown(tool)}\n{diff}" for tool, diff in self.changed.items()]
        for tool in self.added:
            text = self.texts.get(tool) or "(too large to be shown)"
            parts.append(f"Added: {shown(tool)}\n+{text.replace(chr(10), chr(10) + '+')}")
        if self.removed:
            parts.append(f"Removed: {', '.join(map(shown, self.removed))}")
        return "\n".join(parts)


def pin(tool: Mapping[str, object]) -> Pinned:
    others = sorted(key for key in tool if key not in {"name", *_FIRST})
    parts = {part: tool[part] for part in (*_FIRST, *others) if tool.get(part) is not None}
    exact = json.dumps([tool.get("name"), parts], sort_keys=True, separators=(",", ":"))
    text = _readable(parts)
    return Pinned(
        digest=hashlib.sha256(exact.encode("utf-8", "surrogatepass")).hexdigest(),
        text=text if len(text) <= _MAX_TEXT_CHARS else "",
    )


def pin_all(tools: Iterable[Mapping[str, object]]) -> dict[str, Pinned]:
    pinned: dict[str, Pinned] = {}
    for tool in tools:
        if len(pinned) < _MAX_TOOLS:
            pinned[str(tool.get("name"))] = pin(tool)
    return pinned


def compare(before: Mapping[str, Pinned], now: Mapping[str, Pinned]) -> Changes:
    return Changes(
        changed={
            tool: _diff(before[tool].text, pinned.text)
            for tool, pinned in now.items()
            if tool in before and before[tool].digest != pinned.digest
        },
        added=tuple(tool for tool in now if tool not in before),
        removed=tuple(tool for tool in before if tool not in now),
        texts={tool: pinned.text for tool, pinned in now.items() if tool not in before},
    )


def _diff(before: str, now: str) -> str:
    if not before or not now:
        return "(too large to be kept, so that the change cannot be shown)"
    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), n=1, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def _readable(parts: Mapping[str, object]) -> str:
    """One line for each thing that a person would notice."""
    lines: list[str] = []
    for part, value in parts.items():
        if isinstance(value, str):
            lines += [f"{part}: {line}" for line in value.split("\n")]
        else:
            dumped = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
            lines += [f"{part}: {line}" for line in dumped.split("\n")]
    return "\n".join(line if line.isprintable() else ascii(line)[1:-1] for line in lines)
