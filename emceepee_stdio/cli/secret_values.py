"""Secrets in what a command shows: found, hidden, and shown only at a terminal."""

import json
import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, cast
from urllib.parse import urlsplit

from emceepee_stdio.auth import keyring_access
from emceepee_stdio.cli.command_line import flag
from emceepee_stdio.cli.terminal import asks_for_json, interrupts, terminal
from emceepee_stdio.config import jsonc
from emceepee_stdio.config.edit import Change, EditRefused, alone
from emceepee_stdio.config.fields import is_list, is_object, keyring_names, keyring_reference
from emceepee_stdio.config.jsonc import Steps
from emceepee_stdio.config.load import SECTIONS
from emceepee_stdio.config.own_file import ConfigLocation, places, texts_in
from emceepee_stdio.config.server import label
from emceepee_stdio.config.settings import FixedValues
from emceepee_stdio.errors import SecretUnavailable
from emceepee_stdio.json_values import elements, mapping, with_texts
from emceepee_stdio.redaction.known_secrets import Secrets, given_secrets
from emceepee_stdio.redaction.redact import (
    MARKER,
    redact,
    redact_argv,
    redact_env,
    redact_text,
    redact_url,
    secret_segments,
)
from emceepee_stdio.redaction.secret_patterns import is_secret_name, is_setting_name

ShowSecretsOption = Annotated[
    bool, flag("--show-secrets", about="Show secrets as well; at a terminal only.")
]
# Fields in which a text that is nothing but a reference is shown; a default may be a secret.
_REFERRING = frozenset({"env", "environment", "headers", "oauth"})
_REFERENCE = re.compile(r"(?:Bearer )?\$\{(?:(?:env|keyring):)?[\w.-]+\}", re.ASCII)
# Words, numbers and short mixtures of both, in a row: nothing that was made at random.
_PART = r"(?:[A-Za-z]{1,12}|\d{1,8}|[A-Za-z0-9]{1,3})"
_HARMLESS_FORM = re.compile(rf"(?=.{{1,40}}\Z){_PART}(?:[-_.:/ ]{_PART})*")
HIDDEN = "Secrets are hidden; --show-secrets shows them, at a terminal."


def require_terminal(*, show_secrets: bool) -> None:
    """Only a person may see them: what goes into a pipe is read by a program, or kept."""
    if show_secrets and not all(map(os.isatty, (0, 1, 2))):
        raise EditRefused(
            "Secrets are shown at a terminal only.",
            hint="Run the command yourself, at a terminal, or leave --show-secrets out.",
        )


def show_changes(
    changes: Sequence[Change], entries: Iterable[object], *, show_secrets: bool
) -> None:
    """Each change as a diff. `entries` are the servers in these files, whose secrets are hidden."""
    require_terminal(show_secrets=show_secrets)
    diffs = [change.diff() for change in changes]
    shown = diffs if show_secrets else _without_secrets(diffs, entries)
    if asks_for_json():
        told = [
            {"path": str(change.path), "change": change.kind, "diff": text}
            for change, text in zip(changes, shown, strict=True)
        ]
        terminal.document({"changes": told})
        return
    for text in shown:
        terminal.diff(text)
    if shown != diffs:
        terminal.note(HIDDEN)


def shown_entry(entry: object, entries: Iterable[object]) -> object:
    """An entry without what any of `entries` holds as a secret, and whatever may be one.

    A reference is none. Of headers, only the names and the references are shown.
    """
    known = Secrets()
    known.add(one for each in entries for one in entry_secrets(each) if "${" not in one)
    shown = redact(entry)
    if not is_object(shown) or not is_object(entry):
        return with_texts(shown, known.mask)
    if is_object(entry.get("tools")):
        shown["tools"] = entry["tools"]  # names of tools, of which some sound like secrets
    for key in _REFERRING & shown.keys():
        given, hidden = entry[key], shown[key]
        if is_object(given) and is_object(hidden):
            rest = dict.fromkeys(given, MARKER) if key == "headers" else hidden
            shown[key] = rest | {
                name: one
                for name, one in given.items()
                if isinstance(one, str) and _REFERENCE.fullmatch(one)
            }
    return with_texts(shown, known.mask)


def _without_secrets(diffs: Sequence[str], entries: Iterable[object]) -> list[str]:
    known = Secrets()
    known.add(secret for entry in entries for secret in entry_secrets(entry))

    def shown(line: str) -> str:
        # What a line only opens, is hidden or shown line by line.
        head = line.rstrip("{[ \t\r\n")
        return redact_text(head) + line[len(head) :]

    return ["".join(map(shown, known.mask(text).splitlines(keepends=True))) for text in diffs]


