import json
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import FixedValues, Limits, Settings
from emceepee_stdio.session.rendering import (
    CLUSTER_CHARS,
    fitted,
    head_within,
    page_chars,
    stored_whole,
    whole_characters,
)
from emceepee_stdio.session.reply import Reply, text_block
from emceepee_stdio.state.session_state import SessionState

FAMILY = "👨‍👩‍👧‍👦"
IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


class Around:
    """As much of a session as a large result needs."""

    client = SimpleNamespace(word="w0rd")

    def __init__(self, fixed: FixedValues | None = None, **limits: int) -> None:
        numbers = count(1)
        self.settings = Settings(limits=Limits(**limits), fixed=fixed or FixedValues())
        self.clock = Clock(monotonic=lambda: 1.0, wall=lambda: 1.0)
        self.state: SessionState[object, object, object] = SessionState(
            self.settings, new_id=lambda: f"R{next(numbers)}", began="", on_closed=lambda _id: None
        )

    def fitted(self, room: int, *blocks: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
        content = json.dumps(list(blocks)).encode()[1:-1]
        reply = fitted(self, Reply(content=content, **more), room)  # type: ignore[arg-type]
        return json.loads(b"[%b]" % reply.content)

    def whole(self, result_id: str = "R1") -> str:
        return self.state.results.page(result_id, offset=0, limit=10**9, now=1.0).text


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def test_what_fits_keeps_its_bytes() -> None:
    around = Around()
    content = b'{"type": "text",  "text":"\\u00e912345678"}'
    reply = Reply(content=content)
    assert fitted(around, reply, 10) is reply  # type: ignore[arg-type]
    assert around.state.results.all() == []


def test_one_byte_more_is_stored() -> None:
    around = Around()
    head, left_out, tail, note, facts = around.fitted(10, said("0123456789x"))
    assert (head["text"], tail["text"]) == ("0123", "x")
    assert left_out["text"] == "… 6 characters left out …"
    assert "11 characters" in note["text"]
    stored = json.loads(facts["text"])["stored_result"]
    assert (stored["uri"], stored["chars"]) == ("emceepee://results/R1", 11)
    assert around.whole() == "0123456789x"


def test_texts_count_together_and_are_stored_together() -> None:
    around = Around()
    blocks = around.fitted(
        10, IMAGE, said("abcdef"), IMAGE, said("ghijkl"), {"type": "odd", "x": 1}
    )
    kinds = [block["type"] for block in blocks]
    assert kinds == ["image", *["text"] * 5, "image", "odd"]
    assert around.whole() == "abcdef\nghijkl"


def test_the_text_of_an_embedded_resource_counts_and_is_stored_with_its_address() -> None:
    around = Around()
    resource = {"uri": "file:///x", "text": "0123456789"}
    small = {"type": "resource", "resource": {**resource, "text": "0"}}
    picture = {"type": "resource", "resource": {"uri": "file:///y", "blob": "aGk="}}
    assert around.fitted(100, small, picture) == [small, picture]
    blocks = around.fitted(10, said("ab"), {"type": "resource", "resource": resource}, picture)
    assert [block["type"] for block in blocks] == [*["text"] * 5, "resource"]
    assert blocks[-1] == picture
    assert around.whole() == "ab\nfile:///x:\n0123456789"


def test_other_blocks_are_not_measured() -> None:
    around = Around()
    blocks = [IMAGE | {"data": "A" * 100}, said("short"), {"type": "resource", "resource": {}}]
    assert around.fitted(10, *blocks) == blocks
    assert around.fitted(10, {"text": "no type " * 9}, {"type": 7, "text": 8}) == [
        {"text": "no type " * 9},
        {"type": 7, "text": 8},
    ]


def test_as_much_of_both_ends_is_shown_as_there_is_room() -> None:
    around = Around()
    head, _, tail, *_ = blocks = around.fitted(36_000, said("日本語テキスト" * 6_000))
    shown = sum(len(block["text"].encode()) for block in blocks)
    assert 35_000 < shown <= 36_000
    assert len(tail["text"].encode()) > 3_900
    assert len(head["text"].encode()) > 30_000
    facts = json.loads(blocks[-1]["text"])["stored_result"]
    assert f"offset={len(head['text'])})" in facts["read"]


def test_what_is_shown_again_is_stored_once() -> None:
    around = Around()
    for room in (50, 100):
        around.fitted(room, said("x" * 1_000), key="T1")
    assert [stored.id for stored in around.state.results.all()] == ["T1"]


@pytest.mark.parametrize(
    ("text", "max_bytes", "cut"),
    [
        ("plain", 3, "pla"),
        ("plain", 99, "plain"),
        ("日本語", 8, "日本"),
        ("日本語", 9, "日本語"),
        (f"ab{FAMILY}", 9, "ab"),
        ("é" * 10, 5, "éé"),
    ],
)
def test_a_text_is_cut_by_bytes_and_between_characters(text: str, max_bytes: int, cut: str) -> None:
    assert head_within(text, max_bytes) == cut


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
def test_the_ends_never_overlap(limit: int) -> None:
    around = Around()
    head, left_out, tail, *_ = around.fitted(limit, said("x" * (limit + 1)))
    count_left = int(left_out["text"].split()[1])
    assert len(head["text"]) + count_left + len(tail["text"]) == limit + 1
    assert count_left >= 1


def test_what_the_store_cannot_hold_is_shown_by_its_ends_and_that_is_said() -> None:
    around = Around(stored_bytes=100)
    *_, note, facts = around.fitted(10, said("x" * 1_000))
    assert "Only both ends are left of 1000 characters" in note["text"]
    assert "[result_too_large]" in note["text"]
    assert json.loads(facts["text"]) == {"chars": 1_000}


def test_an_error_and_its_meta_stay_what_they_are() -> None:
    around = Around()
    meta: Any = b'{"k":1}'
    for reply in (
        fitted(around, Reply(content=text_block("x" * 11), is_error=True, meta=meta), 10),  # type: ignore[arg-type]
        stored_whole(around, Reply(content=text_block("x"), is_error=True, meta=meta), 5),  # type: ignore[arg-type]
    ):
        assert (reply.is_error, reply.meta) == (True, meta)
    big = Reply(content=text_block("x"), meta=b'"%b"' % (b"m" * 10_000))  # type: ignore[arg-type]
    assert stored_whole(around, big, 5).meta is None  # type: ignore[arg-type]


def test_what_fits_into_no_line_is_stored_as_the_json_of_its_blocks() -> None:
    around = Around()
    content = json.dumps([IMAGE, said("é")])[1:-1].encode()
    stored_whole(around, Reply(content=content), 5)  # type: ignore[arg-type]
    assert json.loads(around.whole()) == [IMAGE, said("é")]


@pytest.mark.parametrize(
    ("text", "end", "cut"),
    [
        ("plain text", 5, "plain"),
        ("short", 99, "short"),
        ("cafe\u0301 au lait", 4, "caf"),
        ("cafe\u0301 au lait", 5, "cafe\u0301"),
        (f"ab{FAMILY}cd", 5, "ab"),
        (f"ab{FAMILY}cd", 2 + len(FAMILY), f"ab{FAMILY}"),
        ("🇵🇹🇱🇻", 3, "🇵🇹"),
        ("👍🏽 ok", 1, "👍🏽"),
        (FAMILY + "x", 1, FAMILY),
        ("日本語", 2, "日本"),
        ("", 0, ""),
    ],
)
def test_nothing_is_torn_apart(text: str, end: int, cut: str) -> None:
    assert whole_characters(text, end) == cut


def test_an_endless_character_is_cut_all_the_same() -> None:
    endless = "e" + "\u0301" * 10_000
    assert 0 < len(whole_characters(endless, 500)) <= 500 + CLUSTER_CHARS


def test_a_page_of_the_widest_characters_fits_into_a_line() -> None:
    around = Around(FixedValues(client_line_bytes=10_000))
    chars = page_chars(around.settings)
    assert len(text_block("\x01" * chars)) < 10_000
