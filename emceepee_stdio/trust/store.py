"""The store of approvals and of requests that wait: private files.

Several proxies and the command line share them: each change reads, alters and writes the file under
a lock, whole or not at all. A file that cannot be read counts as empty; one that cannot be written
is the caller's to tell.
"""

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from emceepee_stdio.clock import HOUR_S
from emceepee_stdio.foreign_json import opened
from emceepee_stdio.redaction.redact import redact_text
from emceepee_stdio.storage import private_file
from emceepee_stdio.storage.file_lock import file_lock
from emceepee_stdio.trust.tool_pins import Pinned, Pins

# Text that lies in a file and is to be read only with our key: sealed, and opened again.
#
# The key lies beside it, for its owner alone. So this keeps values out of sight where the file is
# shown, copied or attached to a report; it keeps them from nobody who reads the whole directory.


_NONCE_BYTES = 16
_TAG_BYTES = 32


def seal(key: bytes, text: str) -> str:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    hidden = nonce + _mixed(key, nonce, text.encode("utf-8", "surrogatepass"))
    return b64encode(hidden + _tag(key, hidden)).decode()


def unseal(key: bytes, sealed: str) -> str | None:
    """The text; None when it was sealed with another key, or changed."""
    try:
        data = b64decode(sealed, validate=True)
        hidden, tag = data[:-_TAG_BYTES], data[-_TAG_BYTES:]
        if not hmac.compare_digest(tag, _tag(key, hidden)):
            return None
        nonce, rest = hidden[:_NONCE_BYTES], hidden[_NONCE_BYTES:]
        return _mixed(key, nonce, rest).decode("utf-8", "surrogatepass")
    except ValueError:
        return None


def _mixed(key: bytes, nonce: bytes, data: bytes) -> bytes:
    """With a stream that nobody can make without the key; the nonce is never used again."""
    stream = hashlib.shake_256(b"emceepee-seal" + key + nonce).digest(len(data))
    return bytes(a ^ b for a, b in zip(data, stream, strict=True))


def _tag(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, b"emceepee-tag" + data, hashlib.sha256).digest()


ONE_CALL_LIFETIME_S = HOUR_S  # a call that is not made by then was another intention

_KEY_BYTES = 32  # as long as what HMAC-SHA-256 puts out; RFC 2104 advises at least that
_MAX_APPROVALS = 1_000  # every change writes the whole file; the oldest make room
_MAX_PENDING = 100  # more than a person will read through
_MAX_SERVERS = 300  # whose tools are pinned
_MAX_FILE_BYTES = 4 << 20  # of pins and of what waits: they hold texts of servers
_MAX_READ_BYTES = 256 << 20  # more than pins of as many servers as are known take
_MAX_KNOWN_SERVERS = 3_000  # nobody configures as many: those of years of editing go
_LOCK_TIMEOUT_S = 2.0  # whoever holds it does so for milliseconds
ID_CHARS = 8  # short to type, and two of a hundred are hardly ever alike

T = TypeVar("T", bound="Struct")