def entry_secrets(value: object) -> Iterator[str]:
    """In an entry of any client: variables, headers, addresses and arguments, at any depth."""
    if is_list(value):
        yield from given_secrets(argv=[item for item in value if isinstance(item, str)])
    items = value.items() if is_object(value) else enumerate(value) if is_list(value) else ()
    for key, item in items:
        name = str(key).lower()
        if is_object(item) and name.endswith(("env", "headers")):
            strings = {n: v for n, v in item.items() if isinstance(v, str)}
            if not name.endswith("env"):
                yield from given_secrets(headers=strings)
                continue
            # Of `REGION=eu-central-1` both the name and the form say that it is no secret.
            harmless = [n for n, v in strings.items() if _HARMLESS_FORM.fullmatch(v)]
            known = set(filter(is_setting_name, harmless))
            yield from given_secrets(env={n: v for n, v in strings.items() if n not in known})
        elif isinstance(item, str) and name.endswith("url"):
            yield from given_secrets(url=item)
        else:
            yield from entry_secrets(cast("object", item))


# Secrets that stand in plain text in our configuration, and what a reference to each looks like.
#
# By the names and forms that `redact` knows, and by values that look made at random. In doubt
# nothing is said: this is advice, while what is hidden is hidden in doubt.


_RANDOM = re.compile(r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{12,}")
_SCHEME = re.compile(r"(?:bearer|basic|token)\s+", re.IGNORECASE)
_ENV, _URLS, _OAUTH = ("env", "environment"), ("url", "serverUrl", "httpUrl"), "oauth"
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
_UNFIT_IN_VARIABLE = re.compile(r"^(?=\d)|[^A-Za-z0-9_]+")
_MAX_NAME_CHARS = 100
_ANY_REFERENCE = re.compile(r"\$\{[^}]*\}")
# Why a secret cannot be moved.
_ARGUMENT = "other users see arguments. Give it in `env`, if you can."
_BESIDE_REFERENCE = (
    "it refers to a variable as well. Store the secret part with `emceepee secrets set`, and write "
    "${keyring:NAME} in its place."
)


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


def note_plain(file: Path, found: Iterable[PlainSecret], command: str) -> None:
    """The one line of every command on secrets in plain text: where they are, and what helps.

    What there is to say beside it, `emceepee doctor` and `emceepee secrets move` say.
    """
    if where := ", ".join(dict.fromkeys(one.place for one in found)):
        terminal.note(f"Secrets in plain text in {file}: {where}. To change that: {command}")


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
        names = (name for text in texts_in(place.entry) for name in keyring_names(text))
        for name in dict.fromkeys(names):
            found.setdefault(name, []).append(label(place.name))
    return found


def _of_entry(place: ConfigLocation) -> Iterator[PlainSecret]:
    entry = place.fields
    inner = entry.get("command")
    if is_object(inner):  # as Zed wrote it
        yield from _of_entry(ConfigLocation(place.name, inner, (*place.steps, "command")))
    for key in _ENV:
        yield from _of_env(place, key, _texts(entry.get(key)))
    yield from _of_headers(place, _texts(entry.get("headers")))
    for key in _URLS:
        url = entry.get(key)
        if isinstance(url, str) and "${" not in url:
            for value in dict.fromkeys(filter(None, _parts_of(url))):
                yield _found(place, (key,), url, value)
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


def _of_args(place: ConfigLocation, args: object) -> Iterator[PlainSecret]:
    words = [word for word in elements(args) if isinstance(word, str)]
    for index, (word, shown) in enumerate(zip(words, redact_argv(words), strict=True)):
        if MARKER in shown and "${" not in word:
            yield _found(place, (f"args[{index}]",), word, obstacle=_ARGUMENT)


def _of_headers(place: ConfigLocation, headers: Mapping[str, str]) -> Iterator[PlainSecret]:
    for name, value in headers.items():
        scheme = _SCHEME.match(value)
        if scheme or is_secret_name(name) or _RANDOM.search(value):
            secret = value.removeprefix(scheme[0]) if scheme else value
            yield _found(place, ("headers", name), value, secret)


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
    for name, text in mapping(value).items():
        if not isinstance(text, str) or "${" not in text:
            continue
        rest = _ANY_REFERENCE.sub(" ", text)
        if _RANDOM.search(rest) or MARKER in redact_text(rest):
            yield _found(place, (key, name), text, rest, obstacle=_BESIDE_REFERENCE)


def _found(
    place: ConfigLocation, steps: Steps, text: str, value: str | None = None, *, obstacle: str = ""
) -> PlainSecret:
    return PlainSecret(
        server=place.name,
        where=".".join(map(str, steps)),
        value=value or text,
        text=text,
        steps=None if obstacle else (*place.steps, *steps),
        obstacle=obstacle,
    )


def _texts(value: object) -> dict[str, str]:
    """Texts by name, without those that are empty or refer to something."""
    found = {name: text for name, text in mapping(value).items() if isinstance(text, str)}
    return {name: text for name, text in found.items() if text and "${" not in text}


# Putting secrets into the keyring so that they are there afterwards, or nothing has changed.
#
# A keyring may take a value and forget it, or keep a part of it. What was stored is therefore read
# by another process, and where that finds something else the keyring gets back what it had.


_PLAIN_FILE = (
    "This keyring is a file without encryption (PlaintextKeyring of the package keyrings.alt): the "
    "secret is in plain text there. Install a keyring that encrypts, and store the secret again."
)
# For a server that is to refer to the keyring, and may refer to variables instead.
VARIABLE_INSTEAD = (
    "Refer to an environment variable instead: `emceepee config add NAME -e K -- COMMAND` writes "
    "${K}; set K where the client is started. Or install a keyring: "
    f"{keyring_access.KEYRINGS_PAGE} lists them."
)


class KeyringStorage:
    """The keyring as commands use it. Each method waits until it has answered."""

    def __init__(self) -> None:
        # An event loop and processes: not for those who only want to see the help.
        from emceepee_stdio.session.channel_maker import KeyringClient  # noqa: PLC0415

        self._client = partial(KeyringClient, os.environ, within=FixedValues().keyring_s)
        self.names = keyring_access.StoredNames(os.environ)

    def is_absent(self) -> bool:
        """Whether this machine has no keyring that can be used. Nobody is asked to unlock one."""
        return interrupts.run(lambda: self._client().is_absent())

    def require(self, hint: str = keyring_access.NO_KEYRING.hint) -> None:
        """Raises where there is no keyring."""
        if self.is_absent():
            raise SecretUnavailable(f"{keyring_access.NO_KEYRING.problem}.", hint=hint)

    def look_up(self, names: Sequence[str]) -> dict[str, str]:
        """Those that the keyring has."""
        return interrupts.run(lambda: self._client().look_up(names)) if names else {}

    def secrets(self, names: Sequence[str]) -> dict[str, str]:
        """All of these; raises where one is not there."""
        from emceepee_stdio.session.channel_maker import require  # noqa: PLC0415 - see above

        found = self.look_up(names)
        require(names, found)
        return found

    def store(self, secrets: Mapping[str, str]) -> dict[str, str]:
        """All of them or none; what the keyring held under these names before."""
        former = self.look_up(list(secrets))
        try:
            answer = self._change(keyring_access.KeyringOrder(put=dict(secrets)))
            self._check(secrets)
        except BaseException:
            self.restore(secrets, former)
            raise
        self.names.add(secrets)
        if answer.is_plain:
            terminal.note(_PLAIN_FILE)
        return former

    @contextmanager
    def storing(self, secrets: Mapping[str, str]) -> Generator[None]:
        """They are there inside of it, and stay unless it fails."""
        with alone():  # else one that fails would take back what another has stored meanwhile
            former = self.store(secrets)
            try:
                yield
            except BaseException:
                self.restore(secrets, former)
                raise

    def restore(self, secrets: Mapping[str, str], former: Mapping[str, str]) -> None:
        """What was stored is taken back. A keyring that fails now holds more than it should."""
        new = tuple(name for name in secrets if name not in former)
        try:
            self._change(keyring_access.KeyringOrder(put=dict(former), remove=new))
        except SecretUnavailable:
            return
        for name in new:
            self.names.discard(name)

    def remove(self, name: str) -> bool:
        """Whether it was there."""
        was_there = name in self.look_up([name])
        if was_there:
            self._change(keyring_access.KeyringOrder(remove=(name,)))
        self.names.discard(name)
        return was_there

    def _check(self, secrets: Mapping[str, str]) -> None:
        held = self.look_up(list(secrets))
        for name, value in secrets.items():
            if name not in held:
                raise SecretUnavailable(
                    f"The keyring took {name} and does not have it: it keeps nothing.",
                    hint="Choose another backend for the Python package keyring, or refer to an "
                    "environment variable instead, ${NAME}.",
                )
            if held[name] != value:
                raise SecretUnavailable(
                    f"The keyring took {name}, of {len(value)} characters, and gives back "
                    f"something else, of {len(held[name])}.",
                    hint="It may be too long for this keyring: refer to an environment variable "
                    "instead, ${NAME}.",
                )

    def _change(self, order: keyring_access.KeyringOrder) -> keyring_access.KeyringAnswer:
        return interrupts.run(lambda: self._client().change(order))
