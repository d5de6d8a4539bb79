"""The greeting file: what is known of the servers, read before anything else is loaded.

It lets the greeting name the servers before the configuration is read, and list what of them is
exposed. There is one for each configuration file, rendered from the catalogue and kept beside it.
The first line names the configuration and the servers; the others are the exposed lists, as the
bytes that a client is sent: to decode them would take longer than everything else. It counts only
for the same version of emceepee and the same, untouched configuration file. If it does not count,
the servers are named as the configuration file names them, and nothing is exposed.

What it holds may come from servers: it is bounded and made harmless here. Only the standard library
is used: this is loaded before anything else.
"""

import json
import os
import re
import sys
from binascii import crc32
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from emceepee_stdio import __version__
from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.storage.private_file import Stamp, read_own, read_regular, stamp_of

MAX_BYTES = 1 << 20  # thousands of servers; nothing larger is ours
LISTS = ("tools", "prompts", "resources", "resourceTemplates")  # what a client lists
_HEAD_BYTES = 200  # of the first line, beside what is counted: sizes and a sum
_LINE_CHARS = 80  # what a server is for, in one line of a terminal
_NAME_CHARS = 64  # as long as the configuration lets a name be
_UNREADABLE = (OSError, RuntimeError, ValueError, LookupError, TypeError, RecursionError)


class Greeted(NamedTuple):
    """A configured server. `own_words` where the line is what the server says of itself."""

    name: str
    line: str = ""
    own_words: bool = False


class Greeting(NamedTuple):
    """What a run begins with. `exposed` are the insides of lists."""

    servers: Sequence[Greeted] = ()
    exposed: Mapping[str, bytes] = {}
    records: Mapping[str, str] = {}  # in the catalogue, from which they were rendered, by server


def greeting_file(config: str, environ: Mapping[str, str]) -> str:
    """Where the greeting of a configuration file is: in the catalogue, which makes room for it."""
    chosen = environ.get("EMCEEPEE_STATE_DIR")
    state = (
        os.path.expanduser(chosen) if chosen else _ours(environ, "XDG_STATE_HOME", ".local/state")
    )
    return os.path.join(state, "catalogue", f"greeting-{crc32(os.fsencode(config)):08x}.json")


def _ours(environ: Mapping[str, str], variable: str, otherwise: str) -> str:
    """The platform's place for files of ours, without what finds it for the rest of the program."""
    home = environ.get("HOME") or environ.get("USERPROFILE") or "/"
    chosen = environ.get(variable, "")
    places = {
        "win32": environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local"),
        "darwin": os.path.join(home, "Library/Application Support"),
        "linux": chosen if os.path.isabs(chosen) else os.path.join(home, otherwise),
    }
    return os.path.join(places.get(sys.platform, places["linux"]), "emceepee")