class Approval(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That a person agreed: to what, as a keyed hash, and in words that hold no secret.

    `until` makes it an agreement to one call, good until then.
    """

    digest: str
    name: str
    at: str
    what: str = ""
    until: str = ""

    @property
    def id(self) -> str:
        return self.digest[:ID_CHARS]


class Pending(Struct, frozen=True, kw_only=True):
    """What waits for a person: a server; with `tool`, one call; with `tools`, changes of a server.

    `text` holds no secret. Where something is hidden in it, `sealed` is the whole text. `token` is
    the HTTP client for which it waits.
    """

    digest: str
    name: str
    text: str
    at: str
    tools: dict[str, Pinned] | None = None
    identity: str | None = None
    sealed: str | None = None
    instructions: Pinned | None = None
    tool: str | None = None
    standing: str | None = None  # stands for every call of the tool
    client: str = ""  # whose model wants it
    session: str = ""
    token: str = ""

    @property
    def id(self) -> str:
        return self.digest[:ID_CHARS]

    @property
    def about(self) -> str:
        """What it is that waits."""
        if self.tool is not None:
            return f"a call of {self.tool}"
        return "a new server" if self.tools is None else "changed tools"

    def redacted(self) -> str:
        """What may be shown to anybody; an earlier version kept the text of a server whole."""
        if self.tools is not None or self.sealed is not None:
            return self.text
        return "\n".join(map(redact_text, self.text.split("\n")))

    def whole(self, key: bytes) -> str:
        """What only the person may be shown."""
        return self.text if self.sealed is None else unseal(key, self.sealed) or self.text

    def target(self) -> str:
        """The command or the address of a server, without secrets."""
        lines = [line.partition(": ") for line in self.redacted().split("\n")]
        return next((what for label, _, what in lines if label in ("Command", "Address")), "")


class _Approvals(Struct, kw_only=True):
    granted: list[Approval] = field(default_factory=list[Approval])


class _Waiting(Struct, kw_only=True):
    """`refused` are digests, for the sessions that wait for an answer."""

    waiting: list[Pending] = field(default_factory=list[Pending])
    refused: list[str] = field(default_factory=list[str])


class _Pins(Struct, kw_only=True):
    """By target. Those that a model added are `passing`: they make room, for each other only."""

    servers: dict[str, dict[str, Pinned]] = field(default_factory=dict[str, dict[str, Pinned]])
    instructions: dict[str, Pinned] = field(default_factory=dict[str, Pinned])
    passing: list[str] = field(default_factory=list[str])

    def forget(self, target: str) -> None:
        self.servers.pop(target, None)
        self.instructions.pop(target, None)

    def is_full(self) -> bool:
        return len(self.servers) > _MAX_SERVERS or len(msgspec.json.encode(self)) > _MAX_FILE_BYTES


def default_trust_directory(environ: Mapping[str, str]) -> Path:
    """EMCEEPEE_STATE_DIR, or the platform's own place for what a program remembers."""
    directory = private_file.state_directory(environ)
    return directory if environ.get("EMCEEPEE_STATE_DIR") else directory / "trust"


class TrustStore:
    """The files in one directory. Blocking: the session calls it in a thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._key: bytes | None = None

    def key(self) -> bytes:
        """What makes the hashes ours; where it cannot be kept, it lasts as long as we do."""
        if self._key is None:
            self._key = self._kept_key()
        return self._key

    def existing_key(self) -> bytes | None:
        """The same, where it was made before."""
        return _private_key(self.directory / "key")

    # Approvals

    def stamp(
        self, names: Iterable[str] = ("approvals.json", "pins.json")
    ) -> tuple[private_file.Stamp | None, ...] | None:
        """Another after every change of what was agreed to; None while no file can be seen."""
        files = (self.directory / name for name in names)
        stamps = tuple(map(private_file.file_stamp, files))
        return stamps if any(one and one[0] > 0 for one in stamps) else None

    def is_approved(self, digest: str) -> bool:
        return any(one.digest == digest and not one.until for one in self.granted())

    def granted(self) -> list[Approval]:
        return self._read("approvals", _Approvals).granted

    def approve(self, digest: str, *, name: str, at: str, what: str = "", until: str = "") -> None:
        approval = Approval(digest=digest, name=name, at=at, what=what, until=until)
        with self._changing("approvals", _Approvals) as file:
            file.granted = [one for one in file.granted if one.digest != digest]
            file.granted.append(approval)
            del file.granted[:-_MAX_APPROVALS]
        self.settle(digest)

    def allow(self, pending: Pending, *, at: str, once_until: str | None = None) -> None:
        """What a person agreed to: for one time before `once_until`, or from now on."""
        if pending.tools is not None:
            self.agree(pending)
            return
        what = pending.target() if pending.tool is None else f"every call of {pending.tool}"
        digest = pending.standing or pending.digest
        if once_until is not None:
            digest = pending.digest
            what = what if pending.tool is None else f"one call of {pending.tool}"
        self.approve(digest, name=pending.name, at=at, what=what, until=once_until or "")
        self.settle(pending.digest)

    def redeem(self, digest: str, *, now: str) -> bool:
        """Use up an agreement to one call, if there is one that is still good."""
        if not any(one.digest == digest and one.until > now for one in self.granted()):
            return False
        with self._changing("approvals", _Approvals) as file:
            is_good = any(one.digest == digest and one.until > now for one in file.granted)
            file.granted = [
                one
                for one in file.granted
                if not one.until or (one.until > now and one.digest != digest)
            ]
        return is_good

    def revoke(self, digest: str) -> None:
        with self._changing("approvals", _Approvals) as file:
            file.granted = [one for one in file.granted if one.digest != digest]

    # What waits

    def waiting(self) -> list[Pending]:
        return self._read("pending", _Waiting).waiting

    def wait_for(self, pending: Pending) -> None:
        """Put it where `emceepee approve` finds it.

        The oldest make room, of the token that takes most of it: no client pushes out what waits
        for another.
        """
        with self._changing("pending", _Waiting) as file:
            file.waiting = [
                one
                for one in file.waiting
                if one.digest != pending.digest
                and (pending.identity is None or one.identity != pending.identity)
            ]
            file.waiting.append(pending)
            file.refused = [one for one in file.refused if one != pending.digest]
            while len(file.waiting) > _MAX_PENDING:
                _drop_one(file.waiting, lambda _: 1)
            while len(file.waiting) > 1 and len(msgspec.json.encode(file)) > _MAX_FILE_BYTES:
                _drop_one(file.waiting, lambda one: len(one.text) + len(one.sealed or ""))

    def settle(self, digest: str) -> None:
        if any(one.digest == digest for one in self.waiting()):
            with self._changing("pending", _Waiting) as file:
                file.waiting = [one for one in file.waiting if one.digest != digest]

    def refuse(self, digest: str) -> None:
        """As `settle`, and whoever waits for the answer learns it."""
        with self._changing("pending", _Waiting) as file:
            file.waiting = [one for one in file.waiting if one.digest != digest]
            file.refused = [*(one for one in file.refused if one != digest), digest]
            del file.refused[:-_MAX_PENDING]

    def is_refused(self, digest: str) -> bool:
        return digest in self._read("pending", _Waiting).refused

    # Pinned tools

    def pinned(self, target: str, *spelt: str) -> Pins:
        """What was agreed to; `spelt` are other names under which it may be kept."""
        file, found = self._read("pins", _Pins, strict=True), Pins()
        for one in (target, *spelt):
            found = found.filled(
                Pins(tools=file.servers.get(one), instructions=file.instructions.get(one))
            )
        return found

    def pin(self, target: str, pins: Pins, *, passing: bool = False) -> bool:
        """Remember them; False when there is no room but that of servers which a person knows."""
        with self._changing("pins", _Pins) as file:
            known = target in file.servers and target not in file.passing
            if pins.tools is not None:
                file.servers.pop(target, None)
                file.servers[target] = pins.tools
            if pins.instructions is not None:
                file.instructions[target] = pins.instructions
            file.passing = [one for one in file.passing if one != target]
            if passing and not known:
                file.passing.append(target)
            while file.passing and file.is_full():
                file.forget(file.passing.pop(0))
            while len(file.servers) > _MAX_KNOWN_SERVERS:
                file.forget(next(iter(file.servers)))
            return target in file.servers or target in file.instructions

    def agree(self, pending: Pending) -> None:
        """Changed tools become the ones to compare with."""
        if pending.identity is not None:
            pins = Pins(tools=pending.tools, instructions=pending.instructions)
            self.pin(pending.identity, pins)
        self.settle(pending.digest)

    # Files

    def _kept_key(self) -> bytes:
        path = self.directory / "key"
        if key := _private_key(path):
            return key
        made = secrets.token_bytes(_KEY_BYTES)
        with suppress(OSError):
            private_file.make_private(self.directory)
            with self._locked():
                if key := _private_key(path):  # another one was faster
                    return key
                path.unlink(missing_ok=True)
                private_file.write_new(path, made)
        return made

    def _read(self, name: str, kind: type[T], *, strict: bool = False) -> T:
        """Nothing where there is no file; `strict`: OSError where there is one that is not ours.

        What cannot be read must not be written over, and is no first look at the tools of a server.
        """
        try:
            path = self.directory / f"{name}.json"
            return opened(private_file.read_own(path, most=_MAX_READ_BYTES), kind) or kind()
        except FileNotFoundError:
            return kind()
        except OSError:
            if strict:
                raise
            return kind()

    @contextmanager
    def _changing(self, name: str, kind: type[T]) -> Generator[T]:
        private_file.make_private(self.directory)
        with self._locked():
            file = self._read(name, kind, strict=True)
            yield file
            private_file.write_whole(self.directory / f"{name}.json", msgspec.json.encode(file))

    def _locked(self) -> AbstractContextManager[None]:
        return file_lock(self.directory / "lock", within=_LOCK_TIMEOUT_S)


def _drop_one(waiting: list[Pending], weight: Callable[[Pending], int]) -> None:
    taken: Counter[str] = Counter()
    for one in waiting:
        taken[one.token] += weight(one)
    most = max(taken, key=taken.__getitem__)
    del waiting[next(at for at, one in enumerate(waiting) if one.token == most)]


def _private_key(path: Path) -> bytes | None:
    """The key, if it is whole and nobody else could have read it."""
    try:
        key = private_file.read_own(path, most=_KEY_BYTES, private=True)
    except OSError:
        return None
    return key if len(key) == _KEY_BYTES else None
