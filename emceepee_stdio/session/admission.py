"""Admission: the checks that a server must pass which a model adds.

By the policy it is let in, turned away, or put to a person: through the client where that can ask,
else on a page in their browser, else by `emceepee approve`. What the model says never counts as
consent.
"""

import hashlib
import hmac
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from msgspec import Struct

from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Config
from emceepee_stdio.errors import InvalidArguments, PolicyDenied
from emceepee_stdio.journal import Journal, JournalEvent, redact_argv, redact_url
from emceepee_stdio.session.approvals import ApprovalFlow, ApprovalSubject
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.person import Decision
from emceepee_stdio.session.server_registry import Admission, Environment, Origin, RegisteredServer
from emceepee_stdio.trust.approval_request import ApprovalRequest, approval_request_for, shown
from emceepee_stdio.trust.store import TrustStore
from emceepee_stdio.trust.targets import (
    AddressRule,
    Area,
    area_of,
    leads_to_same,
    may_be_same,
    named_area,
    only,
    target_id,
)
from emceepee_stdio.visible_text import cut, shell_line
from emceepee_stdio.wire.environment import (
    BEHIND_HTTP,
    child_directory,
    child_environment,
    resolve_command,
)
from emceepee_stdio.wire.process import ProgramFile

_REFUSED = "Do not propose the same again; ask the person what they want instead."
_OVER_HTTP = "whoever is at the other end of HTTP does not decide what this machine runs or reaches"
_TITLE = "May the model add this server?"
AddLate = Callable[[Admission], Awaitable[None]]
_RULE_CHARS = 60  # of a line of 110 that a client shows
_MAX_REFUSALS = 10_000  # each is one question that a person answered; bounds the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """What people have decided so far. `digest` is what they would be asked about.

    `objection` is what they decided otherwise, about its name or about the same target; then only
    an agreement counts that was given in the face of it.
    """

    digest: str
    known: bool
    approval: str | None = None
    objection: str | None = None


class AdmissionControl(Struct, eq=False, dict=True):
    """Decides about one server at a time; several may wait for a person."""

    store: TrustStore
    flow: ApprovalFlow
    config: Callable[[], Config]
    environment: Environment
    journal: Journal

    def __post_init__(self) -> None:
        self._agreed: set[str] = set()  # for this session; what is remembered is in the store
        self._under_way = 0
        # Since a call that is under way was judged: what was agreed to, and whether for good.
        self._just_agreed: dict[str, str | None] = {}
        # From a yes until it is in `_just_agreed`, by digest: a call that wants the same waits for
        # that instead of asking again.
        self._remembering: dict[str, anyio.Event] = {}
        self._refused: set[str] = set()

    def _mode(self) -> str:
        return self.config().settings.policy.mode

    def taken_back(self, members: Iterable[RegisteredServer]) -> list[RegisteredServer]:
        """Those that are here by an agreement that a person has taken back. Blocking."""
        granted = {approval.digest for approval in self.store.granted()}
        return [
            member
            for member in members
            if member.admission.approval is not None and member.admission.approval not in granted
        ]

    async def admit(self, config: ServerConfig, call: Call, *, add_late: AddLate) -> Admission:
        """Let it in, or raise; may wait for a person as long as the client waits for us.

        When they agree after that, `add_late` adds it, unless the client took its call back.
        """
        self._under_way += 1
        try:
            return await self._decide(config, call, add_late)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._just_agreed.clear()

    async def _decide(self, config: ServerConfig, call: Call, add_late: AddLate) -> Admission:
        mode = self._mode()
        if mode == "allow":
            return _admitted(config, "policy allow")
        if mode == "deny":
            self.journal.record(
                JournalEvent.APPROVAL_DENIED,
                server=config.name,
                reason="policy deny",
                target=_in_short(config),
            )
            raise PolicyDenied(f"{config.name} was not added: by policy no model adds servers.")
        program = await anyio.to_thread.run_sync(self._program, config)
        approval = self._approval_request(config, program)
        is_over_http = BEHIND_HTTP in self.environment.environ
        rule, obstacle = await anyio.to_thread.run_sync(
            partial(_way, config, is_over_http=is_over_http)
        )
        standing = await anyio.to_thread.run_sync(self._standing, config, approval)
        obstacle = standing.objection or obstacle
        if mode == "auto" and config.url is not None and obstacle is None:
            return _admitted(config, "policy auto", rule)
        # Nothing is awaited between the last look and the question to the person, and nothing
        # between their answer and the entry in `_remembering`: a yes is always in one of them.
        while being_kept := self._remembering.get(standing.digest):
            await being_kept.wait()
        if standing.known or standing.digest in self._just_agreed:
            approval_id = standing.approval or self._just_agreed.get(standing.digest)
            return _admitted(
                config, "known to a person", rule, program=program, approval=approval_id
            )
        if obstacle is not None:
            approval = _with_remark(approval, obstacle)
        subject = _subject(config, approval, standing.digest, call.client.name)
        if is_over_http:
            raise await self.flow.put_aside(subject, _OVER_HTTP)
        agreed = partial(_admitted, config, "a person agreed", rule, program=program)

        async def add(granted: str | None) -> None:
            if not call.scope.cancel_called:
                await add_late(agreed(approval=granted))

        return agreed(approval=await self._ask(subject, call, add))

    async def _ask(
        self, subject: ApprovalSubject, call: Call, add: Callable[[str | None], Awaitable[None]]
    ) -> str | None:
        """The agreement, if it is remembered, when the person agrees; raise otherwise."""
        if subject.digest in self._refused:
            raise PolicyDenied(
                f"{subject.what} was not added: the same was refused before in this session.",
                hint=_REFUSED,
            )
        self.flow.refuse_long(subject)

        async def decided_late(decision: Decision) -> None:
            if decision is Decision.REFUSED:
                self._note_refusal(subject)
            else:
                await add(await self._granted(subject, decision))

        decision = await self.flow.decision(subject, call, on_late=decided_late)
        if decision is Decision.REFUSED:
            self._note_refusal(subject)
        await self.flow.require(decision, subject)
        return await self._granted(subject, decision)

    def _note_refusal(self, subject: ApprovalSubject) -> None:
        if len(self._refused) < _MAX_REFUSALS:
            self._refused.add(subject.digest)

    async def _granted(self, subject: ApprovalSubject, decision: Decision) -> str | None:
        kept = await self._remember(subject, kept=decision is Decision.AGREED)
        return subject.digest if kept else None

    def _program(self, config: ServerConfig) -> ProgramFile | None:
        """The file that a command comes to on this machine; raises where it comes to nothing."""
        if config.url is not None:
            return None
        around = self.environment
        env = child_environment(around.environ, env=config.env, pass_env=config.pass_env, owner="")
        directory = self._directory(config)
        found = resolve_command(config.command or "", path=env.get("PATH", ""), directory=directory)
        return ProgramFile.at(found)

    def _directory(self, config: ServerConfig) -> Path:
        around = self.environment
        return around.cwd / child_directory(config.cwd, ours=around.cwd, home=around.home)

    def _approval_request(
        self, config: ServerConfig, program: ProgramFile | None
    ) -> ApprovalRequest:
        if program is None:
            return approval_request_for(config)
        around = self.environment
        return approval_request_for(
            config,
            program=program.path,
            file=program.file,
            cwd=str(self._directory(config)),
            passed={name: around.environ.get(name, "") for name in config.pass_env},
        )

    def _standing(self, config: ServerConfig, approval: ApprovalRequest) -> _Standing:
        key = self.store.key()
        digest = approval.digest(key)
        objection = self._objection(config, digest)
        if objection is not None:
            digest = hmac.new(key, f"{digest} {objection}".encode(), hashlib.sha256).hexdigest()
        if digest in self._agreed:
            return _Standing(digest=digest, known=True, objection=objection)
        if self.store.is_approved(digest):
            return _Standing(digest=digest, known=True, approval=digest, objection=objection)
        if self._is_agreed_once(digest):
            self._agreed.add(digest)
            return _Standing(digest=digest, known=True, objection=objection)
        known = objection is None and any(
            self._is_same(server, digest) for server in self.config().servers
        )
        return _Standing(digest=digest, known=known, objection=objection)

    def _is_agreed_once(self, digest: str) -> bool:
        """Whether they agreed for this time, on a page that no call waited for any more."""
        try:
            return self.store.redeem(digest, now=self.flow.now())
        except OSError:  # what cannot be used up would be good for ever
            return False

    def _objection(self, config: ServerConfig, digest: str) -> str | None:
        """What the configuration says against it: by its name, its target, or the rules of another.

        Rules bind a target. What may be the same in another spelling has none, unless it is
        configured as it is.
        """
        taken = self._taken(config, digest)
        current = self.config()
        entries = [*current.servers, *(one.config for one in current.disabled if one.config)]
        ruled = (one for one in entries if one.tools and may_be_same(config, one))
        alike = next((one for one in ruled if not leads_to_same(one, config)), None)
        if alike is None or any(self._is_same(server, digest) for server in current.servers):
            return taken
        rules = cut(", ".join(f"{name}: {rule}" for name, rule in alike.tools.items()), _RULE_CHARS)
        looks = f"Looks like {shown(alike.name)}, whose rules do not bind it: {shown(rules)}."
        return f"{taken} {looks}" if taken else looks

    def _taken(self, config: ServerConfig, digest: str) -> str | None:
        """What speaks against it by its name, or of the same target."""
        key, current = self.store.key(), self.config()
        name = shown(config.name)
        for server in current.servers:
            if server.name == config.name and not self._is_same(server, digest):
                return f"It takes the place of {name}, which you configured."
        for entry in current.disabled:
            if entry.config and target_id(entry.config, key) == target_id(config, key):
                done = "You have disabled it" if entry.switched_off else "Its entry is broken"
                return f"{done} in the configuration, as {shown(entry.name)}."
            if entry.name == config.name:
                return f"It takes the place of {name}, which you configured."
        return None

    def _is_same(self, server: ServerConfig, digest: str) -> bool:
        try:
            wanted = self._approval_request(server, self._program(server))
            return wanted.digest(self.store.key()) == digest
        except Exception:  # noqa: BLE001 - one that cannot be resolved is not this one
            return False

    async def _remember(self, subject: ApprovalSubject, *, kept: bool) -> bool:
        """For good where that is wanted and can be, else for this session; whether for good."""
        digest = subject.digest
        while being_kept := self._remembering.get(digest):
            await being_kept.wait()
        being_kept = self._remembering[digest] = anyio.Event()
        try:
            kept = await self.flow.agreed(subject, kept=kept, what=subject.target or "")
            if not kept:
                self._agreed.add(digest)
            if self._under_way:
                self._just_agreed[digest] = digest if kept else None
        finally:
            del self._remembering[digest]
            being_kept.set()
        return kept


def _subject(
    config: ServerConfig, approval: ApprovalRequest, digest: str, client: str
) -> ApprovalSubject:
    return ApprovalSubject(
        title=_TITLE,
        lines=approval.lines(),
        text=approval.text(),
        redacted=approval.text(hides=True),
        digest=digest,
        server=config.name,
        client=client,
        target=_in_short(config),
        what=config.name,
        first=config.name,
        undone="was not added",
        may="may be added",
        refused="it",
        again="call add_server again with the same arguments",
        by_itself="When they agree, it is added by itself, and await_activity tells you. ",
        instead=_REFUSED,
        shorter="Put what it needs into a file, and name that.",
        unnoted="A person can add it with `emceepee config add`.",
    )


def _admitted(
    config: ServerConfig,
    grounds: str,
    rule: AddressRule | None = None,
    *,
    program: ProgramFile | None = None,
    approval: str | None = None,
) -> Admission:
    return Admission(
        config=config,
        origin=Origin.CLIENT,
        grounds=grounds,
        rule=rule,
        program=program,
        approval=approval,
    )


def _in_short(config: ServerConfig) -> str:
    """What it starts or calls, without secrets."""
    if config.url is not None:
        return redact_url(config.url)
    return shell_line(redact_argv([config.command or "", *config.args]))


def _way(config: ServerConfig, *, is_over_http: bool) -> tuple[AddressRule | None, str | None]:
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
        where = f"The address leads to {Area.LOOPBACK.value}."  # which the caller may not be on
        return only(Area.LOOPBACK), where if is_over_http else None
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
