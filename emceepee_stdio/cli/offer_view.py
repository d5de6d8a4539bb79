"""What a server offers, for a person to read: tools as functions, each with what it is for.

At a terminal a description is its first sentence, in one line; in a pipe nothing is cut.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from emceepee_stdio.cli.input_schema import Parameter, parameters
from emceepee_stdio.cli.signatures import (
    Signature,
    first_sentence,
    prompt_signature,
    tool_signature,
)
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.visible_text import harmless, on_one_line

__all__ = ["show_names", "show_offers"]

_ASKS = " (you are asked)"
_KEYS = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "resource_templates": "uriTemplate",
}
_HEADINGS = {
    "tools": "Tools",
    "prompts": "Prompts",
    "resources": "Resources",
    "resource_templates": "Resource templates",
}
_INDENT = "  "
_TEXT_INDENT = "      "  # of what belongs to the line above it

Item = Mapping[str, Any]


def show_names(found: Sequence[Mapping[str, Any]], terminal: Terminal) -> None:
    """All that all servers offer, by name."""
    rows = [
        (str(offers["name"]), _what(kind), f"{item.get(key, '')}{_mark(item)}")
        for offers in found
        for kind, key in _KEYS.items()
        for item in offers.get(kind, ())
    ]
    if rows:
        terminal.table(("SERVER", "WHAT", "NAME"), rows)


def show_offers(offers: Mapping[str, Any], terminal: Terminal, *, is_full: bool) -> None:
    """All that one server offers; rows of cells in a pipe, unless the whole text is wanted."""
    if not any(offers.get(kind) for kind in _KEYS):
        terminal.note(f"{offers['name']} offers nothing.")
        return
    if terminal.columns is None and not is_full:
        rows = [
            (str(offers["name"]), _what(kind), f"{_cell(kind, item)}{_mark(item)}", _about(item))
            for kind in _KEYS
            for item in offers.get(kind, ())
        ]
        terminal.table(("SERVER", "WHAT", "NAME", "DESCRIPTION"), rows)
        return
    parts = [kind for kind in _KEYS if offers.get(kind)]
    for number, kind in enumerate(parts):
        if number:
            terminal.line()
        terminal.line(_HEADINGS[kind], style="bold")
        for item in offers[kind]:
            _show_item(kind, item, terminal, is_full=is_full)


def _show_item(kind: str, item: Item, terminal: Terminal, *, is_full: bool) -> None:
    room = None if terminal.columns is None else terminal.columns - len(_INDENT) - 1
    for line in _lines(kind, item, room):
        terminal.line(f"{_INDENT}{line}", style="cyan")
    room = None if terminal.columns is None else terminal.columns - len(_TEXT_INDENT) - 1
    for line in _whole(kind, item, room) if is_full else [first_sentence(_about(item), room)]:
        if line:
            terminal.line(f"{_TEXT_INDENT}{line}")


def _cell(kind: str, item: Item) -> Signature | str:
    match kind:
        case "tools":
            return tool_signature(item)
        case "prompts":
            return prompt_signature(item)
        case _:
            return on_one_line(str(item.get(_KEYS[kind], "")))


def _lines(kind: str, item: Item, room: int | None) -> list[str]:
    cell, mime = _cell(kind, item), item.get("mimeType")
    lines = cell.lines(room) if isinstance(cell, Signature) else [cell]
    if mime and not isinstance(cell, Signature):
        lines[-1] += f" ({on_one_line(str(mime))})"
    return [*lines[:-1], f"{lines[-1]}{_mark(item)}"]


def _whole(kind: str, item: Item, room: int | None) -> Iterator[str]:
    """Every line of a description, and what is said of each parameter."""
    yield from _wrapped(_about(item), room)
    for one in _parameters(kind, item):
        if one.description:
            yield from _wrapped(f"{one.name}: {' '.join(one.description.split())}", room, hang="  ")


def _parameters(kind: str, item: Item) -> list[Parameter]:
    if kind == "tools":
        return parameters(mapping(item.get("inputSchema")))
    listed = item.get("arguments") if kind == "prompts" else None
    found = map(mapping, elements(listed))
    return [Parameter(name=str(one.get("name")), schema=one, is_required=False) for one in found]


def _wrapped(text: str, room: int | None, *, hang: str = "") -> Iterator[str]:
    for line in harmless(text).expandtabs(4).splitlines():
        if room is None:
            yield line
        else:
            yield from textwrap.wrap(
                line, max(room, 20), subsequent_indent=hang, break_on_hyphens=False
            ) or [""]


def _about(item: Item) -> str:
    return str(item.get("description") or item.get("title") or item.get("name") or "").strip()


def _mark(item: Item) -> str:
    native = item.get("exposed_as")
    asks = _ASKS if item.get("rule") == "ask" else ""
    return f"{asks} (exposed as {native})" if native else asks


def _what(kind: str) -> str:
    return kind.removesuffix("s").replace("_", " ")
