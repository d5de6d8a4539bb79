"""The gate through which every server has to come that a model adds.

By the policy it is let in, turned away, or put to a person: through the client where that can ask,
else by `emceepee approve`. What the model says never counts as consent.
"""

import shlex
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from emceepee_stdio.clock import Clock
from emceepee_stdio.config import Policy, ServerConfig
from emceepee_stdio.errors import InvalidArguments, NeedsApproval, PolicyDenied
from emceepee_stdio.journal import Journal, JournalEvent, redact_argv, redact_url
from emceepee_stdio.session.client_calls import Call, Decision
from emceepee_stdio.session.server_registry import Admission, Environment, Origin, RegisteredServer
from emceepee_stdio.trust.addresses import AddressRule, Area, area_of, named_area, only
from emceepee_stdio.trust.approval_request import ApprovalRequest, approval_request_for, shown
from emceepee_stdio.trust.sealing import seal
from emceepee_stdio.trust.store import Pending, TrustStore
from emceepee_stdio.wire.environment import child_directory, child_environment, resolve_command
from emceepee_stdio.wire.program import ProgramFile

__all__ = ["AdmissionControl"]

_HEADLESS = (
    "Do not ask again for the same. A person can add it with `emceepee config add`; where nobody "
    "can be asked, the proxy is started with `--policy allow`."
)
# A person has to read it; nobody reads more than this.
_MAX_REQUEST_CHARS = 20_000
_MAX_REFUSALS = 10_000  # each is one question that a person answered; bounds the memory
_MAX_UNANSWERED = 50  # questions without consent: after so many the model will not get it


