"""Renders a reply with its context as the bytes of a tool result, within the client's limit.

Context comes after the tool's own blocks, or before them for a client that cuts the end: events
that were not told yet, and questions that wait. The events are leased: told for good only once the
answer has been written. Both together stay within what the client shows.
"""

import msgspec
from msgspec import Raw

from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.large_results import fitted, stored_whole
from emceepee_stdio.session.reply import Reply, text_block
from emceepee_stdio.session.response_context import lease_events, pending_client
from emceepee_stdio.session.session import Session
from emceepee_stdio.state import Lease
from emceepee_stdio.versions import SERVER_INFO
from emceepee_stdio.wire.codec import to_json


def render(
    session: Session, reply: Reply, call: Call, *, identity: bytes | None
) -> tuple[bytes, list[Lease]]:
    """The result, and the leases that it fulfils. `identity` stamps an answer of the modern era."""
    leases: list[Lease] = []
    context: list[bytes] = []
    if call.own_events:
        leases.append(session.events.take_these(call.own_events))
    if not (reply.whole or reply.native) and (session.events.undelivered or session.requests.open):
        try:
            lease, context = _context(session, call.budget)
        except BaseException:
            for taken in leases:
                session.events.release(taken)
            raise
        leases.append(lease)
    if call.lease is not None:
        leases.append(call.lease)
    first = call.context_first
    body = _assemble(reply, context, identity, context_first=first)
    limit = session.settings.fixed.client_line_bytes
    if reply.structured is not None and len(body) > (call.budget or limit):
        reply = reply.as_text()
        body = _assemble(reply, context, identity, context_first=first)
    if len(body) > call.budget > 0 and not (reply.whole or reply.paged):
        room = max(call.budget - sum(map(len, context)), call.budget // 4)
        reply = fitted(session, reply, room, pointer_first=first)
        body = _assemble(reply, context, identity, context_first=first)
    if len(body) > limit and reply.content:
        reply = stored_whole(session, reply, limit)
        body = _assemble(reply, context, identity, context_first=first)
    return body, leases


def _context(session: Session, budget: int) -> tuple[Lease, list[bytes]]:
    lease = session.events.take(limit=session.settings.fixed.response_events)
    try:
        lease, events = lease_events(session, lease, budget)
        return lease, _blocks(session, lease, events, budget)
    except BaseException:
        session.events.release(lease)
        raise


def _blocks(
    session: Session, lease: Lease, events: list[dict[str, object]], budget: int
) -> list[bytes]:
    blocks: list[bytes] = []
    if events:
        told: dict[str, object] = {"events_since_last_response": events}
        if lease.remaining:
            told["events_remaining"] = lease.remaining
        told["word"] = session.word
        blocks.append(text_block(to_json(told).decode()))
    if session.requests.open:
        pending = {"pending_client_action": pending_client(session, budget), "word": session.word}
        blocks.append(text_block(to_json(pending).decode()))
    return blocks


def _assemble(
    reply: Reply, context: list[bytes], identity: bytes | None, *, context_first: bool
) -> bytes:
    blocks = [reply.content] if reply.content else []
    blocks = [*context, *blocks] if context_first else [*blocks, *context]
    parts = [b'"content":[%b]' % b",".join(blocks)]
    if reply.structured is not None:
        parts.append(b'"structuredContent":%b' % bytes(reply.structured))
    if reply.is_error:
        parts.append(b'"isError":true')
    meta = reply.meta
    if identity is not None:
        parts.insert(0, b'"resultType":"complete"')
        meta = _stamped(meta, identity)
    if meta is not None:
        parts.append(b'"_meta":%b' % bytes(meta))
    return b"{%b}" % b",".join(parts)


def _stamped(meta: Raw | None, identity: bytes) -> Raw:
    """Who answers is we, whatever the backend said of itself."""
    fields = {} if meta is None else msgspec.json.decode(meta, type=dict[str, Raw])
    return Raw(to_json({**fields, SERVER_INFO: Raw(identity)}))