def config_file(arguments: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """The configuration file of this run; None where it has servers of its own, or a mistake."""
    named = os.path.expanduser(environ.get("EMCEEPEE_CONFIG") or "")
    given = list(arguments)
    while given:
        option, joined, value = given.pop(0).partition("=")
        if option not in ("--config", "--policy") or not (joined or given):
            return None
        value = value if joined else given.pop(0)
        named = value if option == "--config" else named
    if named:
        return os.path.abspath(named)
    return os.path.join(_ours(environ, "XDG_CONFIG_HOME", ".config"), "config.json")


def read_greeting(arguments: Sequence[str], environ: Mapping[str, str]) -> Greeting:
    """What is known of the configured servers; nothing where that is not sure."""
    config = config_file(arguments, environ)
    if config is not None:
        with suppress(*_UNREADABLE):
            return _remembered(config, environ)
        with suppress(*_UNREADABLE):
            return Greeting(tuple(_named_in(config)))
    return Greeting()


def written_greeting(*, config: str, file: str, stamp: Stamp, greeting: Greeting) -> bytes:
    """The file's contents; without what is exposed where that would make it too large.

    `config` is the file as the command line names it, `file` the one that was read.
    """
    parts = [greeting.exposed.get(name, b"") for name in LISTS]
    held: dict[str, object] = {
        "version": __version__,
        "config": config,
        "file": file,
        "stamp": stamp,
        "servers": [
            [_shown(one.name), _shown(one.line), one.own_words] for one in greeting.servers
        ],
        "records": greeting.records,
    }
    rest = b"".join(part + b"\n" for part in parts)
    if len(rest) + len(json.dumps(held)) > MAX_BYTES - _HEAD_BYTES:
        parts, rest = [b""] * len(parts), b"\n" * len(parts)
    held |= {"sizes": [len(part) for part in parts], "sum": crc32(rest)}
    return json.dumps(held, separators=(",", ":")).encode() + b"\n" + rest


def _remembered(config: str, environ: Mapping[str, str]) -> Greeting:
    """The greeting file; ValueError where it is about something else than what is there now."""
    head, _, rest = read_own(greeting_file(config, environ), most=MAX_BYTES).partition(b"\n")
    held = mapping(json.loads(head))
    now = stamp_of(os.stat(cast("str", held["file"])))
    if (held["version"], held["config"], held["stamp"]) != (__version__, config, [*now]):
        raise ValueError("not of this configuration")
    servers = tuple(map(_greeted, cast("list[object]", held["servers"])))
    lengths = cast("list[int]", held["sizes"])
    if len(lengths) != len(LISTS) or sum(lengths) + len(LISTS) != len(rest):
        raise ValueError("not of the size that was written")
    if crc32(rest) != held["sum"]:
        raise ValueError("not what was written")
    exposed: dict[str, bytes] = {}
    for name, length in zip(LISTS, lengths, strict=True):
        exposed[name], rest = rest[:length], rest[length + 1 :]
    records = {name: str(record) for name, record in mapping(held["records"]).items()}
    return Greeting(servers, exposed, records)


def _named_in(config: str) -> Iterator[Greeted]:
    """The servers that a configuration file names."""
    if os.stat(config).st_size > MAX_BYTES:
        return
    data = read_regular(config)
    try:
        document = mapping(json.loads(data))
    except ValueError:
        document = mapping(json.loads(_plain(data.decode("utf-8-sig"))))
    for section in ("mcpServers", "servers", "context_servers"):
        listed = map(mapping, elements(document.get(section)))
        named = {str(entry.get("name", "")): entry for entry in listed}
        for name, value in {**mapping(document.get(section)), **named}.items():
            entry = mapping(value)
            is_off = entry.get("disabled") is True or False in (
                entry.get("enabled"),
                entry.get("isActive"),
            )
            if entry and name and name.casefold() != "emceepee" and not is_off:
                about = entry.get("description")
                line = _shown(about) if isinstance(about, str) else ""
                yield Greeted(_shown(name, _NAME_CHARS), line)


def _plain(text: str) -> str:
    """JSON as people write it, without its comments and trailing commas."""
    string = r'("(?:[^"\\]++|\\.)*+"?+)'
    bare = re.sub(rf"{string}|//[^\n]*|/\*.*?(?:\*/|\Z)", r"\1 ", text, flags=re.DOTALL)
    return re.sub(rf"{string}|,(?=\s*[]}}])", r"\1", bare, flags=re.DOTALL)


def _greeted(item: object) -> Greeted:
    name, line, own_words = cast("list[object]", item)
    if not (isinstance(name, str) and isinstance(line, str) and isinstance(own_words, bool)):
        raise TypeError("not a server")
    return Greeted(_shown(name, _NAME_CHARS), _shown(line), own_words)


def _shown(text: str, limit: int = _LINE_CHARS) -> str:
    """On one line, without what cannot be seen, and not endless."""
    plain = "".join(char if char.isprintable() else " " for char in text[: limit * 10])
    line = " ".join(plain.replace('"', "'").split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
