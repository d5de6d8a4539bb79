"""Which tools of which server may run: the rules of the configuration, and the person they name.

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
from emceepee_stdio.errors import NeedsApproval, PolicyDenied, ServerUnavailable, ToolNotFound
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import WHY_NOT_ASKED, Call, ConsentQuestion, Decision
from emceepee_stdio.session.server_registry import Origin, RegisteredServer, Servers
from emceepee_stdio.trace.open_request import Leg, on_leg
from emceepee_stdio.trust.approval_request import ToolCallRequest, tool_call_request
from emceepee_stdio.trust.store import ONE_CALL_LIFETIME_S, Pending, TrustStore, seal
from emceepee_stdio.trust.targets import leads_to_same, target_id
from emceepee_stdio.trust.tool_pins import pin_all
from emceepee_stdio.visible_text import close_names

_TITLE = "May this tool run?"
_MAX_REQUEST_CHARS = 20_000  # a person has to read it; nobody reads more than this
_MAX_UNANSWERED = 50  # questions without a yes: after so many the model will not get one


class ToolPermissions:
    """Keeps the rules of every backend, and asks about one call at a time."""

    def __init__(
        self, store: TrustStore, servers: Servers, *, clock: Clock, journal: Journal
    ) -> None:
        self._store = store
        self._servers = servers
        self._clock = clock
        self._journal = journal
        self._entries: dict[str, ServerConfig] = {}
        self._asking: set[str] = set()
        self._late: dict[str, float] = {}  # calls that a person agreed to after they had ended
        self._unanswered = 0

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
            return self._store.redeem(request.digest(key), now=self._now())
        except OSError:  # what cannot be used up would be good for ever
            return False

    async def _ask(self, request: ToolCallRequest, call: Call) -> None:
        """Return when the person agrees to this call; raise otherwise."""
        what = f"{request.tool} of {request.server}"
        decision = await self._decision(request, call)
        match decision:
            case Decision.AGREED | Decision.AGREED_ONCE:
                await self._agreed(request, kept=decision is Decision.AGREED)
            case Decision.REFUSED:
                self._record(JournalEvent.APPROVAL_DENIED, request, reason="the person refused")
                raise PolicyDenied(
                    f"{what} did not run: the person refused this call.",
                    hint="Do not call it again with the same arguments; ask them what they want.",
                )
            case Decision.OPEN:
                raise NeedsApproval(
                    f"The person has not said yet whether {what} may run with these arguments.",
                    hint="Call it again with the same arguments to wait for the answer.",
                )
            case _:
                raise await self._put_aside(request, WHY_NOT_ASKED[decision])

    async def _decision(self, request: ToolCallRequest, call: Call) -> Decision:
        if call.consent is None:
            return Decision.CANNOT_ASK
        digest = request.digest(self._store.key())
        if self._late.pop(digest, 0.0) > self._clock.now():
            return Decision.AGREED_ONCE
        # A yes is for one call: who wants the same at the same time asks another question.
        numbered = (f"{digest}:{number}" if number else digest for number in count())
        question = ConsentQuestion(
            title=_TITLE,
            lines=request.lines(),
            digest=next(one for one in numbered if one not in self._asking),
            call=call,
        )
        self._asking.add(question.digest)
        try:
            with on_leg(Leg.PERSON):
                return await call.consent.confirm(
                    question,
                    on_ask=lambda: self._before_asking(request, call),
                    on_late=lambda kept: self._agreed_late(request, kept=kept),
                )
        finally:
            self._asking.discard(question.digest)

    def _before_asking(self, request: ToolCallRequest, call: Call) -> None:
        """Count that a person is about to be asked; raise when they were asked too often."""
        if self._unanswered >= _MAX_UNANSWERED:
            raise PolicyDenied(
                f"{request.tool} of {request.server} did not run: the person was asked "
                f"{_MAX_UNANSWERED} times without agreeing, and is left in peace.",
                hint="Do without it.",
            )
        self._unanswered += 1
        call.trace.questions += 1
        self._record(JournalEvent.APPROVAL_REQUESTED, request)

    async def _agreed(self, request: ToolCallRequest, *, kept: bool) -> None:
        self._unanswered = 0
        self._record(JournalEvent.APPROVAL_GRANTED, request, remembered=kept)
        if not kept:
            return
        digest, what = request.standing_digest(self._store.key()), f"every call of {request.tool}"
        try:
            await anyio.to_thread.run_sync(
                lambda: self._store.approve(digest, name=request.server, at=self._now(), what=what)
            )
        except OSError as error:
            self._record(JournalEvent.APPROVAL_UNWRITABLE, request, error=str(error.strerror))

    async def _agreed_late(self, request: ToolCallRequest, *, kept: bool) -> None:
        """The call has ended: the yes is for the next one that is the same."""
        if not kept:
            until = self._clock.now() + ONE_CALL_LIFETIME_S
            self._late[request.digest(self._store.key())] = until
        await self._agreed(request, kept=kept)

    async def _put_aside(self, request: ToolCallRequest, why: str) -> NeedsApproval | PolicyDenied:
        """Leave it for `emceepee approve`, with what is secret in it sealed."""
        what = f"{request.tool} of {request.server}"
        text, whole = request.text(hides=True), request.text()
        if len(whole) > _MAX_REQUEST_CHARS:
            return PolicyDenied(
                f"{what} did not run: a person has to agree to its arguments, and these are longer "
                "than a person reads.",
                hint="Pass less, for example the name of a file.",
            )
        key = self._store.key()
        pending = Pending(
            digest=request.digest(key),
            name=request.server,
            text=text,
            at=self._now(),
            sealed=None if text == whole else seal(key, whole),
            tool=request.tool,
        )
        self._record(JournalEvent.APPROVAL_REQUESTED, request, id=pending.id)
        fact = f"A person has to allow this call of {what} first, and nobody was asked: {why}."
        try:
            await anyio.to_thread.run_sync(self._store.wait_for, pending)
        except OSError as error:
            return NeedsApproval(
                f"{fact} That cannot be noted: {error.strerror}.",
                hint="Ask them to see to the directory in which emceepee keeps what they agree to.",
            )
        command = f"emceepee approve {pending.id}"
        return NeedsApproval(
            fact,
            hint=f"Ask them to run `{command}` in a terminal; then call it again with the same "
            "arguments, which runs it once.",
            command=command,
        )

    def _record(self, event: JournalEvent, request: ToolCallRequest, **data: object) -> None:
        data["tool"] = request.tool
        self._journal.write(event.level, event, server=request.server, request_id=None, **data)

    def _now(self) -> str:
        return self._clock.iso(self._clock.now())
