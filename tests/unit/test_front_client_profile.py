"""The table of hosts: who waits how long, and who can show what."""

import math
from dataclasses import fields

import pytest

from emceepee_stdio.config.clients import CLIENTS
from emceepee_stdio.front.client_profile import (
    PROFILES,
    UNKNOWN,
    ClientProfile,
    ceiling_s,
    person_limit_s,
    profile_of,
)


def waits(name: str, *, environ: dict[str, str] | None = None, **configured: int) -> float:
    return ceiling_s(
        name,
        profile_of(name),
        default_ms=45_000,
        configured_ms=configured,
        environ=environ or {},
    )


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("", 45.0),
        ("my-client", 45.0),
        ("claude-code", 110.0),
        ("claude-ai", 45.0),
        ("local-agent-mode-emceepee", 45.0),
        ("codex-mcp-client", 240.0),
        ("gemini-cli-mcp-client", 240.0),
        ("Visual Studio Code", 45.0),
        ("Zed", 45.0),
    ],
)
def test_patience_goes_by_the_name_of_the_client(name: str, seconds: float) -> None:
    assert waits(name) == seconds


def test_a_configured_patience_goes_before_the_table() -> None:
    assert waits("codex", CODEX=7_000) == 7.0
    assert waits("my-client", other=7_000, client=8_000) == 8.0


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("600000", 110.0),
        ("60000", 55.0),
        ("20000", 15.0),
        ("6000", 1.0),
        ("4000", 1.0),
        ("1000", 0.5),
        ("0", 110.0),
        ("soon", 110.0),
        ("-5", 110.0),
        ("", 110.0),
    ],
)
def test_a_host_that_tells_its_limit_is_answered_before_it(told: str, seconds: float) -> None:
    assert waits("claude-code", environ={"MCP_TOOL_TIMEOUT": told}) == seconds


def test_the_limit_of_the_host_goes_before_a_configured_patience() -> None:
    told = {"MCP_TOOL_TIMEOUT": "20000"}
    assert waits("claude-code", environ=told, claude=100_000) == 15.0


def test_of_several_rows_of_a_client_the_newest_that_its_version_has_reached_counts() -> None:
    old = ClientProfile(title="old", names=("host",))
    new = ClientProfile(title="new", names=("host",), since=(2, 1))
    table = (new, old)
    assert profile_of("Host A", "2.0.9", table) is old
    assert profile_of("Host A", "2.1", table) is new
    assert profile_of("Host A", "10.0.0-beta.1", table) is new
    assert profile_of("Host A", "", table) is new, "who tells no version is taken for current"
    assert profile_of("another", "2.1", table) is UNKNOWN


def test_a_name_that_a_person_chose_makes_no_other_client_of_it() -> None:
    """Qwen Code puts the name of the entry at the end of its own."""
    assert profile_of("qwen-cli-mcp-client-codex").title == "Qwen Code"
    assert profile_of("my-claude-code") is UNKNOWN


def test_every_row_says_where_it_is_from() -> None:
    known = {field.name for field in fields(ClientProfile)}
    for row in PROFILES:
        assert row.looked_up, row.title
        assert row.watched <= known
        assert bool(row.watched) <= bool(row.version), row.title


def test_every_client_that_can_be_installed_has_a_row() -> None:
    assert {row.key for row in PROFILES} - {None} == CLIENTS.keys()


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.title)
def test_a_note_for_the_page_is_made_of_whole_sentences(profile: ClientProfile):
    for note in profile.notes:
        assert note[0].isupper() or note[0] == "`", note
        assert note.removesuffix("*").endswith("."), note


def test_no_host_is_taken_to_show_more_than_was_watched() -> None:
    assert (UNKNOWN.result_bytes, UNKNOWN.cuts_end) == (15_000, True)
    for row in PROFILES:
        shows_more = row.result_bytes > UNKNOWN.result_bytes
        assert not shows_more or "result_bytes" in row.watched, row.title
        assert row.cuts_end or "cuts_end" in row.watched, row.title


@pytest.mark.parametrize("name", ["claude-ai", "Cursor", "Visual Studio Code", "Zed", "opencode"])
def test_a_host_that_was_not_watched_is_shown_little_and_the_pointer_first(name: str) -> None:
    profile = profile_of(name)
    assert (profile.result_bytes, profile.cuts_end) == (15_000, True)


@pytest.mark.parametrize(
    ("name", "said", "limit"),
    [
        ("claude-code", {}, 655.0),
        ("claude-code", {"MCP_TOOL_TIMEOUT": "300000"}, 295.0),
        ("claude-code", {"MCP_TOOL_TIMEOUT": "6000"}, 3.0),
        ("somebody else", {}, math.inf),
        ("somebody else", {"MCP_TOOL_TIMEOUT": "soon"}, math.inf),
    ],
)
def test_a_question_never_outlives_what_its_host_waits(
    name: str, said: dict[str, str], limit: float
) -> None:
    assert person_limit_s(profile_of(name), said) == limit
