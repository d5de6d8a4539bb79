"""jq programs of models, in the real helper: what they give, and what they cannot do."""

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from emceepee_stdio.errors import InvalidSelect
from emceepee_stdio.wire.selection import Selection

pytestmark = pytest.mark.fresh

ISSUES = json.dumps({"total": 2, "items": [{"id": 7, "tags": ["a"]}, {"id": 8, "tags": []}]})
GOOD = (".total", b"2")


@pytest.fixture
def anyio_backend() -> str:
    """What the proxy runs on: here a second loop would only take the time again."""
    return "asyncio"


@asynccontextmanager
async def selection() -> AsyncIterator[Selection]:
    made = Selection({**os.environ, "A_SECRET": "quiet-river"})
    try:
        yield made
    finally:
        await made.stop()
        assert made.pid is None


async def gives(made: Selection, program: str, text: str = ISSUES) -> str:
    return bytes((await made.run(program, text)).value).decode()


async def refusal(made: Selection, program: str, text: str = ISSUES) -> str:
    with pytest.raises(InvalidSelect) as refused:
        await made.run(program, text)
    return refused.value.fact


async def test_a_program_gives_one_value_and_several_are_a_list() -> None:
    async with selection() as made:
        assert await gives(made, ".total") == "2"
        assert await gives(made, ".items[].id") == "[7,8]"
        assert await gives(made, "empty") == "[]"
        assert await gives(made, ".items[0] # the first") == '{"id":7,"tags":["a"]}'
        assert await gives(made, "def two: 2; two |\n. + 1") == "3"
        # Several values are a list, and what is no JSON is a text.
        assert await gives(made, "map(.n)", '{"n":1}\n{"n":2}') == "[1,2]"
        assert await gives(made, 'split("\n")[1]', "one\ntwo") == '"two"'
        assert await gives(made, ".", "") == '""'
        for text in ("01234", "007 008", "+5", ".5", "NaN", "nan", "Infinity"):
            assert await gives(made, "[type, .]", text) == f'["string","{text}"]'
        # Numbers that are only passed on keep their digits.
        assert await gives(made, ".[0]", "[100000000000000000000000000001.10]") == (
            "100000000000000000000000000001.10"
        )
        assert await gives(made, ".", "[NaN]") == "[null]"
        assert await gives(made, "infinite, nan, 1e1000", "0") == (
            "[1.7976931348623157e+308,null,1E+1000]"
        )


async def test_one_helper_serves_them_all_one_after_the_other() -> None:
    async with selection() as made:
        assert made.pid is None
        await made.run(".total")
        first = made.pid
        found: list[str] = []

        async def run(number: int) -> None:
            found.append(await gives(made, f".items[{number}].id"))

        async with anyio.create_task_group() as tasks:
            for number in (0, 1, 0):
                tasks.start_soon(run, number)
        assert sorted(found) == ["7", "7", "8"]
        assert made.pid == first is not None


async def test_a_wrong_program_is_told_with_its_place_and_the_keys_that_were_there() -> None:
    async with selection() as made:
        said = await refusal(made, ".items |\n map(.id +)")
        assert "unexpected ')'" in said
        assert "line 2, column 11" in said
        with pytest.raises(InvalidSelect, match="nosuch/0 is not defined"):
            await made.run(". | nosuch")
        said = await refusal(made, ".total.count")
        assert 'Cannot index number with string ("count")' in said
        keys = "an object with the keys total, items (a list of 2, first an object with the keys"
        assert f". It was given {keys} id, tags)." in said
        assert (await made.run(".itmes", ISSUES)).about.startswith(keys)
        many = json.dumps({f"key_{n}": n for n in range(50)})
        assert "key_19 and 30 more" in await refusal(made, '.["a"][0].b.c | error', many)
        assert len(await refusal(made, ".[0]", json.dumps({"k" * 5_000: 1}))) < 500
        assert len(await refusal(made, 'error("x" * 100000)')) < 2_000


