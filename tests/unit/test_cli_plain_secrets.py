import json
from typing import Any

import pytest

from emceepee_stdio.cli.secret_values import plain_secrets, references, without

ENTRY: dict[str, Any] = {"command": "x"}


def found(entry: Any) -> dict[str, str]:
    return {one.where: one.value for one in plain_secrets(json.dumps({"mcpServers": {"a": entry}}))}


@pytest.mark.parametrize(
    ("entry", "secrets"),
    [
        ({"env": {"GITHUB_TOKEN": "abc"}}, {"env.GITHUB_TOKEN": "abc"}),
        ({"environment": {"DB_PASS": "abc"}}, {"environment.DB_PASS": "abc"}),
        ({"env": {"SETTING": "x9f8e7d6c5b4a3f2"}}, {"env.SETTING": "x9f8e7d6c5b4a3f2"}),
        ({"env": {"DB": "postgres://u:pw@h/x"}}, {"env.DB": "postgres://u:pw@h/x"}),
        ({"headers": {"Authorization": "Bearer abc"}}, {"headers.Authorization": "abc"}),
        ({"headers": {"X-Api-Key": "abc"}}, {"headers.X-Api-Key": "abc"}),
        ({"url": "https://me:pw@h/mcp"}, {"url": "pw"}),
        ({"serverUrl": "https://h/mcp?a=1&api_key=abc"}, {"serverUrl": "abc"}),
        ({"oauth": {"client_id": "me", "clientSecret": "abc"}}, {"oauth.clientSecret": "abc"}),
        ({"args": ["--token", "abc123"]}, {"args[1]": "abc123"}),
        ({"command": {"path": "x", "env": {"A_TOKEN": "abc"}}}, {"env.A_TOKEN": "abc"}),
    ],
)
def test_a_secret_in_plain_text_is_found(entry: Any, secrets: dict[str, str]):
    assert found(entry) == secrets


@pytest.mark.parametrize(
    "entry",
    [
        {"env": {"GITHUB_TOKEN": "${TOKEN}", "B_TOKEN": "${keyring:x}", "C_TOKEN": ""}},
        {"env": {"REGION": "eu-central-1", "MODEL": "claude-3-5-sonnet-20241022", "LANG": "C"}},
        {"headers": {"Accept": "text/html", "Authorization": "Bearer ${TOKEN}"}},
        {"url": "https://example.org/v1/mcp?page=1"},
        {"args": ["--token", "${TOKEN}"]},
        {"oauth": {"client_id": "me", "scope": "read"}},
        7,
    ],
)
def test_a_reference_and_what_is_plainly_no_secret_is_not(entry: Any):
    assert found(entry) == {}


def test_references_take_the_place_of_secrets_and_all_else_stays():
    text = """{
  // mine
  "mcpServers": {
    "a": {"url": "https://me:pw1@h/mcp?api_key=pw2&x=1", "headers": {"X-Token": "Bearer pw3"}}
  }
}"""
    secrets = {f"n{n}": one for n, one in enumerate(plain_secrets(text), start=1)}
    after = without(text, secrets)
    assert after == (
        text.replace("pw3", "${keyring:n1}")
        .replace("pw1", "${keyring:n2}")
        .replace("pw2", "${keyring:n3}")
    )
    assert references(after) == {"n1": ["a"], "n2": ["a"], "n3": ["a"]}
    assert plain_secrets(after) == []


def test_a_secret_beside_a_reference_is_named_and_cannot_be_moved():
    entry = {"env": {"A": "ghp_quietriverbank0123456789abcdefghij${HOME}", "B": "${HOME}/token"}}
    (one,) = plain_secrets(json.dumps({"mcpServers": {"a": {"command": "x", **entry}}}))
    assert (one.where, one.steps) == ("env.A", None)
    assert "${keyring:NAME}" in one.obstacle


@pytest.mark.parametrize(
    ("entry", "variable", "written"),
    [
        ({"env": {"GITHUB_TOKEN": "abc"}}, "GITHUB_TOKEN", "${GITHUB_TOKEN}"),
        ({"headers": {"Authorization": "Bearer abc"}}, "A_TOKEN", "Bearer ${A_TOKEN}"),
        ({"headers": {"authorization": "Basic abc"}}, "A_TOKEN", "Basic ${A_TOKEN}"),
        ({"headers": {"Authorization": "abc"}}, "A_AUTHORIZATION", "${A_AUTHORIZATION}"),
        ({"headers": {"X-Key": "Bearer abc"}}, "A_X_KEY", "Bearer ${A_X_KEY}"),
        ({"url": "https://me:pw@h/mcp"}, "A_URL", "${A_URL}"),
    ],
)
def test_a_variable_takes_the_place_of_what_is_secret(entry: Any, variable: str, written: str):
    (one,) = plain_secrets(json.dumps({"mcpServers": {"a": {**ENTRY, **entry}}}))
    assert one.variable == variable
    assert one.with_variable(variable) == written
