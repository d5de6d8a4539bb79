"""An event in the log: how it is delivered, what it costs, and the notice of what was lost."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import cast

from emceepee_stdio.state.event_types import Event, EventType
from emceepee_stdio.state.machine import Machine, Move

__all__ = [
    "DELIVERY",
    "ENTRY_BYTES",
    "Delivery",
    "Entry",
    "in_order",
    "is_notice",
    "is_notification",
    "merged",
    "notice_of",
]

ENTRY_BYTES = 512  # what an event costs beside its data: itself, its id and its fold key


class Delivery(StrEnum):
    """Where an event stands on its way to the client."""

    WAITING = "waiting"
    LEASED = "leased"
    DELIVERED = "delivered"


DELIVERY = Machine(
    "event_delivery",
    Delivery,
    [
        Move(source=None, target=Delivery.WAITING, cause="something happened"),
        Move(source=Delivery.WAITING, target=Delivery.LEASED, cause="a response takes it"),
        Move(source=Delivery.LEASED, target=Delivery.DELIVERED, cause="the response was written"),
        Move(source=Delivery.LEASED, target=Delivery.WAITING, cause="the response never went out"),
    ],
)


@dataclass(slots=True)
class Entry:
    """One event, where it stands, and its bytes. `last_lost` is for a notice alone."""

    event: Event
    delivery: Delivery
    fold: Hashable = None
    size: int = ENTRY_BYTES
    last_lost: int = 0


def is_notice(entry: Entry) -> bool:
    return entry.event.type is EventType.EVENTS_DROPPED


def is_notification(entry: Entry) -> bool:
    return entry.event.type is EventType.NOTIFICATION


def in_order(entry: Entry) -> int:
    return entry.event.seq


def notice_of(lost: Sequence[Entry], *, id: str, now: float) -> Entry:  # noqa: A002 - what it is
    """That these were dropped, in the place of the first of them; they are given in order."""
    first, last = lost[0].event, lost[-1].event
    count = sum(entry.event.count for entry in lost)
    event = Event(
        seq=first.seq,
        id=id,
        type=EventType.EVENTS_DROPPED,
        server=None,
        created_at=now,
        data={"count": count, "first_id": first.id, "last_id": last.id},
        count=count,
    )
    return Entry(event, Delivery.WAITING, last_lost=last.seq)


def merged(notices: Sequence[Entry]) -> Entry:
    """One notice for several, standing where the first of them stood."""
    first, last = notices[0].event, max(notices, key=_last_lost)
    count = sum(entry.event.count for entry in notices)
    event = replace(
        first,
        created_at=max(entry.event.created_at for entry in notices),
        data={
            "count": count,
            "first_id": _span(first)["first_id"],
            "last_id": _span(last.event)["last_id"],
        },
        count=count,
    )
    return Entry(event, Delivery.WAITING, last_lost=last.last_lost)


def _last_lost(entry: Entry) -> int:
    return entry.last_lost


def _span(notice: Event) -> dict[str, object]:
    return cast("dict[str, object]", notice.data)
