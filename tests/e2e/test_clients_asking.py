"""Real clients show a server's form as it was sent, but for our line, and bring the answer back."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients.raw import PROXY, WAIT_S, entry, surroundings
from tests.peers import PeerMissingError, node_modules, peer_python, plain

CLIENTS = Path(__file__).resolve().parent / "clients"
MODERN = "2026-07-28"
CASES = {
    "py1": ("py1", "legacy"),
    "py2 legacy": ("py2", "legacy"),
    "py2 modern": ("py2", MODERN),
    "ts1": ("ts1", "legacy"),
    "ts2 legacy": ("ts2", "legacy"),
    "ts2 modern": ("ts2", MODERN),
}


def form(required: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    needs = {"required": list(required)} if required else {}
    return {"type": "object", "properties": fields, **needs}


COLOURS = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]
# The schema, what the person fills in, and what the server gets.
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "string": (
        form(a={"type": "string", "title": "A", "description": "d", "minLength": 1}),
        {"a": "x"},
        {"a": "x"},
    ),
    "formats": (
        form(
            mail={"type": "string", "format": "email"},
            day={"type": "string", "format": "date"},
            link={"type": "string", "format": "uri"},
        ),
        {"mail": "a@b.example", "day": "2026-11-17", "link": "https://x.example/"},
        {"mail": "a@b.example", "day": "2026-11-17", "link": "https://x.example/"},
    ),
    "number": (form(a={"type": "number", "minimum": 0, "maximum": 2}), {"a": 1}, {"a": 1}),
    "integer": (form(a={"type": "integer"}), {"a": 3}, {"a": 3}),
    "boolean": (form(a={"type": "boolean"}), {"a": False}, {"a": False}),
    "single enum": (form(a={"type": "string", "enum": ["x", "y"]}), {"a": "y"}, {"a": "y"}),
    "titled enum": (form(a={"type": "string", "oneOf": COLOURS}), {"a": "g"}, {"a": "g"}),
    "multi enum": (
        form(a={"type": "array", "items": {"type": "string", "enum": ["x", "y"]}}),
        {"a": ["x", "y"]},
        {"a": ["x", "y"]},
    ),
    "defaults": (
        form(a={"type": "string", "default": "Ada"}, b={"type": "integer", "default": 36}),
        {"b": 1},
        {"a": "Ada", "b": 1},
    ),
    "empty": (form(), {}, {}),
    "required": (form(("a",), a={"type": "string"}, b={"type": "string"}), {"a": "x"}, {"a": "x"}),
}
NESTED = form(a={"type": "object", "properties": {"b": {"type": "string"}}})


def drive(sdk: str, mode: str, tmp_path: Path, cases: list[Any]) -> dict[str, Any]:
    plan = {
        "command": list(PROXY),
        "env": surroundings(tmp_path, {"configured": entry(plain(), tmp_path, "configured")}),
        "cwd": str(tmp_path),
        "mode": mode,
        "sdk": int(sdk[-1]),
        "modules": str(node_modules()) if sdk.startswith("ts") else "",
        "cases": cases,
    }
    done = subprocess.run(
        [*_program(sdk), json.dumps(plan)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _program(sdk: str) -> list[str]:
    if sdk.startswith("py"):
        python = sys.executable if sdk == "py2" else str(peer_python("py-mcp1"))
        return [python, str(CLIENTS / "asking.py")]
    node = shutil.which("node")
    if node is None:
        raise PeerMissingError("node")
    return [node, str(CLIENTS / "asking.mjs")]


@pytest.mark.parametrize("case", CASES)
def test_a_real_client_shows_every_form_as_it_was_sent_but_for_our_line(
    tmp_path: Path, case: str
) -> None:
    cases: list[Any] = [
        {
            "question": {"mode": "form", "message": f"About {name}?", "requestedSchema": schema},
            "answer": {"action": "accept", "content": given},
        }
        for name, (schema, given, _) in FORMS.items()
    ]
    nested = {"mode": "form", "message": "Deep?", "requestedSchema": NESTED}
    facts = drive(*CASES[case], tmp_path, [*cases, {"question": nested, "answer": None}])
    assert facts["complaints"] == []
    *answered, refused = facts["results"]
    for (name, (schema, _, got)), shown, result in zip(
        FORMS.items(), facts["shown"], answered, strict=True
    ):
        assert shown["message"] == f'emceepee: the server "configured" asks:\n> About {name}?'
        assert shown["requestedSchema"] == schema, name
        assert json.loads(result["content"][0]["text"]) == {"action": "accept", "content": got}
    assert refused["isError"]
    assert "is nested" in refused["content"][0]["text"]
