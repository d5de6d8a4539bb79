"""The person at the terminal answers what a server asks while a command runs."""

import sys
from collections.abc import Mapping
from math import inf
from typing import Any, cast

from emceepee_stdio.cli.one_shot import OneShotSession
from emceepee_stdio.cli.prompt import ask, ask_whether
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.json_values import mapping
from emceepee_stdio.state import PendingRequest, RequestKind, RequestStatus
from emceepee_stdio.tools.forms import choices_of, form_problems
from emceepee_stdio.visible_text import marked_lines
from emceepee_stdio.wire.codec import to_json

__all__ = ["answer_questions"]


_BOOLEANS = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


async def answer_questions(here: OneShotSession, terminal: Terminal) -> None:
    """For as long as it runs: one question after the other."""
    session = here.runtime.session
    while True:
        await session.until(lambda: bool(session.requests.pending()), within=inf)
        for asked in session.requests.pending():
            answer = await _answer(here, asked, terminal)
            if asked.id not in [one.id for one in session.requests.pending()]:
                terminal.note(f"{asked.server} no longer wants to know.")
                continue
            status = RequestStatus.ACCEPTED
            if asked.kind is RequestKind.SAMPLING or answer is None:
                status = RequestStatus.DECLINED
            session.requests.respond(asked.id, status, kind=asked.kind, now=session.clock.now())
            if asked.kind is RequestKind.SAMPLING:
                session.questions.refuse(asked, "There is no model here: a person calls this tool.")
            elif answer is None:
                session.questions.answer(asked, to_json({"action": "decline"}))
            else:
                session.questions.answer(asked, to_json(answer))


async def _answer(
    here: OneShotSession, asked: PendingRequest, terminal: Terminal
) -> dict[str, Any] | None:
    """What the person says; None to decline."""
    message = marked_lines(here.shown(str(asked.params.get("message", ""))))
    if asked.kind is RequestKind.SAMPLING:
        terminal.note(
            f"{asked.server} asks for a text of a model, which a shell has not: declined."
        )
        return None
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        terminal.note(f"{asked.server} asks: {message} (declined: nobody is at a terminal)")
        return None
    terminal.note(f"{asked.server} asks: {message}")
    if asked.params.get("mode") == "url":
        terminal.note(f"It wants you to open this address yourself: {asked.params.get('url')}")
        agrees = await ask_whether("Have you done so?", terminal, usual=False)
        return {"action": "accept"} if agrees else None
    return await _fill_in(asked.params, terminal)


async def _fill_in(params: Mapping[str, object], terminal: Terminal) -> dict[str, Any] | None:
    """Ask for each field; an empty answer leaves an optional one out."""
    schema = mapping(params.get("requestedSchema"))
    required = schema.get("required")
    wanted = cast("list[object]", required) if isinstance(required, list) else []
    if not await ask_whether("Answer it?", terminal, usual=True):
        return None
    content: dict[str, Any] = {}
    for name, about in mapping(schema.get("properties")).items():
        given = await _value(name, mapping(about), terminal, is_needed=name in wanted)
        if given is None:
            return None
        content |= given
    return {"action": "accept", "content": content}


async def _value(
    name: str, field: Mapping[str, object], terminal: Terminal, *, is_needed: bool
) -> dict[str, Any] | None:
    """What the person gives for one field, under its name, asked until it fits; None to decline."""
    kind = str(field.get("type"))
    asks = _yes_or_no if kind == "boolean" else _text
    while True:
        text = await asks(_label(name, field, is_needed=is_needed), field, terminal)
        if text is None:
            return None
        content = {name: _typed(text, kind)} if text or is_needed else {}
        problems = form_problems(content, {"properties": {name: field}})
        if not problems:
            return content
        terminal.note(f"That does not fit: {'; '.join(problems)}.")


async def _text(label: str, _field: Mapping[str, object], terminal: Terminal) -> str | None:
    return await ask(f"{label}:", terminal)


async def _yes_or_no(label: str, field: Mapping[str, object], terminal: Terminal) -> str | None:
    """`yes` or `no`; an empty line is the default, or leaves it out where there is none."""
    usual = field.get("default")
    choices = "Y/n" if usual is True else "y/N" if usual is False else "y/n"
    while True:
        text = await ask(f"{label} [{choices}]:", terminal)
        if text is None:
            return None
        if not text and isinstance(usual, bool):
            return "yes" if usual else "no"
        if text.lower() in {"", *_BOOLEANS}:
            return text


def _label(name: str, field: Mapping[str, object], *, is_needed: bool) -> str:
    about = [str(field.get("description") or field.get("title") or field.get("type") or "")]
    if one := choices_of(field):
        about.append(f"one of {', '.join(map(str, one))}")
    elif several := choices_of(mapping(field.get("items"))):
        about.append(f"any of {', '.join(map(str, several))}, with commas between")
    if not is_needed:
        about.append("optional")
    return f"{name} ({', '.join(filter(None, about))})"


def _typed(text: str, kind: str) -> object:
    """The words of a person as the kind of value that was asked for, where they are one."""
    try:
        match kind:
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case "boolean":
                return _BOOLEANS.get(text.lower(), text)
            case "array":
                return [part.strip() for part in text.split(",") if part.strip()]
            case _:
                return text
    except ValueError:
        return text
