"""`emceepee doctor --report`: one file for a bug report, without secrets.

Nothing is sent. Everything in the file passes the same three filters, whatever it came from: values
that the configuration holds as secrets, patterns and names of secrets, the home directory.
"""

import json
import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import msgspec

from emceepee_stdio import __version__
from emceepee_stdio.cli.doctor.report import Report
from emceepee_stdio.cli.secret_values import entry_secrets, shown_entry
from emceepee_stdio.cli.terminal import JSON_VERSION, Terminal
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.edit import EditRefused, read_file
from emceepee_stdio.config.fields import is_list, is_object
from emceepee_stdio.config.jsonc import Unreadable
from emceepee_stdio.config.jsonc import read as read_json
from emceepee_stdio.config.own_file import places
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.journal import Secrets, default_directory, given_secrets, redact
from emceepee_stdio.storage.private_file import PRIVATE_FILE_MODE
from emceepee_stdio.trace.request_records import RequestRecord
from emceepee_stdio.trace.trace_reader import RequestReader, without_payloads

_MAX_REQUESTS = 200  # the end of a session: a person looks through all of it before it is sent
_DISTRIBUTION = "emceepee-stdio"
_PACKAGE = re.compile(r"[\w.-]+", re.ASCII)  # the name with which a requirement begins
_ABOUT = (
    "Made by `emceepee doctor --report` for a bug report. Secrets are hidden as far as they are"
    " recognised; names of servers, their commands, addresses and stderr are not. Read it before"
    " you send it."
)


def refuse_existing(path: Path) -> None:
    """A report takes nobody's place, and there is no need to try the servers first."""
    if os.path.lexists(path):
        raise EditRefused(
            f"{path} exists already.", hint="Nothing was written; name a file that does not exist."
        )
    if not path.absolute().parent.is_dir():
        raise EditRefused(
            f"The directory of {path} does not exist.",
            hint="Nothing was written; make it, or name another file.",
        )


def write_bug_report(path: Path, report: Report, config: Path, terminal: Terminal) -> None:
    """Write the file and say what is in it."""
    text = _read(config)
    requests = _last_requests(default_directory(os.environ))
    document: dict[str, object] = {
        "schema_version": JSON_VERSION,
        "about": _ABOUT,
        "made_at": Clock().iso(Clock().now()),
        "versions": {"emceepee": __version__, "python": sys.version, **_packages()},
        "platform": platform.platform(),
        "configuration": _configuration(config, text),
        "doctor": msgspec.to_builtins(report),
        "trace": [msgspec.to_builtins(request) for request in requests],
    }
    shown = _clean(redact(document), _secrets(text))
    _write(path, json.dumps(shown, indent=2, ensure_ascii=False) + "\n")
    count = f"the last {len(requests)} requests, without arguments and results"
    last = count if requests else "no requests, because none is recorded"
    for line in (
        f"Wrote {path}, which only you can read. Nothing was sent.",
        (
            "It has: versions and platform; the configuration with secrets hidden; "
            f"what doctor found; {last}."
        ),
        "It names your servers, their commands and addresses, and what they wrote to stderr.",
        "Read it before you send it to anybody: no program finds every secret.",
    ):
        terminal.note(line)


def _read(config: Path) -> str:
    try:
        return read_file(config) or ""
    except ConfigInvalid:
        return ""


def _packages() -> dict[str, str]:
    """The versions of what emceepee is built on."""
    try:
        names = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, str] = {}
    for requirement in names:
        if "extra ==" in requirement:
            continue
        if named := _PACKAGE.match(requirement):
            try:
                found[named[0]] = metadata.version(named[0])
            except metadata.PackageNotFoundError:
                found[named[0]] = "not installed"
    return found


def _configuration(path: Path, text: str) -> dict[str, object]:
    try:
        found = list(places(text))
        document = read_json(text)
    except Unreadable:
        return {"path": str(path), "problem": "it is not valid JSON; doctor says where."}
    entries = [place.entry for place in found]
    return {
        "path": str(path),
        "servers": {place.name: shown_entry(place.entry, entries) for place in found},
        "settings": document.get("emceepee") if is_object(document) else None,
    }


def _secrets(text: str) -> Secrets:
    """What the entries hold, and what the variables hold to which they refer."""
    known = Secrets()
    try:
        values = [one for place in places(text) for one in entry_secrets(place.entry)]
    except Unreadable:
        values = []
    named = {name: value for name, value in os.environ.items() if name in text}
    known.add([*(one for one in values if "${" not in one), *given_secrets(env=named)])
    return known


def _last_requests(directory: Path) -> list[RequestRecord]:
    """The end of the last session, without payloads."""
    reader = RequestReader(directory)
    try:
        return list(_of_one_session(reader))[::-1]
    finally:
        reader.close()


def _of_one_session(reader: RequestReader) -> Iterator[RequestRecord]:
    session, count = None, 0
    for line in reader.backward():
        if not isinstance(line.record, RequestRecord):
            continue
        session = session or line.record.session
        if line.record.session == session:
            yield without_payloads(line.record)
            count += 1
        if count == _MAX_REQUESTS:
            return


def _clean(value: object, known: Secrets) -> object:
    if is_object(value):
        return {_text(name, known): _clean(one, known) for name, one in value.items()}
    if is_list(value):
        return [_clean(one, known) for one in value]
    return _text(value, known) if isinstance(value, str) else value


def _text(text: str, known: Secrets) -> str:
    home = str(Path.home())
    return known.mask(text).replace(home, "~") if len(home) > 1 else known.mask(text)


def _write(path: Path, text: str) -> None:
    """New, and for its owner alone from the first byte on."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(path, flags, PRIVATE_FILE_MODE), "wb") as file:
        file.write(text.encode("utf-8", "backslashreplace"))
