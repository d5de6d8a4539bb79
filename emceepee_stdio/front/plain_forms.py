"""Forms that a host cannot show: rebuilt with text fields, and read back from what was typed.

A host without a widget for numbers or several choices would leave such a form to the model, which
then answers for the person. A text field can be shown everywhere. What is typed there is read by
one rule that stands in the description of the field, and what can be read in two ways is not read
at all: the person is asked again.
"""

import re
from collections.abc import Mapping, Sequence
from typing import cast

from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.tools.question_tools import choices_of, form_problems, with_defaults
from emceepee_stdio.visible_text import cut, readable

PLAIN_KINDS = frozenset({"string", "boolean", "choice"})  # what every host with forms can show
KNOWN_KINDS = PLAIN_KINDS | {"integer", "number", "choices"}

_NUMBER = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?")  # no number of a form needs more digits
_SEPARATED = re.compile(r"-?[0-9]{1,3}\.[0-9]{3}")  # 1.500 is 1500 to half of the world
_SHOWN_CHARS = 40  # of what was typed
_DEFAULT_CHARS = 200
_KEPT = ("title", "description")


def is_plain(schema: Mapping[str, object]) -> bool:
    """Whether every host with forms can show it."""
    return all(kind_of(field) in PLAIN_KINDS for field in _fields(schema).values())


def kind_of(field: Mapping[str, object]) -> str:
    kind = str(field.get("type"))
    if kind == "array":
        return "choices"
    return "choice" if kind == "string" and ("enum" in field or "oneOf" in field) else kind


def as_text(schema: Mapping[str, object], shown: frozenset[str]) -> Mapping[str, object]:
    """The form with text in place of each field whose kind is not among those that are shown."""
    fields = _fields(schema)
    hidden = {name: field for name, field in fields.items() if kind_of(field) not in shown}
    if not hidden:
        return schema
    may_be_empty = {name for name, field in hidden.items() if _may_be_empty(field)}
    required = [name for name in elements(schema.get("required")) if name not in may_be_empty]
    rebuilt = {name: _text_field(field) for name, field in hidden.items()}
    return {**schema, "properties": {**fields, **rebuilt}, "required": required}


def read_back(
    typed: Mapping[str, object], schema: Mapping[str, object], shown: frozenset[str]
) -> tuple[dict[str, object], list[str]]:
    """The answer to the form itself, defaults included, and what is wrong with it."""
    content, problems = dict(typed), list[str]()
    for name, field in _fields(schema).items():
        text = content.get(name)
        if kind_of(field) in shown or not isinstance(text, str):
            continue
        if not text.strip():
            del content[name]
            if _may_be_empty(field):
                content[name] = []
            continue
        value = _read(text.strip(), field)
        if value is None:
            problems.append(f"{readable(name)}: {_why_not_read(text, field)}")
        else:
            content[name] = value
    content = with_defaults(content, schema)
    return content, problems or form_problems(content, schema)


def _fields(schema: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    return {name: mapping(field) for name, field in mapping(schema.get("properties")).items()}


def _may_be_empty(field: Mapping[str, object]) -> bool:
    return kind_of(field) == "choices" and not field.get("minItems")


def _text_field(field: Mapping[str, object]) -> dict[str, object]:
    texts = {key: field[key] for key in _KEPT if isinstance(field.get(key), str)}
    theirs, default = str(texts.get("description", "")).strip(), field.get("default")
    texts["description"] = f"{theirs} {_rule(field)}".strip()
    if isinstance(default, list):
        names = {value: name for name, value in _names(field).items() if isinstance(value, str)}
        listed = [names.get(str(one)) for one in cast("list[object]", default)]
        default = None if None in listed else ", ".join(map(str, listed))
    elif isinstance(default, bool) or not isinstance(default, int | float | str):
        default = None
    elif isinstance(default, int | float) and _read(str(default), field) != default:
        default = None  # as text it would not be read as what it is
    if default is None or len(str(default)) > _DEFAULT_CHARS:
        return {"type": "string", **texts}
    return {"type": "string", **texts, "default": str(default)}


def _rule(field: Mapping[str, object]) -> str:
    kind = kind_of(field)
    if kind == "choices":
        names = _names(field)
        if not names:
            return "Write one or more, with commas between them."
        listed = [name if name == value else f"{name} ({value})" for name, value in names.items()]
        return f"Write one or more of these, with commas between them: {', '.join(listed)}."
    if kind not in ("integer", "number"):
        return ""
    if choices := choices_of(field):
        return f"Write one of these: {', '.join(map(str, choices))}."
    what = "a whole number" if kind == "integer" else "a number"
    return f"Write {what}{_range(field)}, in digits{_DECIMALS if kind == 'number' else ''}."


_DECIMALS = " with a point before decimals, such as 1500 or 12.50"


def _range(field: Mapping[str, object]) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return "" if high is None else f" of at most {high}"


def _names(field: Mapping[str, object]) -> dict[str, object]:
    """What the person types for each choice: its value, or a number where that is ambiguous."""
    values = choices_of(mapping(field.get("items")))
    names = [value.strip() if isinstance(value, str) else "" for value in values]
    is_clear = len({name.casefold() for name in names}) == len(names) and all(
        name and "," not in name and readable(name) == name for name in names
    )
    if not is_clear:
        names = [str(number) for number in range(1, len(values) + 1)]
    return dict(zip(names, values, strict=True))


def _read(text: str, field: Mapping[str, object]) -> object:
    """The value that was typed; None where it is none, or can be read in two ways."""
    kind = kind_of(field)
    if kind == "choices":
        return _read_choices(text, field)
    if kind not in ("integer", "number"):
        return text
    for choice in choices_of(field):
        if str(choice) == text:
            return choice
    if not _NUMBER.fullmatch(text) or _SEPARATED.fullmatch(text):
        return None
    if "." in text:
        return float(text) if kind == "number" else None
    return int(text)


def _read_choices(text: str, field: Mapping[str, object]) -> Sequence[object] | None:
    typed = [part.strip() for part in text.split(",") if part.strip()]
    names = {name.casefold(): value for name, value in _names(field).items()}
    if not names:
        return typed
    if any(part.casefold() not in names for part in typed):
        return None
    return [names[part] for part in dict.fromkeys(part.casefold() for part in typed)]


def _why_not_read(text: str, field: Mapping[str, object]) -> str:
    typed = f'"{cut(readable(text.strip()), _SHOWN_CHARS)}"'
    if _SEPARATED.fullmatch(text.strip()):
        return f"{typed} can be read in two ways. {_rule(field)}"
    return f"{typed} cannot be read. {_rule(field)}"
