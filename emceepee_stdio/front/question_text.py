"""What a person reads of a server's question: our own line first, and then the server's words.

Line 1 is ours and names the server, with the tool or the host of a page; a warning may follow.
Every line of the server begins with `> `, so that none of them can pass for one of ours. Nothing
that cannot be seen is left in what is shown; values that come back in the answer stay as they are.
"""

from collections.abc import Callable, Mapping
from typing import cast

from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.question_urls import host_of, url_warning
from emceepee_stdio.session.questions import question_of
from emceepee_stdio.state import PendingRequest
from emceepee_stdio.visible_text import on_one_line

__all__ = ["mode_of", "native_params"]

_NAME_CHARS = 40  # of a server or a tool
_LINE_CHARS = 110  # what every host shows of one line
_LABELS = frozenset({"title", "description", "enumNames"})  # of a schema: shown, and nothing else
_TITLED_SINCE = "2025-11-25"  # before that a choice has its names beside its values
_MARK = "> "
_EMPTY_FORM: dict[str, object] = {"type": "object", "properties": {}}


def mode_of(asked: PendingRequest) -> str:
    return "url" if asked.params.get("mode") == "url" or "url" in asked.params else "form"


def native_params(
    asked: PendingRequest, *, mask: Callable[[str], str], chars: int, version: str | None = None
) -> dict[str, object]:
    """The params of the elicitation that the client is to show.

    `version` is what a client of the handshake era speaks, None for a modern one.
    """
    mode = mode_of(asked)
    text = mask(str(asked.params.get("message", "")))
    text = text[:chars] + (" …" if len(text) > chars else "")
    ours = [_first_line(asked, mode)]
    if mode == "form":
        schema = mapping(asked.params.get("requestedSchema"))
        fields = _EMPTY_FORM | _visible(schema)
        if version is not None and version < _TITLED_SINCE:
            fields["properties"] = _untitled(mapping(fields["properties"]))
        rest: dict[str, object] = {"requestedSchema": fields}
    else:
        url = str(asked.params.get("url"))
        if warning := url_warning(url):
            ours.append(warning)
        rest = {"url": url, "elicitationId": asked.id}
    lines = [*ours, *(_MARK + on_one_line(line) for line in text.splitlines())]
    return {"mode": mode, "message": "\n".join(lines), **rest}


def _first_line(asked: PendingRequest, mode: str) -> str:
    line = f"emceepee: the server {_quoted(asked.server)} "
    line += "asks" if mode == "form" else f"wants you to open {host_of(str(asked.params['url']))}"
    call = question_of(asked).call
    if isinstance(call, Call) and call.tool:
        with_tool = f"{line}, in a call of {_quoted(call.tool)}"
        line = with_tool if len(with_tool) < _LINE_CHARS else line
    return f"{line}:"


def _quoted(name: str) -> str:
    shown = on_one_line(name).replace('"', "'")
    return f'"{shown[:_NAME_CHARS]}{"…" if len(shown) > _NAME_CHARS else ""}"'


def _visible(schema: Mapping[str, object]) -> dict[str, object]:
    return {key: _shown(value, key) for key, value in schema.items()}


def _shown(value: object, key: str) -> object:
    if isinstance(value, dict):
        return _visible(cast("dict[str, object]", value))
    if isinstance(value, list):
        return [_shown(item, key) for item in cast("list[object]", value)]
    return on_one_line(value) if isinstance(value, str) and key in _LABELS else value


def _untitled(fields: Mapping[str, object]) -> dict[str, object]:
    """Choices as an older client knows them; the values, and so the answers, are the same."""
    shown = dict(fields)
    for name, field in fields.items():
        about = dict(mapping(field))
        if about.get("type") == "string" and isinstance(about.get("oneOf"), list):
            choices = [mapping(one) for one in cast("list[object]", about.pop("oneOf"))]
            values = [one.get("const") for one in choices]
            names = [one.get("title", one.get("const")) for one in choices]
            shown[name] = about | {"enum": values, "enumNames": names}
    return shown
