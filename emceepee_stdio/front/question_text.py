"""What a person reads of a server's question: our own line first, and then the server's words.

Line 1 is ours and names the server, with the tool or the host of a page; a warning may follow.
Every line of the server begins with `> `, so that none of them can pass for one of ours. What we
ask ourselves has lines of ours alone. Nothing that cannot be seen is left in what is shown. Names
and values that come back in the answer stay as they are: where something in them cannot be seen, a
label of ours shows it.
"""

from collections.abc import Callable, Mapping
from typing import cast

from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.question_urls import host_of, url_warning
from emceepee_stdio.session.questions import question_of
from emceepee_stdio.state import PendingRequest
from emceepee_stdio.visible_text import readable

__all__ = ["mode_of", "native_params"]

_NAME_CHARS = 40  # of a server or a tool
_LINE_CHARS = 110  # what every host shows of one line
_LABELS = frozenset({"title", "description", "enumNames"})  # of a schema: shown, and nothing else
_OF_A_FORM = ("type", "properties", "required")  # a heading of its own could pass for our line
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
    is_ours = question_of(asked).is_ours
    ours = text.splitlines() if is_ours else [_first_line(asked, mode)]
    if mode == "form":
        schema = mapping(asked.params.get("requestedSchema"))
        fields = _EMPTY_FORM | {key: schema[key] for key in _OF_A_FORM if key in schema}
        fields["properties"] = {
            name: _field(name, mapping(about))
            for name, about in mapping(fields["properties"]).items()
        }
        if version is not None and version < _TITLED_SINCE:
            fields["properties"] = _untitled(mapping(fields["properties"]))
        rest: dict[str, object] = {"requestedSchema": fields}
    else:
        url = str(asked.params.get("url"))
        if warning := url_warning(url):
            ours.append(warning)
        rest = {"url": url, "elicitationId": asked.id}
    theirs = [] if is_ours else text.splitlines()
    lines = [*ours, *(_MARK + readable(line) for line in theirs)]
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
    shown = readable(name).replace('"', "'")
    return f'"{shown[:_NAME_CHARS]}{"…" if len(shown) > _NAME_CHARS else ""}"'


def _field(name: str, about: Mapping[str, object]) -> dict[str, object]:
    """One field of the form, with labels for what cannot be seen in its name and its choices."""
    shown = _visible(about)
    if readable(name) != name:
        shown.setdefault("title", readable(name))
    if _hides(values := shown.get("enum")):
        shown.setdefault("enumNames", _labels(values))
    items = mapping(shown.get("items"))
    if _hides(values := items.get("enum")):
        choices = zip(cast("list[object]", values), _labels(values), strict=True)
        shown["items"] = {"anyOf": [{"const": value, "title": label} for value, label in choices]}
    return shown


def _hides(values: object) -> bool:
    return isinstance(values, list) and _labels(cast("object", values)) != values


def _labels(values: object) -> list[object]:
    listed = cast("list[object]", values)
    return [readable(value) if isinstance(value, str) else value for value in listed]


def _visible(schema: Mapping[str, object]) -> dict[str, object]:
    return {key: _shown(value, key) for key, value in schema.items()}


def _shown(value: object, key: str) -> object:
    if isinstance(value, dict):
        return _visible(cast("dict[str, object]", value))
    if isinstance(value, list):
        return [_shown(item, key) for item in cast("list[object]", value)]
    return readable(value) if isinstance(value, str) and key in _LABELS else value


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