@pytest.mark.parametrize(
    "program",
    [
        'import "{at}/secret" as s; s::told',
        'import "{at}/secret" as $s; $s',
        'import "secret" as $s {{search: "{at}"}}; $s',
        'include "{at}/secret"; told',
        '"{at}/secret" | modulemeta',
        '. ) | import "{at}/secret" as $s; ($s',
        '.)\nimport "{at}/secret" as $s; ($s',
        'module {{search: "{at}"}}; .',
        "input",
        "[inputs]",
        "input_filename",
        "get_search_list",
        "halt",
        "halt_error",
        '"out" | halt_error(0)',
        ".) | def tojson: 1; (.",
        '.) | def tojson: "a\\nb"; (.',
        ". # \\",
        ".\0",
        "",
        ")" * 5_000,
        "." * 20_000,
        "$__prog_args",
        '"x" | ltrimstr(1) | @base32d',
        "[1] | implode | fromjson | error",
        "error",
        "error(null)",
        "break",
    ],
)
async def test_what_reads_or_ends_something_else_is_refused(program: str, tmp_path: Path) -> None:
    (tmp_path / "secret.jq").write_text('module {"a": "quiet-river"}; def told: "quiet-river";')
    (tmp_path / "secret.json").write_text('"quiet-river"')
    async with selection() as made:
        await made.run(".")
        helper = made.pid
        said = await refusal(made, program.replace("{at}", str(tmp_path)).replace("{{", "{"))
        assert "quiet-river" not in said
        assert await gives(made, GOOD[0]) == GOOD[1].decode()
        assert made.pid == helper


async def test_there_is_no_environment_and_nothing_is_written_for_others(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with selection() as made:
        assert await gives(made, "$ENV, env") == "[{},{}]"
        assert await gives(made, "$ENV.A_SECRET, $ENV.PATH, env.HOME") == "[null,null,null]"
        assert await gives(made, '"a" | stderr, debug, debug("b")') == '["a","a","a"]'
        assert await gives(made, "input_line_number? // 1") == "1"
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_the_helper_has_no_descriptor_to_spare_and_stands_in_the_root() -> None:
    async with selection() as made:
        await made.run(".")
        process = Path(f"/proc/{made.pid}")
        assert (process / "cwd").readlink() == Path("/")
        assert {one.name for one in (process / "fd").iterdir()} == {"0", "1", "2"}
        lines = (process / "limits").read_text().splitlines()
        limits = {line[:26].strip(): line[26:].split()[:2] for line in lines}
        assert limits["Max open files"] == ["3", "3"]
        assert limits["Max file size"] == ["0", "0"]
        assert limits["Max core file size"] == ["0", "0"]
        assert limits["Max address space"] == [str(1 << 30)] * 2
        assert b"quiet-river" not in (process / "environ").read_bytes()


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("def f: f; f", "1"),
        ("last(repeat(1))", "1"),
        ('test("^(a|aa|a?)+$")', json.dumps("a" * 60 + "!")),
        ("[limit(1e9; repeat(0))] | length", "1"),
        ('"x" * 2000000000 | length', "1"),
        ("[range(200000000)] | length", "1"),
        ('reduce range(64) as $n ("x"; . + .) | length', "1"),
        ("[recurse([., .])] | length", "1"),
        ("reduce range(3000000) as $n (0; [.])", "1"),
    ],
)
async def test_what_never_ends_or_fills_the_memory_ends_only_the_helper(
    program: str, text: str
) -> None:
    async with selection() as made:
        await refusal(made, program, text)
        assert await gives(made, GOOD[0]) == GOOD[1].decode()


async def test_outputs_are_bounded_and_so_is_depth() -> None:
    async with selection() as made:
        assert "gives more than 4194304 bytes" in await refusal(
            made, 'range(999) | "x" * 9999', "1"
        )
        assert "gives more than 4194304 bytes" in await refusal(made, '"x" * 5000000', "1")
        deep = "[" * 9_000 + "]" * 9_000
        assert await gives(made, "[.. | arrays] | length", deep) == "9000"
        await refusal(made, ".", deep)  # nobody could read it
        deeper = "[" * 100_000 + "]" * 100_000
        assert "depth limit" in await refusal(made, "type", deeper)
        assert await gives(made, ".total") == "2"


async def test_a_call_that_is_cancelled_takes_its_helper_along() -> None:
    async with selection() as made:
        await made.run(".")
        first = made.pid
        with anyio.move_on_after(0):
            await made.run("def f: f; f", "1")
        with anyio.move_on_after(0.2) as time:
            await made.run("def f: f; f", "1")
        assert time.cancelled_caught
        assert made.pid is None
        assert await gives(made, ".total") == "2"
        assert made.pid not in (None, first)


async def test_a_helper_that_somebody_killed_is_replaced() -> None:
    async with selection() as made:
        await made.run(".")
        assert made.pid is not None
        os.kill(made.pid, 9)
        assert "ended without an answer" in await refusal(made, ".")
        assert await gives(made, ".total") == "2"


async def test_a_large_result_is_read_whole() -> None:
    text = json.dumps([{"id": n, "name": "x" * 100} for n in range(100_000)])
    async with selection() as made:
        assert len(text) > 10_000_000
        assert await gives(made, "length, .[-1].id", text) == "[100000,99999]"
