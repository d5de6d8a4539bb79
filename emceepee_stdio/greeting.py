"""The greeting file: what the last run knew of the servers, read before anything else is loaded.

It lets the greeting name the servers before the configuration is read, and list what of them is
exposed. The first line says which run it is from, and names the servers; what follows are the
exposed lists, as the bytes that a client is sent: they are taken as they are, because reading them
would take longer than all the rest. It counts only for the same
version of emceepee and the same, untouched configuration file; whatever else is wrong with it, it
is as good as none. What it holds may come from servers: it is bounded and made harmless here,
whoever wrote the file. Only the standard library is used: this is loaded before anything else.
"""

import json
import os
import stat
import sys
from binascii import crc32
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from emceepee_stdio import __version__
from emceepee_stdio.json_values import mapping

MAX_BYTES = 1 << 20  # thousands of servers; nothing larger is ours
LISTS = ("tools", "prompts", "resources", "resourceTemplates")  # what a client lists
_HEAD_BYTES = 200  # of the first line, beside what is counted: sizes and a sum
_LINE_CHARS = 80  # what a server is for, in one line of a terminal
_NAME_CHARS = 64  # as long as the configuration lets a name be
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

Stamp = tuple[int, int, int]  # inode, size and time of the last change, in ns


class Greeted(NamedTuple):
    """A configured server. `own_words` where the line is what the server says of itself."""

    name: str
    line: str = ""
    own_words: bool = False


class Greeting(NamedTuple):
    """What a run begins with. `exposed` are the insides of lists; `owners` says whose they are."""

    servers: Sequence[Greeted] = ()
    exposed: Mapping[str, bytes] = {}
    owners: bytes = b""


def greeting_file(environ: Mapping[str, str]) -> str:
    """Where it is kept: with the rest of what the proxy remembers."""
    if chosen := environ.get("EMCEEPEE_STATE_DIR"):
        return str(Path(chosen).expanduser() / "greeting.json")
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or "/")
    if sys.platform == "win32":
        base = Path(environ.get("LOCALAPPDATA") or home / "AppData/Local")
    elif sys.platform == "darwin":
        base = home / "Library/Application Support"
    else:
        base = Path(environ.get("XDG_STATE_HOME") or home / ".local/state")
    return str(base / "emceepee" / "greeting.json")


def config_file(arguments: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """What says which configuration this run has; None where only reading it all would tell.

    The file that is named, or else what the platform's own place for it depends on.
    """
    named = os.path.expanduser(environ.get("EMCEEPEE_CONFIG") or "")  # noqa: PTH111 - as text
    given = list(arguments)
    while given:
        option, joined, value = given.pop(0).partition("=")
        if option not in ("--config", "--policy") or not (joined or given):
            return None  # servers of this run only, or a mistake
        value = value if joined else given.pop(0)
        named = value if option == "--config" else named
    if named:
        return os.path.abspath(named)  # noqa: PTH100 - as text
    places = (environ.get(name, "") for name in ("HOME", "XDG_CONFIG_HOME", "APPDATA"))
    return f"default:{':'.join(places)}"


def read_greeting(arguments: Sequence[str], environ: Mapping[str, str]) -> Greeting:
    """What the last run knew of the configured servers; nothing where that is not sure."""
    asked = config_file(arguments, environ)
    if asked is None:
        return Greeting()
    try:
        held_bytes = own_bytes(greeting_file(environ), MAX_BYTES)
        head, _, rest = held_bytes.partition(b"\n")
        held = mapping(json.loads(head))
        path, stamp = held["file"], held["stamp"]
        if (held["version"], held["asked"]) != (__version__, asked) or not isinstance(path, str):
            return Greeting()
        found = os.stat(path)  # noqa: PTH116 - as text
        if stamp != [found.st_ino, found.st_size, found.st_mtime_ns]:
            return Greeting()
        servers = tuple(map(_greeted, cast("list[object]", held["servers"])))
        exposed, owners = _exposed(rest, held["sizes"], held["sum"])
        return Greeting(servers, exposed, owners)
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, RecursionError):
        return Greeting()


def written_greeting(*, asked: str, file: str, stamp: Stamp, greeting: Greeting) -> bytes:
    """The file's contents; without what is exposed where that would make it too large."""
    parts = [*(greeting.exposed.get(name, b"") for name in LISTS), greeting.owners]
    held: dict[str, object] = {
        "version": __version__,
        "asked": asked,
        "file": file,
        "stamp": stamp,
        "servers": [
            [_shown(one.name), _shown(one.line), one.own_words] for one in greeting.servers
        ],
    }
    rest = b"".join(part + b"\n" for part in parts)
    if len(rest) + len(json.dumps(held)) > MAX_BYTES - _HEAD_BYTES:
        parts, rest = [b""] * len(parts), b"\n" * len(parts)
    held |= {"sizes": [len(part) for part in parts], "sum": crc32(rest)}
    return json.dumps(held, separators=(",", ":")).encode() + b"\n" + rest


def _exposed(rest: bytes, sizes: object, checksum: object) -> tuple[dict[str, bytes], bytes]:
    """The lists and whose they are, where every byte of them is as it was written."""
    lengths = cast("list[int]", sizes)
    if len(lengths) != len(LISTS) + 1 or crc32(rest) != checksum:
        raise ValueError("not what was written")
    parts: list[bytes] = []
    start = 0
    for length in lengths:
        parts.append(rest[start : start + length])
        start += length + 1
    if start != len(rest):
        raise ValueError("not what was written")
    return dict(zip(LISTS, parts, strict=False)), parts[-1]


def own_bytes(path: str, limit: int) -> bytes:
    """All of a regular file that only we can have written."""
    descriptor = os.open(path, _FLAGS)
    try:
        found = os.fstat(descriptor)
        ours = sys.platform == "win32" or found.st_uid == os.geteuid()
        private = os.name != "posix" or not found.st_mode & _WRITABLE_BY_OTHERS
        if not (stat.S_ISREG(found.st_mode) and ours and private and found.st_size <= limit):
            raise ValueError("not our file")
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


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
