"""Whether a tool may run: the configured rules, and the person if they say so.

Rules belong to a target. An entry of the configuration has its own; a server that a model added has
those of every entry that leads to the same place, and of several the strictest word. They are kept
with the backend, which refuses by itself what they forbid: what is done here is
to keep them current, and to ask the person where a rule says so.

A yes is for one call, unless the person does not want to be asked again: then it holds for this
tool of this target as long as the server says the same of it.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import cast

import anyio.to_thread
from msgspec import Raw

from emceepee_stdio.backends.backend import Backend, name_refusal
from emceepee_stdio.backends.lists import Kind
from emceepee_stdio.clock import Clock
from emceepee_stdio.config import Config, ServerConfig
from emceepee_stdio.config.tool_rules import rules_of
from emceepee_stdio.errors import ServerUnavailable, ToolNotFound
from emceepee_stdio.journal import Journal
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.approvals import ApprovalFlow, ApprovalSubject
from emceepee_stdio.session.client_calls import Call, Decision
from emceepee_stdio.session.server_registry import Origin, RegisteredServer, Servers
from emceepee_stdio.trust.approval_request import ToolCallRequest, tool_call_request
from emceepee_stdio.trust.store import ONE_CALL_LIFETIME_S, TrustStore
from emceepee_stdio.trust.targets import leads_to_same, target_id
from emceepee_stdio.trust.tool_pins import pin_all
from emceepee_stdio.visible_text import close_names

_TITLE = "May this tool run?"


class ToolPermissions:
    """Keeps the rules of every backend, and asks about one call at a time."""

    def __init__(
        self, store: TrustStore, servers: Servers, *, clock: Clock, journal: Journal
    ) -> None:
        self._store = store
        self._servers = servers
        self._clock = clock
        self._flow = ApprovalFlow(store, clock=clock, journal=journal)
        self._entries: dict[str, ServerConfig] = {}
        self._asking: set[str] = set()
        self._late: dict[str, float] = {}  # calls that a person agreed to after they had ended

    # The rules

    def apply(self, config: Config) -> None:
        """The configuration is another one: its rules hold from now on."""
        entries = {server.name: server for server in config.servers}
        for broken in config.disabled:
            # What cannot be read keeps the rules that it had.
            entry = broken.config or self._entries.get(broken.name)
            if entry is not None:
                entries.setdefault(broken.name, entry)
        self._entries = entries
        for member in self._servers.members.values():
            self.bind(member)

    def bind(self, member: RegisteredServer) -> None:
        """Give a server its rules."""
        if member.origin is Origin.CONFIGURATION:
            binding = [self._entries.get(member.config.name, member.config)]
        else:
            entries = self._entries.values()
            binding = [entry for entry in entries if leads_to_same(entry, member.config)]
        member.backend.rules = rules_of({entry.name: entry.tools for entry in binding})

    def shown_changes(self, server: str, changes: Mapping[str, object]) -> dict[str, object] | None:
        """What a model is told of tools that changed: nothing of those that a rule hides."""
        member = self._servers.members.get(server)
        rules = None if member is None else member.backend.rules
        shown = dict(changes)
        if rules is None:
            return shown
        diffs = mapping(changes.get("changed"))
        shown["changed"] = {name: diffs[name] for name in diffs if not rules.hides(name)}
        for what in ("added", "removed"):
            names = cast("Sequence[str]", changes.get(what) or ())
            shown[what] = [name for name in names if not rules.hides(name)]
        told = ("changed", "added", "removed", "instructions")
        return shown if any(shown.get(what) for what in told) else None

    # A call

    async def require(self, backend: Backend, tool: str, *, within: float) -> None:
        """Raise unless this tool may run, with a person's word where a rule asks for it."""
        if backend.rules is None:
            return
        rule = backend.rules.rule(tool)
        if rule == "ask" or (rule == "allow" and not backend.lists.lists_tool(tool)):
            await backend.list_all(Kind.TOOLS, within=within)
        refused = name_refusal(backend, tool)
        if isinstance(refused, ToolNotFound):
            shown = [name for name in backend.lists.tools or () if not backend.rules.hides(name)]
            close = close_names(tool, shown)
            more = f" Close are: {', '.join(close)}." if close else ""
            raise ToolNotFound(f"{refused.fact}{more}", hint=refused.next_step)
        if refused is not None:
            raise refused

    async def admit(self, backend: Backend, tool: str, args: Raw, call: Call) -> Raw:
        """The arguments to send, once the person agreed to them if a rule asks for that.

        May wait for them as long as the client waits for us. The call must not have become a task.
        """
        if backend.rules is None or backend.rules.rule(tool) != "ask":
            return args
        request = await anyio.to_thread.run_sync(self._request, backend, tool, args)
        if not await anyio.to_thread.run_sync(self._is_agreed, request):
            await self._ask(request, call)
        call.permit = request.args
        return request.args

    def _request(self, backend: Backend, tool: str, args: Raw) -> ToolCallRequest:
        member = self._servers.members.get(backend.name)
        if member is None or member.backend is not backend:
            raise ServerUnavailable(f"{backend.name} was removed or replaced in this moment.")
        listed = backend.lists.known(Kind.TOOLS) or ()
        same = [item for item in listed if item.get("name") == tool]
        pinned = list(pin_all(same).values())
        return tool_call_request(
            server=backend.name,
            tool=tool,
            args=args,
            target=target_id(member.config, self._store.key()),
            definition=pinned[0].digest if pinned else "",
        )

    def _is_agreed(self, request: ToolCallRequest) -> bool:
        """Whether the person has said yes before: to the tool, or to this one call."""
        key = self._store.key()
        if self._store.is_approved(request.standing_digest(key)):
            return True
        try:
            return self._store.redeem(request.digest(key), now=self._flow.now())
        except OSError:  # what cannot be used up would be good for ever
            return False

    async def _ask(self, request: ToolCallRequest, call: Call) -> None:
        """Return when the person agrees to this call; raise otherwise."""
        subject = _subject(request, self._store.key())
        decision = Decision.AGREED_ONCE
        if call.consent is None or self._late.pop(subject.digest, 0.0) <= self._clock.now():
            decision = await self._decision(request, subject, call)
        await self._flow.require(decision, subject)
        await self._agreed(request, subject, kept=decision is Decision.AGREED)

    async def _decision(
        self, request: ToolCallRequest, subject: ApprovalSubject, call: Call
    ) -> Decision:
        async def agreed_late(kept: bool) -> None:  # noqa: FBT001 - as `OnLate` has it
            """The call has ended: the yes is for the next one that is the same."""
            if not kept:
                self._late[subject.digest] = self._clock.now() + ONE_CALL_LIFETIME_S
            await self._agreed(request, subject, kept=kept)

        # A yes is for one call: who wants the same at the same time asks another question.
        numbered = (f"{subject.digest}:{n}" if n else subject.digest for n in count())
        digest = next(one for one in numbered if one not in self._asking)
        self._asking.add(digest)
        try:
            return await self._flow.decision(subject, call, on_late=agreed_late, digest=digest)
        finally:
            self._asking.discard(digest)

    async def _agreed(
        self, request: ToolCallRequest, subject: ApprovalSubject, *, kept: bool
    ) -> None:
        digest = request.standing_digest(self._store.key())
        what = f"every call of {request.tool}"
        await self._flow.agreed(subject, kept=kept, digest=digest, what=what)


def _subject(request: ToolCallRequest, key: bytes) -> ApprovalSubject:
    what = f"{request.tool} of {request.server}"
    return ApprovalSubject(
        title=_TITLE,
        lines=request.lines(),
        text=request.text(),
        redacted=request.text(hides=True),
        digest=request.digest(key),
        server=request.server,
        tool=request.tool,
        what=what,
        first=f"this call of {what}",
        undone="did not run",
        may="may run with these arguments",
        refused="this call",
        again="call it again with the same arguments, which runs it once",
        instead="Do not call it again with the same arguments; ask them what they want.",
        shorter="Pass less, for example the name of a file.",
    )
