import json
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Raw

from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import FixedValues, Settings
from emceepee_stdio.errors import CallFailed, InvalidArguments, InvalidPattern, ResourceNotFound
from emceepee_stdio.session.client_calls import Call, CallingClient
from emceepee_stdio.session.own_resources import read_own
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.state.results import Results
from emceepee_stdio.tools.resource_tools import ReadResource, read_resource

URI = "emceepee://results/R1"


def runtime(text: str = "", **fixed: int) -> Any:
    numbers = count(1)
    results = Results(new_id=lambda: f"R{next(numbers)}", max_bytes=10**8)
    results.put(text, now=0.0)
    nothing_else = {
        "events": SimpleNamespace(undelivered={}),
        "requests": SimpleNamespace(open={}),
    }
    return SimpleNamespace(
        session=SimpleNamespace(state=SimpleNamespace(results=results, **nothing_else)),
        settings=Settings(fixed=FixedValues(**fixed)),
        clock=Clock(monotonic=lambda: 0.0, wall=lambda: 0.0),
    )


async def read(here: Any, **arguments: Any) -> list[str]:
    given = {"server": "emceepee", "uri": URI, **arguments}
    call = Call(client=CallingClient(ceiling=45.0))
    reply = await read_resource(here, ReadResource(**given), call)
    return [block["text"] for block in json.loads(b"[%b]" % reply.content)]


async def test_a_page_says_where_the_next_begins() -> None:
    here = runtime("0123456789")
    text, facts = await read(here, limit=4)
    assert (text, json.loads(facts)) == ("0123", {"offset": 0, "total_chars": 10, "next_offset": 4})
    text, facts = await read(here, offset=8, limit=4)
    assert (text, json.loads(facts)) == ("89", {"offset": 8, "total_chars": 10})
    text, facts = await read(here, offset=99)
    assert (text, json.loads(facts)) == ("", {"offset": 99, "total_chars": 10})


async def test_a_page_ends_where_a_character_ends_and_always_gets_on() -> None:
    whole = "e\u0301👨‍👩‍👧‍👦🇵🇹x" * 5
    for limit in range(1, 20):
        here, offset, pages = runtime(whole), 0, list[str]()
        while True:
            text, facts = await read(here, offset=offset, limit=limit)
            pages.append(text)
            if "next_offset" not in json.loads(facts):
                break
            assert json.loads(facts)["next_offset"] > offset
            offset = json.loads(facts)["next_offset"]
        assert "".join(pages) == whole
        assert not [page for page in pages if page[0] in "\u0301\u200d🇹"]


async def test_no_page_is_longer_than_a_line_to_the_client() -> None:
    text, _ = await read(runtime("x" * 10_000, client_line_bytes=8_000), limit=1_000_000)
    assert len(text) == 1_000


async def test_a_search_goes_over_all_windows() -> None:
    step = 1 << 18
    here = runtime(("x" * (step - 3) + "needle") * 4)
    (facts,) = await read(here, pattern="NEEDLE")
    found = json.loads(facts)
    assert [hit["offset"] for hit in found["hits"]] == [n * (step + 3) + step - 3 for n in range(4)]
    assert "next_offset" not in found
    (facts,) = await read(here, pattern="needle", limit=2)
    first = json.loads(facts)
    (facts,) = await read(here, pattern="needle", limit=2, offset=first["next_offset"])
    assert first["hits"] + json.loads(facts)["hits"] == found["hits"]


async def test_what_is_wrong_is_told() -> None:
    here = runtime("text")
    with pytest.raises(InvalidPattern):
        await read(here, pattern="(")
    with pytest.raises(ResourceNotFound):
        await read(here, uri="emceepee://results/R2")
    with pytest.raises(ResourceNotFound, match="emceepee://status"):
        await read(here, uri="emceepee://else")
    with pytest.raises(InvalidArguments, match="stored results"):
        await read(here, server="s", offset=5)


def test_a_native_read_says_what_it_leaves_out() -> None:
    whole = "0123456789" * 1_000
    assert read_own(runtime(whole), URI) == whole
    cut = read_own(runtime(whole, client_line_bytes=8_000), URI)
    shown, _, note = cut.rpartition("\n")
    assert whole.startswith(shown)
    assert f"{len(whole) - len(shown)} characters left out" in note
    assert f"offset={len(shown)}" in note


@pytest.mark.parametrize("result", [b"[]", b"{}", b'{"contents":7}', b"7"])
def test_contents_that_cannot_be_read_are_told(result: bytes) -> None:
    with pytest.raises(CallFailed, match="without readable contents"):
        Reply.contents(Raw(result), server="s")
