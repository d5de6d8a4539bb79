"""Secrets that stand in plain text in our configuration, and what a reference to each looks like.

By the names and forms that `redact` knows, and by values that look made at random. In doubt nothing
is said: this is advice, while what is hidden is hidden in doubt.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from emceepee_stdio.config import jsonc
from emceepee_stdio.config.expand import keyring_names, keyring_reference
from emceepee_stdio.config.fields import is_list, is_object
from emceepee_stdio.config.jsonc import Steps
from emceepee_stdio.config.load import SECTIONS
from emceepee_stdio.config.own_file import ConfigLocation, places
from emceepee_stdio.config.server import label
from emceepee_stdio.journal.redact import (
    MARKER,
    redact_argv,
    redact_env,
    redact_text,
    redact_url,
    secret_segments,
)
from emceepee_stdio.journal.secret_names import is_secret_name

__all__ = ["PlainSecret", "plain_secrets", "references", "secret_name", "secrets_of", "without"]

_RANDOM = re.compile(r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{12,}")
_SCHEME = re.compile(r"(?:bearer|basic|token)\s+", re.IGNORECASE)
_ENV, _URLS, _OAUTH = ("env", "environment"), ("url", "serverUrl", "httpUrl"), "oauth"
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
_UNFIT_IN_VARIABLE = re.compile(r"^(?=\d)|[^A-Za-z0-9_]+")
_MAX_NAME_CHARS = 100
_ANY_REFERENCE = re.compile(r"\$\{[^}]*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSecret:
    """One of them, inside its text. Without `steps` it cannot be moved; `obstacle` says why."""

    server: str
    where: str
    value: str
    text: str
    steps: Steps | None = None
    obstacle: str = ""

    def __repr__(self) -> str:
        return f"<PlainSecret {self.place}>"

    @property
    def place(self) -> str:
        return f"{label(self.server)}: {self.where}"

    @property
    def name(self) -> str:
        """What it is called in the keyring, unless that is taken."""
        return secret_name(self.server, self.where.rpartition(".")[2])

    @property
    def is_argument(self) -> bool:
        return self.where.startswith("args[")

    @property
    def variable(self) -> str:
        """An environment variable that could hold it instead."""
        if self.steps is None or not self.where.startswith(_ENV):
            return self.own_variable
        return _UNFIT_IN_VARIABLE.sub("_", self.where.rpartition(".")[2])

    @property
    def own_variable(self) -> str:
        """The same, with the server in its name: others may have a variable of the same name."""
        key = self.where.rpartition(".")[2]
        if self._scheme and key.lower() == "authorization":
            key = "token"  # the name of the header would ask for the scheme as well
        return _UNFIT_IN_VARIABLE.sub("_", f"{self.server}_{key}".upper())

    def with_variable(self, variable: str) -> str:
        """What to write in the file: a reference, behind the scheme of a header."""
        return f"{self._scheme}${{{variable}}}"

    @property
    def _scheme(self) -> str:
        is_header = self.steps is not None and self.where.startswith("headers.")
        return self.text.removesuffix(self.value) if is_header else ""


def secret_name(server: str, key: str) -> str:
    """The usual name of a secret in the keyring."""
    return _UNFIT.sub("_", f"{server}.{key}").lstrip(".-")[:_MAX_NAME_CHARS] or "secret"


def plain_secrets(text: str | None) -> list[PlainSecret]:
    """Those in a configuration, in its order."""
    return [secret for place in places(text) for secret in _of_entry(place)]


def secrets_of(entries: Mapping[str, object]) -> list[PlainSecret]:
    """Those of servers that are written as in our own file."""
    return plain_secrets(json.dumps({SECTIONS[0]: dict(entries)}))


def without(text: str, moved: Mapping[str, PlainSecret]) -> str:
    """The text with a reference to its name in the place of each secret."""
    texts: dict[tuple[str | int, ...], str] = {}
    for name, secret in moved.items():
        if secret.steps is not None:
            steps = tuple(secret.steps)
            held = texts.get(steps, secret.text)
            texts[steps] = held.replace(secret.value, keyring_reference(name), 1)
    for steps, new in texts.items():
        text = jsonc.put(text, steps, new)
    return text


def references(text: str | None) -> dict[str, list[str]]:
    """Which servers refer to which names in the keyring."""
    found: dict[str, list[str]] = {}
    for place in places(text):
        for name in dict.fromkeys(_names(place.entry)):
            found.setdefault(name, []).append(label(place.name))
    return found


def _names(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from keyring_names(value)
    for part in value.values() if is_object(value) else value if is_list(value) else ():
        yield from _names(part)


def _of_entry(place: ConfigLocation) -> Iterator[PlainSecret]:
    entry = place.entry
    if not is_object(entry):
        return
    inner = entry.get("command")
    if is_object(inner):  # as Zed wrote it
        yield from _of_entry(ConfigLocation(place.name, inner, (*place.steps, "command")))
    for key in _ENV:
        yield from _of_env(place, key, _texts(entry.get(key)))
    yield from _of_headers(place, _texts(entry.get("headers")))
    for key in _URLS:
        yield from _of_url(place, key, entry.get(key))
    for key in ("client_secret", "clientSecret"):
        if value := _texts(entry.get(_OAUTH)).get(key):
            yield _found(place, (_OAUTH, key), value)
    yield from _of_args(place, entry.get("args"))
    for key in (*_ENV, "headers"):
        yield from _beside_references(place, key, entry.get(key))


def _of_env(place: ConfigLocation, key: str, env: Mapping[str, str]) -> Iterator[PlainSecret]:
    for name, value in env.items():
        if MARKER in redact_env({name: value})[name] or _RANDOM.search(value):
            yield _found(place, (key, name), value)


def _of_headers(place: ConfigLocation, headers: Mapping[str, str]) -> Iterator[PlainSecret]:
    for name, value in headers.items():
        scheme = _SCHEME.match(value)
        if scheme or is_secret_name(name) or _RANDOM.search(value):
            secret = value.removeprefix(scheme[0]) if scheme else value
            yield _found(place, ("headers", name), value, secret)


def _of_url(place: ConfigLocation, key: str, url: object) -> Iterator[PlainSecret]:
    if isinstance(url, str) and "${" not in url:
        for value in dict.fromkeys(filter(None, _parts_of(url))):
            yield _found(place, (key,), url, value)


def _parts_of(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    yield parts.netloc.rpartition("@")[0].partition(":")[2]
    yield from secret_segments(parts.path)
    for pair in parts.query.split("&"):
        if MARKER in redact_url(f"http://host/?{pair}"):
            yield pair.partition("=")[2]


def _beside_references(place: ConfigLocation, key: str, value: object) -> Iterator[PlainSecret]:
    """What the keyring holds is never expanded, so a text with a variable in it cannot go there."""
    for name, text in value.items() if is_object(value) else ():
        if not isinstance(text, str) or "${" not in text:
            continue
        rest = _ANY_REFERENCE.sub(" ", text)
        if _RANDOM.search(rest) or MARKER in redact_text(rest):
            yield PlainSecret(
                server=place.name,
                where=f"{key}.{name}",
                value=rest,
                text=text,
                obstacle="it refers to a variable as well. Store the secret part with `emceepee "
                "secrets set`, and write ${keyring:NAME} in its place.",
            )


def _of_args(place: ConfigLocation, args: object) -> Iterator[PlainSecret]:
    words = [word for word in args if isinstance(word, str)] if is_list(args) else []
    for index, (word, shown) in enumerate(zip(words, redact_argv(words), strict=True)):
        if MARKER in shown and "${" not in word:
            yield PlainSecret(
                server=place.name,
                where=f"args[{index}]",
                value=word,
                text=word,
                obstacle="other users see arguments. Give it in `env`, if you can.",
            )


def _found(place: ConfigLocation, steps: Steps, text: str, value: str | None = None) -> PlainSecret:
    return PlainSecret(
        server=place.name,
        where=".".join(map(str, steps)),
        value=value or text,
        text=text,
        steps=(*place.steps, *steps),
    )


def _texts(value: object) -> dict[str, str]:
    """Texts by name, without those that are empty or refer to something."""
    members: Iterable[tuple[str, object]] = value.items() if is_object(value) else ()
    return {
        name: text for name, text in members if isinstance(text, str) and text and "${" not in text
    }
