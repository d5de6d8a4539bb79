"""Paths and names in the files of the catalogue; light, for shell completion.

Loads nothing of the session: a shell that completes a name waits for it.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from emceepee_stdio import __version__
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.foreign_json import envelope_decoder
from emceepee_stdio.storage.private_file import read_own, state_directory
from emceepee_stdio.trust.targets import target_id

MAX_SERVER_BYTES = 4 << 20  # thousands of tools; a server with more is started to be known
_NAME_CHARS = 32  # of a digest: no two servers are alike in as many


def default_catalogue_directory(environ: Mapping[str, str]) -> Path:
    """Beside what people agreed to."""
    return state_directory(environ) / "catalogue"


def catalogue_identity(config: ServerConfig, key: bytes, version: str = __version__) -> str:
    """The same for the same server started in the same way; tells nothing of its secrets."""
    started_with = [
        target_id(config, key),
        sorted(config.env.items()),
        sorted(config.pass_env),
        config.cwd,
        sorted(config.headers.items()),
        version,
    ]
    text = json.dumps(started_with, separators=(",", ":"))
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def catalogue_path(directory: Path, identity: str) -> Path:
    return directory / f"{identity[:_NAME_CHARS]}.json"


class _Item(Struct):
    name: object = None


class _List(Struct):
    items: list[_Item] = []


class _Names(Struct):
    identity: str
    lists: dict[str, _List] = {}


_decode_names = envelope_decoder(_Names)


def listed_names(directory: Path, identity: str, kind: str) -> list[str]:
    """The names of what the server listed last; nothing where that is not known."""
    try:
        data = read_own(catalogue_path(directory, identity), most=MAX_SERVER_BYTES)
        record = _decode_names(data)
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeError):
        return []
    listed = record.lists.get(kind) if record.identity == identity else None
    items = listed.items if listed is not None else []
    return [item.name for item in items if isinstance(item.name, str)]
