"""Results nested as deeply as they can be read at all, through the real proxy."""

import json
import sys
from pathlib import Path

from tests.e2e.client import Setting, both_backends, proxy, server

DEPTHS = [*range(sys.getrecursionlimit() - 60, sys.getrecursionlimit() + 10), 5_000]


@both_backends
async def test_a_text_of_any_depth_arrives_beside_structured_content(
    tmp_path: Path, era: str
) -> None:
    setting = Setting(home=tmp_path / "home", servers={"s": server(era=era)})
    async with proxy(setting) as client:
        await client.connected()
        await client.drain()
        for depth in DEPTHS:
            deep = {"type": "text", "text": "[" * depth + "]" * depth}
            result = {"content": [deep], "structuredContent": {"n": 1}, "resultType": "complete"}
            answer = await client.execute("verbatim", args={"result": json.dumps(result)})
            assert answer.blocks == [deep, {"type": "text", "text": '{"n": 1}'}], depth


@both_backends
async def test_structured_content_of_any_depth_arrives_or_is_an_error_that_says_why(
    tmp_path: Path, era: str
) -> None:
    setting = Setting(home=tmp_path / "home", servers={"s": server(era=era)})
    async with proxy(setting) as client:
        await client.connected()
        await client.drain()
        for depth in DEPTHS:
            deep = "[" * depth + "]" * depth
            said = f'{{"content":[],"structuredContent":{deep},"resultType":"complete"}}'
            answer = await client.execute("verbatim", args={"result": said})
            assert "inside emceepee" not in answer.text
            assert answer.is_error or answer.text == deep, depth
            assert "no tool result" not in answer.text
