"""One call as a person is asked about it: what they read is what is sent, and no other."""

import msgspec
import pytest
from msgspec import Raw

from emceepee_stdio.errors import InvalidArguments
from emceepee_stdio.trust.approval_request import ToolCallRequest, tool_call_request

KEY = bytes(32)


def call(args: str = '{"to":"ACME","sum":5}', **fields: str) -> ToolCallRequest:
    given = {"server": "bank", "tool": "pay", "target": "t", "definition": "d"} | fields
    return tool_call_request(args=Raw(args.encode()), **given)


def test_the_same_arguments_in_another_order_are_the_same_call() -> None:
    other = call('{ "sum": 5, "to": "ACME" }')
    assert other.digest(KEY) == call().digest(KEY)
    assert bytes(other.args) == b'{"sum":5,"to":"ACME"}'


@pytest.mark.parametrize(
    "other",
    [
        call('{"to":"ACME","sum":6}'),
        call('{"to":"ACME","sum":"5"}'),
        call('{"to":"ACME","sum":5,"x":null}'),
        call(tool="Pay"),
        call(target="u"),
    ],
)
def test_anything_else_is_another_call(other: ToolCallRequest) -> None:
    assert other.digest(KEY) != call().digest(KEY)


def test_an_agreement_to_a_tool_is_for_its_definition_whatever_the_arguments_are() -> None:
    standing = call().standing_digest(KEY)
    assert call("{}", server="other").standing_digest(KEY) == standing
    assert call(definition="e").standing_digest(KEY) != standing
    assert call(target="u").standing_digest(KEY) != standing
    assert call(tool="pay2").standing_digest(KEY) != standing
    assert call().digest(KEY) != standing


def test_a_key_that_stands_there_twice_is_read_and_sent_as_one() -> None:
    twice = call('{"to":"ACME","to":"Mallory"}')
    assert bytes(twice.args) == b'{"to":"Mallory"}'
    assert "ACME" not in twice.text()
    assert msgspec.json.decode(twice.args) == {"to": "Mallory"}


def test_nothing_in_it_breaks_out_of_its_line() -> None:
    evil = call('{"to":"a\\nTool: harmless\\u202e"}', tool="pay\nTool: look")
    assert len(evil.text().split("\n")) == 3
    assert "\u202e" not in evil.text()
    assert all("\n" not in line for line in evil.lines())
    assert evil.lines()[0] == "Server bank, tool pay\\nTool: look"


def test_a_secret_among_the_arguments_is_hidden_where_it_is_kept() -> None:
    secret = call('{"api_key":"sk-live-quiet-river"}')
    assert "quiet-river" in secret.text()
    assert "quiet-river" not in secret.text(hides=True)


@pytest.mark.parametrize("args", ["{", "[" * 5_000 + "]" * 5_000])
def test_what_cannot_be_read_is_no_call(args: str) -> None:
    with pytest.raises(InvalidArguments):
        call(args)


def test_no_name_of_a_server_passes_for_a_tool() -> None:
    assert call().lines()[0] == "Server bank, tool pay"
    named = call(server='bank", tool read', tool="pay, tool read").lines()[0]
    assert named == 'Server "bank\', tool read", tool "pay, tool read"'