class AdmissionControl:
    """Decides about one server at a time; several may wait for a person."""

    def __init__(
        self,
        store: TrustStore,
        *,
        policy: Callable[[], Policy],
        configured: Callable[[], Sequence[ServerConfig]],
        environment: Environment,
        clock: Clock,
        journal: Journal,
    ) -> None:
        self._store = store
        self._policy = policy
        self._configured = configured
        self._environment = environment
        self._clock = clock
        self._journal = journal
        self._agreed: set[str] = set()
        self._refused: set[str] = set()
        self._unanswered = 0

    def __repr__(self) -> str:
        return f"<AdmissionControl {self._policy().mode}>"

    async def admit(
        self, config: ServerConfig, call: Call, *, replaced: RegisteredServer | None = None
    ) -> Admission:
        """Let it in, or raise; may wait for a person as long as the client waits for us."""
        mode = self._policy().mode
        if mode == "allow":
            return Admission("policy allow")
        if mode == "deny":
            self._record(JournalEvent.APPROVAL_DENIED, config, reason="policy deny")
            raise PolicyDenied(f"{config.name} was not added: by policy no model adds servers.")
        program = await anyio.to_thread.run_sync(self._program, config)
        approval = self._approval_request(config, program)
        rule, obstacle = await anyio.to_thread.run_sync(_way, config)
        if replaced is not None and replaced.origin is Origin.CONFIGURATION:
            obstacle = f"It takes the place of {shown(config.name)}, which you configured."
        if mode == "auto" and config.url is not None and obstacle is None:
            return Admission("policy auto", rule)
        digest = await anyio.to_thread.run_sync(self._known, approval)
        if digest is None:
            return Admission("known to a person", rule, program)
        if call.consent is None and mode == "auto" and config.url is None and obstacle is None:
            # Hosts that cannot ask for us ask the person themselves before every call.
            self._record(JournalEvent.APPROVAL_SKIPPED, config)
            return Admission("not asked: this client cannot ask for us", program=program)
        if obstacle is not None:
            approval = _with_remark(approval, obstacle)
        await self._ask(config, approval, digest, call)
        return Admission("a person agreed", rule, program)

    async def _ask(
        self,
        config: ServerConfig,
        approval: ApprovalRequest,
        digest: str,
        call: Call,
    ) -> None:
        """Return when the person agrees; raise otherwise."""
        if digest in self._refused:
            raise PolicyDenied(
                f"{config.name} was not added: the same was refused before in this session.",
                hint=_HEADLESS,
            )
        text = approval.text()
        if len(text) > _MAX_REQUEST_CHARS:
            raise PolicyDenied(
                f"{config.name} was not added: its command line is longer than a person reads.",
                hint="Put what it needs into a file, and name that.",
            )
        decision = Decision.CANNOT_ASK
        if call.consent is not None:
            decision = await call.consent.confirm(
                text,
                digest,
                on_ask=lambda: self._before_asking(config),
                on_late=lambda kept: self._remember(config, digest, kept=kept),
            )
        match decision:
            case Decision.AGREED | Decision.AGREED_ONCE:
                await self._remember(config, digest, kept=decision is Decision.AGREED)
            case Decision.REFUSED:
                self._record(JournalEvent.APPROVAL_DENIED, config, reason="the person refused")
                if len(self._refused) < _MAX_REFUSALS:
                    self._refused.add(digest)
                raise PolicyDenied(
                    f"{config.name} was not added: the person, or the client for them, refused.",
                    hint=_HEADLESS,
                )
            case Decision.OPEN:
                raise NeedsApproval(
                    f"The person has not said yet whether {config.name} may be added.",
                    hint="Call add_server again with the same arguments to wait for the answer.",
                )
            case Decision.CANNOT_ASK:
                raise await self._put_aside(config, approval, digest)

    def _before_asking(self, config: ServerConfig) -> None:
        """Count that a person is about to be asked; raise when they were asked too often."""
        if self._unanswered >= _MAX_UNANSWERED:
            raise PolicyDenied(
                f"{config.name} was not added: the person was asked {_MAX_UNANSWERED} times "
                "without agreeing, and is left in peace.",
                hint=_HEADLESS,
            )
        self._unanswered += 1
        self._record(JournalEvent.APPROVAL_REQUESTED, config)

    async def _put_aside(
        self, config: ServerConfig, approval: ApprovalRequest, digest: str
    ) -> NeedsApproval:
        """Leave it for `emceepee approve`, with what is secret in it sealed."""
        text, whole = approval.text(hides=True), approval.text()
        sealed = None if text == whole else seal(self._store.key(), whole)
        pending = Pending(digest=digest, name=config.name, text=text, at=self._now(), sealed=sealed)
        self._record(JournalEvent.APPROVAL_REQUESTED, config, id=pending.id)
        try:
            await anyio.to_thread.run_sync(self._store.wait_for, pending)
        except OSError as error:
            return NeedsApproval(
                f"A person has to allow {config.name}, but that cannot be noted: {error.strerror}.",
                hint="A person can add it with `emceepee config add`.",
            )
        return NeedsApproval(
            f"A person has to allow {config.name} first.",
            hint=f"Ask them to run `emceepee approve {pending.id}` in a terminal; then call "
            "add_server again.",
        )

    def _program(self, config: ServerConfig) -> ProgramFile | None:
        """The file that a command comes to on this machine; raises where it comes to nothing."""
        if config.url is not None:
            return None
        around = self._environment
        env = child_environment(around.environ, env=config.env, pass_env=config.pass_env, owner="")
        directory = self._directory(config)
        found = resolve_command(config.command or "", path=env.get("PATH", ""), directory=directory)
        return ProgramFile.at(found)

    def _directory(self, config: ServerConfig) -> Path:
        around = self._environment
        return around.cwd / child_directory(config.cwd, ours=around.cwd, home=around.home)

    def _approval_request(
        self, config: ServerConfig, program: ProgramFile | None
    ) -> ApprovalRequest:
        if program is None:
            return approval_request_for(config)
        around = self._environment
        return approval_request_for(
            config,
            program=program.path,
            file=program.file,
            cwd=str(self._directory(config)),
            passed={name: around.environ.get(name, "") for name in config.pass_env},
        )

    def _known(self, approval: ApprovalRequest) -> str | None:
        """The hash to ask about; None for what is in the configuration, or was agreed to."""
        key = self._store.key()
        digest = approval.digest(key)
        if digest in self._agreed or self._store.is_approved(digest):
            return None
        for server in self._configured():
            try:
                if self._approval_request(server, self._program(server)).digest(key) == digest:
                    return None
            except Exception:  # noqa: BLE001, S112 - one that cannot be resolved is not this one
                continue
        return digest

    async def _remember(self, config: ServerConfig, digest: str, *, kept: bool) -> None:
        self._agreed.add(digest)
        self._unanswered = 0
        self._record(JournalEvent.APPROVAL_GRANTED, config, remembered=kept)
        if kept:
            try:
                await anyio.to_thread.run_sync(
                    lambda: self._store.approve(
                        digest, name=config.name, at=self._now(), what=_in_short(config)
                    )
                )
            except OSError as error:
                self._record(JournalEvent.APPROVAL_UNWRITABLE, config, error=str(error.strerror))

    def _record(self, event: JournalEvent, config: ServerConfig, **data: object) -> None:
        data["target"] = _in_short(config)
        self._journal.write(event.level, event, server=config.name, request_id=None, **data)

    def _now(self) -> str:
        return self._clock.iso(self._clock.now())


def _in_short(config: ServerConfig) -> str:
    """What it starts or calls, without secrets."""
    if config.url is not None:
        return redact_url(config.url)
    return shlex.join(redact_argv([config.command or "", *config.args]))


def _way(config: ServerConfig) -> tuple[AddressRule | None, str | None]:
    """The rule for the addresses of a URL, and what speaks against calling it unasked."""
    if config.url is None:
        return None, None
    parts = urlsplit(config.url)
    if "@" in parts.netloc:
        raise InvalidArguments(
            "The url holds a user or a password.",
            hint="Put credentials into headers, for example Authorization.",
        )
    areas = _areas(config.url)
    if areas == {Area.LOOPBACK} and named_area(config.url) is Area.LOOPBACK:
        return only(Area.LOOPBACK), None
    if areas - {Area.PUBLIC}:
        where = " and ".join(sorted(area.value for area in areas - {Area.PUBLIC}))
        return None, f"The address leads to {where}."
    if parts.scheme != "https":
        return None, "Plain http: whoever is on the way can read and change everything."
    return only(Area.PUBLIC), None


def _areas(url: str) -> set[Area]:
    """Where the host of a URL leads now; nothing when that is not known."""
    named = named_area(url)
    if named is not None:
        return {named}
    try:
        found = socket.getaddrinfo(urlsplit(url).hostname, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {area_of(str(entry[4][0])) for entry in found}


def _with_remark(approval: ApprovalRequest, remark: str) -> ApprovalRequest:
    return replace(approval, remarks=[*approval.remarks, remark])
