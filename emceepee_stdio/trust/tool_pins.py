"""Pins: tools and instructions as first seen, how they differ now, and what of it can be shown.

A server that was trusted for what it said may say something else later. All that it says of each
tool is compared; what a person has not seen is not what they agreed to. So what is too large to be
shown is not covered by their answer, and stays a change.
"""

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from msgspec import Struct, field, structs

from emceepee_stdio.trust.approval_request import shown

# What a person reads first; whatever else a server says of a tool comes after it.
_FIRST = ("title", "description", "inputSchema", "outputSchema", "annotations")
_MAX_TEXT_CHARS = 50_000  # of a larger tool only the hash is kept: a change shows all it is now
_MAX_DIFF_CHARS = 8_000  # difflib may take the square of the number of lines
_MAX_SHOWN_CHARS = 250_000  # of all changes together; the next answer may cover what is beyond
_MAX_TOOLS = 5_000  # as many as a list has; what is beyond is not pinned, and so not shown
_MAX_TEXTS_CHARS = 250_000  # of one server: the hashes of all its tools take about as much
_MAX_NAME_CHARS = 200  # names are shorter; of a longer one the hash is the key


class Pinned(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tool as it was seen: its hash, and what of it a person may want to compare."""

    digest: str
    text: str = ""


class Pins(Struct, frozen=True, kw_only=True):
    """What is pinned of one server; None is what was never looked at."""

    tools: dict[str, Pinned] | None = None
    instructions: Pinned | None = None

    def filled(self, other: "Pins") -> "Pins":
        """These, and of the other what these have not."""
        return Pins(
            tools=other.tools if self.tools is None else self.tools,
            instructions=other.instructions if self.instructions is None else self.instructions,
        )

    def missing(self, now: "Pins") -> "Pins | None":
        """What there is now and these have not; None when there is nothing."""
        found = Pins(
            tools=now.tools if self.tools is None else None,
            instructions=now.instructions if self.instructions is None else None,
        )
        return None if found == Pins() else found


class Changes(Struct, frozen=True, kw_only=True):
    """What is different now: of each changed tool a readable diff, of each added one its text.

    `unseen` are those of both that are too large to be shown.
    """

    changed: dict[str, str] = field(default_factory=dict[str, str])
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    texts: dict[str, str] = field(default_factory=dict[str, str])
    instructions: str = ""
    unseen: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.changed or self.added or self.removed or self.instructions)

    def text(self) -> str:
        """All of it for a person to read."""
        parts = [f"Changed: {shown(tool)}\n{diff}" for tool, diff in self.changed.items()]
        parts += [f"Added: {shown(tool)}\n{self.texts[tool]}" for tool in self.added]
        if self.removed:
            parts.append(f"Removed: {', '.join(map(shown, self.removed))}")
        if self.instructions:
            parts.append(f"Changed: its instructions\n{self.instructions}")
        return "\n".join(parts)


def pin_key(tool: Mapping[str, object]) -> str:
    """What a tool is known by: its name, as long as that is one."""
    name = str(tool.get("name"))
    return name if len(name) <= _MAX_NAME_CHARS else _hash(name)


def pin_text(text: str) -> Pinned:
    """What a server says of itself."""
    return _pinned(text, {"instructions": text})


def pin(tool: Mapping[str, object]) -> Pinned:
    parts = _parts(tool)
    exact = json.dumps([tool.get("name"), parts], sort_keys=True, separators=(",", ":"))
    return _pinned(exact, parts)


def _parts(tool: Mapping[str, object]) -> dict[str, object]:
    others = sorted(key for key in tool if key not in {"name", *_FIRST})
    return {part: tool[part] for part in (*_FIRST, *others) if tool.get(part) is not None}


def _pinned(exact: str, parts: Mapping[str, object]) -> Pinned:
    """The hash of what was said, and the text unless it is too long to be kept."""
    text = _readable(parts)
    return Pinned(digest=_hash(exact), text=text if len(text) <= _MAX_TEXT_CHARS else "")


def pin_all(tools: Iterable[Mapping[str, object]]) -> dict[str, Pinned]:
    """Each name with all that is said under it: a list may hold the same name twice."""
    found: dict[str, dict[str, Pinned]] = {}
    for tool in tools:
        key = pin_key(tool)
        if key in found or len(found) < _MAX_TOOLS:
            pinned = pin(tool)
            found.setdefault(key, {})[pinned.digest] = pinned
    return _with_room({key: _together(list(same.values())) for key, same in found.items()})


def _together(same: Sequence[Pinned]) -> Pinned:
    """Tools of one name as one; their order is the server's whim."""
    if len(same) == 1:
        return same[0]
    ordered = sorted(same, key=lambda pinned: pinned.digest)
    texts = [pinned.text for pinned in ordered]
    return Pinned(
        digest=_hash(" ".join(pinned.digest for pinned in ordered)),
        text="\n".join(texts) if all(texts) else "",
    )


def _with_room(pinned: dict[str, Pinned]) -> dict[str, Pinned]:
    """All hashes, and as many of the texts as one server has room for, the short ones first."""
    room = _MAX_TEXTS_CHARS
    for key in sorted(pinned, key=lambda key: len(pinned[key].text)):
        room -= len(pinned[key].text)
        if room < 0:
            pinned[key] = Pinned(digest=pinned[key].digest)
    return pinned


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def compare_pins(
    agreed: Pins, now: Pins, *, tools: Sequence[Mapping[str, object]] = (), said: str = ""
) -> Changes:
    """What was never looked at is no change. `tools` and `said` are what `now` was made of."""
    both = agreed.tools is not None and now.tools is not None
    changes = compare(agreed.tools or {}, now.tools or {}, tools) if both else Changes()
    before, after = agreed.instructions, now.instructions
    if before is None or after is None or before.digest == after.digest:
        return changes
    text = after.text or _readable({"instructions": said})
    return structs.replace(changes, instructions=_diff(before.text, text))


def agreed_pins(agreed: Pins, now: Pins, changes: Changes) -> Pins:
    """What counts when a person agrees to these changes: what they did not see stays as it was."""
    before = agreed.tools or {}
    kept = {
        key: before.get(key) if key in changes.unseen else pinned
        for key, pinned in (now.tools or {}).items()
    }
    tools = {key: pinned for key, pinned in kept.items() if pinned is not None}
    return structs.replace(now, tools=None if now.tools is None else tools)


def compare(
    before: Mapping[str, Pinned],
    now: Mapping[str, Pinned],
    tools: Sequence[Mapping[str, object]] = (),
) -> Changes:
    differing = [
        tool for tool in now if tool not in before or before[tool].digest != now[tool].digest
    ]
    texts = {tool: [now[tool].text] if now[tool].text else [] for tool in differing}
    for tool in tools:
        key = pin_key(tool)
        if key in texts and not now[key].text:
            texts[key].append(_readable(_parts(tool)))
    told, unseen, room = dict[str, str](), set[str](), _MAX_SHOWN_CHARS
    for tool, found in texts.items():
        text = "\n".join(found)
        told[tool] = _diff(before[tool].text, text) if tool in before else _marked("+", text)
        if not found or len(told[tool]) > room:
            unseen.add(tool)
            told[tool] = (
                f"({len(text):,} characters are more than is shown at once. What is answered here "
                "does not cover it.)"
            )
        room -= len(told[tool])
    return Changes(
        changed={tool: diff for tool, diff in told.items() if tool in before},
        added=tuple(tool for tool in now if tool not in before),
        removed=tuple(tool for tool in before if tool not in now),
        texts={tool: text for tool, text in told.items() if tool not in before},
        unseen=frozenset(unseen),
    )


def _diff(before: str, now: str) -> str:
    if not before:
        return f"(what it was is too large to be kept; all that it is now)\n{_marked('+', now)}"
    old, new = before.split("\n"), now.split("\n")
    if max(len(before), len(now)) > _MAX_DIFF_CHARS:
        first, last = _common(old, new), _common(old[::-1], new[::-1])
        last = min(last, min(len(old), len(new)) - first)
        old, new = old[first : len(old) - last], new[first : len(new) - last]
        lines = [*(f"-{line}" for line in old), *(f"+{line}" for line in new)]
    else:
        # The first two name the files; no line of a tool begins with what begins a part.
        lines = list(difflib.unified_diff(old, new, n=1, lineterm=""))[2:]
        lines = [line for line in lines if not line.startswith("@@")]
    return "\n".join(lines) or "(something became another kind of value that reads the same)"


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines are the same, from the first on."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same)


def _marked(mark: str, text: str) -> str:
    return "\n".join(f"{mark}{line}" for line in text.split("\n"))


def _readable(parts: Mapping[str, object]) -> str:
    """One line for each thing that a person would notice."""
    lines: list[str] = []
    for part, value in parts.items():
        text = value
        if not isinstance(text, str):
            text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
        lines += [f"{part}: {line}" for line in text.split("\n")]
    return "\n".join(line if line.isprintable() else ascii(line)[1:-1] for line in lines)
