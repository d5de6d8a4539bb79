"""Fields of an object of the file: known keys, spellings, types, variables, keyring references.

The only place that meets the validator's complaints; they come out as our own sentences, which name
the key, what was given and what is expected, and never quote a string.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from inspect import cleandoc
from typing import Annotated, Any, NamedTuple, TypeGuard, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct, inspect

from emceepee_stdio.config.server import ServerConfig, TemplatePlace, label
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.visible_text import docstring_parts

T = TypeVar("T")

_HUMP = re.compile(r"(?<=[a-z0-9])[A-Z]")
# Clients whose files have no comments made people write them as keys; `$schema` is for editors.
_REMARKS = ("_", "$", "/", "#")


class Given(NamedTuple):
    """A value, and the key that the person wrote for it."""

    key: str
    value: object


def is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


@cache
def hints_of(struct: type[Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


def schema_of(root: type[Struct], *, title: str) -> dict[str, object]:
    """JSON Schema of a document; what each field is for stands in the docstring of its struct."""
    (top,), definitions = msgspec.json.schema_components([root], ref_template="#/$defs/{name}")
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **top,
        "$defs": definitions,
    }
    for struct in _structs(inspect.type_info(root)):
        definition = definitions[struct.__name__]
        bases = (base.__doc__ or "" for base in reversed(struct.__mro__))
        for about, texts in map(docstring_parts, map(cleandoc, bases)):
            definition["description"] = about
            for name in texts.keys() & definition["properties"].keys():
                definition["properties"][name]["description"] = texts[name]
    # Defaults that are tuples become the arrays that JSON has.
    return msgspec.json.decode(msgspec.json.encode(schema), type=dict[str, object])


def _structs(kind: inspect.Type) -> Iterator[type[Struct]]:
    """A struct and those in it."""
    match kind:
        case inspect.StructType(cls=struct, fields=fields):
            yield struct
            parts = [field.type for field in fields]
        case inspect.UnionType(types=types):
            parts = types
        case inspect.Metadata(type=part):
            parts = [part]
        case inspect.VarTupleType(item_type=part) | inspect.DictType(value_type=part):
            parts = [part]
        case _:
            parts = ()
    for part in parts:
        yield from _structs(part)


class Vocabulary(NamedTuple):
    """The keys of one kind of object: its fields, other spellings of them, and keys of others."""

    known: Collection[str]
    spellings: Mapping[str, str] = {}
    ignored: Collection[str] = ()
    former: Mapping[str, str] = {}  # keys that are known no more, and what holds instead


def given_fields(
    members: Mapping[str, object], words: Vocabulary, *, path: str, warnings: list[str] | None
) -> dict[str, Given]:
    """What is given for each known field; our own spelling wins over another one.

    Without `warnings` a key that is not known raises.
    """
    known, spellings, ignored, former = words
    found: dict[str, Given] = {}
    for key, value in members.items():
        field = spellings.get(key) or spellings.get(snake(key)) or snake(key)
        if field in known:
            if key == field or field not in found:
                found[field] = Given(key, value)
        elif field in former:
            _complain(f"{path}.{label(key)} is no longer a setting: {former[field]}.", warnings)
        elif key not in ignored and not key.startswith(_REMARKS):
            near = nearest(key, [*known, *spellings])
            advice = f"; did you mean '{near}'?" if near else "."
            fate = " and is ignored" if warnings is not None else ""
            _complain(f"{path}.{label(key)} is not a known key{fate}{advice}", warnings)
    return found


def _complain(complaint: str, warnings: list[str] | None) -> None:
    if warnings is None:
        raise ConfigInvalid(complaint)
    warnings.append(complaint)


def snake(key: str) -> str:
    return _HUMP.sub(lambda hump: "_" + hump[0].lower(), key)


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    by_fold = {candidate.casefold(): candidate for candidate in known}
    close = get_close_matches(word[:100].casefold(), by_fold, n=1, cutoff=cutoff)
    return by_fold[close[0]] if close else None


def fit(value: object, hint: type[T], *, path: str) -> T:
    """The value as the hint wants it, or ConfigInvalid, which names the part that does not fit."""
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError:
        step, part, wanted = _blame(value, hint)
    expected = inspect.type_info(wanted)
    # A number can only be out of bounds where numbers are due, and there it is no secret.
    shown = label(str(part)) if _is_number(part) and _takes_numbers(expected) else _kind(part)
    raise ConfigInvalid(f"{path}{step}: expected {_phrase(expected)}, got {shown}.")


def _fits(value: object, hint: Any) -> bool:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return False
    return True


def _blame(value: object, hint: Any) -> tuple[str, object, Any]:
    """Where inside the value the mistake is, the part, and what the part should have been."""
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    parts: Iterable[tuple[str, object]] = ()
    if is_object(value) and get_origin(bare) is dict:
        parts = ((f".{label(key)}", part) for key, part in value.items())
    elif is_list(value) and get_origin(bare) is tuple:
        parts = ((f"[{index}]", part) for index, part in enumerate(value))
    for step, part in parts:
        expected = get_args(bare)[1 if is_object(value) else 0]
        if not _fits(part, expected):
            return step, part, expected
    return "", value, hint


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _takes_numbers(kind: inspect.Type) -> bool:
    match kind:
        case inspect.Metadata(type=inner):
            return _takes_numbers(inner)
        case inspect.UnionType(types=types):
            return any(map(_takes_numbers, types))
        case _:
            return isinstance(kind, inspect.IntType | inspect.FloatType)


def _phrase(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata(
            type=inspect.StrType(pattern=str()), extra_json_schema={"description": str(what)}
        ):
            return what[:1].lower() + what[1:].rstrip(".")
        case inspect.Metadata(type=inner):
            return _phrase(inner)
        case inspect.UnionType(types=types):
            return " or ".join(sorted(map(_phrase, types), key="null".__eq__))
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(map(str, values))
        case inspect.IntType(ge=low, le=high) | inspect.FloatType(ge=low, le=high):
            return f"{_KINDS[type(kind)]} from {low} to {high}"
        case _:
            return _KINDS[type(kind)]


def _kind(value: object) -> str:
    return _KINDS[type(inspect.type_info(dict if is_object(value) else type(value)))]


_KINDS: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.IntType: "an integer",
    inspect.FloatType: "a number",
    inspect.StrType: "a string",
    inspect.NoneType: "null",
    inspect.DictType: "an object",
    inspect.ListType: "a list",
    inspect.VarTupleType: "a list",
}


# References in the values of the configuration: to environment variables, and to the keyring.
#
# `${NAME}` and `${NAME:-default}` as in a shell, `${env:NAME}` as editors write it, and `$${` for a
# plain `${`. What a variable holds is taken as it is: it is never expanded again.
#
# `${keyring:NAME}` is looked up when the server connects, because a keyring may be locked. Until
# then the whole text is a template: its references to the keyring stand as they are, and every
# other `${` in it is written `$${`. Where a template may stand, the caller says so (`in_keyring`).


KEYRING_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_REFERENCE = re.compile(
    r"(?P<escaped>\$\$\{)"
    rf"|\$\{{keyring:(?P<keyring>{KEYRING_NAME.pattern})\}}"
    r"|\$\{(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\}"
    r"|(?P<malformed>\$\{)"
)


class UnsetVariable(ConfigInvalid):
    """A value needs a variable that the environment does not have."""

    def __init__(self, variable: str, path: str) -> None:
        super().__init__(
            f"{path} needs the environment variable {variable}, which is not set; "
            "set it, or write a default behind its name: ${NAME:-default}."
        )
        self.variable = variable
        self.path = path


def keyring_reference(name: str) -> str:
    """How the configuration refers to a secret in the keyring."""
    return f"${{keyring:{name}}}"


def keyring_names(text: str) -> list[str]:
    """The secrets in the keyring that a text refers to."""
    return [found["keyring"] for found in _REFERENCE.finditer(text) if found["keyring"]]


def is_template(value: object) -> bool:
    return isinstance(value, str) and bool(keyring_names(value))


def fill_in(template: str, secrets: Mapping[str, str]) -> str:
    """The text that a template stands for; what a secret holds is never expanded again."""

    def replacement(reference: re.Match[str]) -> str:
        return secrets[reference["keyring"]] if reference["keyring"] else "${"

    return _REFERENCE.sub(replacement, template)


def expand(
    value: object, *, environ: Mapping[str, str], path: str, in_keyring: bool = False
) -> object:
    """The value with every reference in its strings replaced; keys stay as they are."""
    if isinstance(value, str):
        return _expand_text(value, environ=environ, path=path, in_keyring=in_keyring)
    if is_list(value):
        return [
            expand(item, environ=environ, path=f"{path}[{index}]", in_keyring=in_keyring)
            for index, item in enumerate(value)
        ]
    if is_object(value):
        return {
            key: expand(item, environ=environ, path=f"{path}.{label(key)}", in_keyring=in_keyring)
            for key, item in value.items()
        }
    return value


def _expand_text(text: str, *, environ: Mapping[str, str], path: str, in_keyring: bool) -> str:
    if not is_template(text):
        return _REFERENCE.sub(lambda found: _held(found, environ, path), text)
    if not in_keyring:
        raise ConfigInvalid(
            f"{path} refers to the keyring; only env, headers, url and oauth.client_secret of a "
            "server may do that."
        )

    def replacement(reference: re.Match[str]) -> str:
        if reference["keyring"]:
            return reference[0]
        return _held(reference, environ, path).replace("${", "$${")

    return _REFERENCE.sub(replacement, text)


def _held(reference: re.Match[str], environ: Mapping[str, str], path: str) -> str:
    if reference["escaped"]:
        return "${"
    if reference["malformed"]:
        raise ConfigInvalid(
            f"{path} has a ${{ that is neither ${{NAME}} nor ${{NAME:-default}}; "
            "write $${ for a plain ${."
        )
    name, default = reference["name"], reference["default"]
    held = environ.get(name)
    if default is not None:
        return held or default
    if held is None:
        raise UnsetVariable(name, path)
    return held


# Which texts of a server stand for secrets in the keyring, and the server once those are known.
#
# Only where nobody else sees them: other users see the arguments of every program, so a secret goes
# into its environment, a header, the URL, or the secret of a sign-in.


IN_KEYRING = frozenset({"env", "headers", "url", "client_secret"})


def template_places(given: Mapping[str, Given]) -> frozenset[TemplatePlace]:
    """From the fields of an entry, before they are expanded."""
    return frozenset(
        place
        for field, (_, value) in given.items()
        if field in IN_KEYRING or field == "oauth"
        for place in _places(field, value)
    )


def _places(field: str, value: object) -> Iterator[TemplatePlace]:
    if is_template(value):
        yield (field,)
    elif is_object(value):
        for key, item in value.items():
            if is_template(item):
                yield (field, "client_secret" if field == "oauth" else key)


def needed_secrets(server: ServerConfig) -> list[str]:
    """The names in the keyring that the server refers to, each once."""
    texts = _texts(server)
    found = (name for place in sorted(server.templates) for name in keyring_names(texts[place]))
    return list(dict.fromkeys(found))


def filled_in(server: ServerConfig, secrets: Mapping[str, str]) -> ServerConfig:
    """The server as it is connected to. A secret that cannot be passed on raises ConfigInvalid."""
    texts = _texts(server)
    full = texts | {place: fill_in(texts[place], secrets) for place in server.templates}
    return msgspec.structs.replace(
        server,
        env={key: full["env", key] for key in server.env},
        headers={key: full["headers", key] for key in server.headers},
        url=full.get(("url",)),
        oauth=msgspec.structs.replace(
            server.oauth, client_secret=full.get(("oauth", "client_secret"))
        ),
        templates=frozenset(),
    )


def _texts(server: ServerConfig) -> dict[TemplatePlace, str]:
    """What stands in each place that may refer to the keyring."""
    texts: dict[TemplatePlace, str | None] = {
        ("url",): server.url,
        ("oauth", "client_secret"): server.oauth.client_secret,
    }
    texts |= {("env", key): text for key, text in server.env.items()}
    texts |= {("headers", key): text for key, text in server.headers.items()}
    return {place: text for place, text in texts.items() if text is not None}
