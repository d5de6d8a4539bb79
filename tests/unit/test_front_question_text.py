"""What a person reads of a server's question."""

from typing import Any

import pytest
from msgspec import Raw

from emceepee_stdio.backends.interface import Question
from emceepee_stdio.front.person_client import native_params
from emceepee_stdio.session.client_calls import Call, CallingClient, ServerRun
from emceepee_stdio.state.pending_requests import PendingRequest, RequestKind, RequestStatus

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def asked(*, server: str = "bank", tool: str | None = None, **params: Any) -> PendingRequest:
    run = None if tool is None else ServerRun(server=server, tool=tool)
    call = run and Call(client=CallingClient(ceiling=1.0), run=run)
    source = Question(
        method="elicitation/create", params=Raw(b"{}"), key=1, deliver=lambda _: True, call=call
    )
    return PendingRequest(
        id="q1",
        kind=RequestKind.ELICITATION,
        server=server,
        params=params,
        status=RequestStatus.PENDING,
        created_at=0.0,
        expires_at=1.0,
        source=source,
    )


def shown(*, chars: int = 2000, version: str | None = None, **params: Any) -> dict[str, Any]:
    def mask(text: str) -> str:
        return text.replace("s3cret", "***")

    return native_params(asked(**params), mask=mask, chars=chars, version=version)


def test_a_form_is_as_it_was_sent_but_for_our_line():
    assert shown(message="Who?", requestedSchema=FORM) == {
        "mode": "form",
        "message": 'emceepee: the server "bank" asks:\n> Who?',
        "requestedSchema": FORM,
    }
    known = shown(message="Who?", requestedSchema=FORM, tool="pay")
    assert known["message"].splitlines()[0] == (
        'emceepee: the server "bank" asks, in a call of "pay":'
    )


def test_a_page_is_named_by_its_host_and_its_address_is_whole():
    url = "https://login.bank.example/" + "x" * 3000
    page = shown(mode="url", message="Sign in", url=url, elicitationId="e", tool="pay")
    assert page["url"] == url
    assert page["elicitationId"] == "q1", "two servers may use the same id"
    assert page["message"] == (
        'emceepee: the server "bank" wants you to open login.bank.example,'
        ' in a call of "pay":\n> Sign in'
    )


def test_a_warning_is_ours_and_comes_before_the_words_of_the_server():
    page = shown(mode="url", message="Sign in", url="http://bank.example/", elicitationId="e")
    _, warning, words = page["message"].splitlines()
    assert warning.startswith("Warning: the page is not encrypted")
    assert words == "> Sign in"


@pytest.mark.parametrize(
    "end", ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1e", "\x85", "\u2028", "\u2029"]
)
def test_no_line_of_the_server_passes_for_ours(end: str):
    line = 'emceepee: the server "honest" asks:'
    lines = shown(message=f"Hello{end}{line}{end}Pay?", requestedSchema=FORM)["message"]
    ours, *theirs = lines.split("\n")
    assert ours == 'emceepee: the server "bank" asks:'
    assert theirs == ["> Hello", f"> {line}", "> Pay?"]
    assert len(lines.splitlines()) == 4


def test_nothing_that_cannot_be_seen_is_left_in_what_is_shown():
    hidden = "\u202e\u200b\x1b[2J\x00\ufeff"
    form = {
        "type": "object",
        "properties": {
            "a": {
                "type": "string",
                "title": f"T{hidden}",
                "description": f"D\n{hidden}",
                "oneOf": [{"const": f"c{hidden}", "title": f"O{hidden}"}],
            }
        },
    }
    params = shown(
        message=f"M{hidden}", server=f"b{hidden}", tool=f"t{hidden}", requestedSchema=form
    )
    field = params["requestedSchema"]["properties"]["a"]
    for text in (params["message"].replace("\n", ""), field["title"], field["description"]):
        assert text.isprintable()
    assert field["oneOf"][0]["title"].isprintable()
    assert field["oneOf"][0]["const"] == f"c{hidden}", "what is answered with stays as it is"


@pytest.mark.parametrize("blank", ["\u2800", "\u3164", "\u115f", "\u202e", "\U000e0041"])
def test_what_is_blank_is_shown_in_words_names_and_choices_alike(blank: str):
    fields = {
        f"n{blank}": {"type": "string"},
        "one": {"type": "string", "enum": [f"v{blank}", "w"]},
        "many": {"type": "array", "items": {"type": "string", "enum": [f"v{blank}", "w"]}},
        "plain": {"type": "string", "enum": ["v", "w"]},
    }
    form = {"type": "object", "properties": fields}
    params = shown(message=f"M{blank}", server="b", tool=f"t{blank}", requestedSchema=form)
    escape = blank.encode("unicode_escape").decode()
    assert (
        params["message"]
        == f'emceepee: the server "b" asks, in a call of "t{escape}":\n> M{escape}'
    )
    assert params["requestedSchema"]["properties"] == {
        f"n{blank}": {"type": "string", "title": f"n{escape}"},
        "one": {
            "type": "string",
            "enum": [f"v{blank}", "w"],
            "enumNames": [f"v{escape}", "w"],
        },
        "many": {
            "type": "array",
            "items": {
                "anyOf": [
                    {"const": f"v{blank}", "title": f"v{escape}"},
                    {"const": "w", "title": "w"},
                ]
            },
        },
        "plain": {"type": "string", "enum": ["v", "w"]},
    }


def test_spaces_push_nothing_out_of_sight_while_tables_and_emoji_stay():
    text = "\u26a0\ufe0f Fee:        5 EUR" + " " * 300 + "end"
    assert shown(message=text, requestedSchema=FORM)["message"].endswith(
        "> \u26a0 Fee:        5 EUR[300 spaces]end"
    )


def test_a_form_has_no_heading_of_its_own_beside_our_line():
    loud = FORM | {"title": "emceepee: may bank run?", "description": "Say yes.", "$ref": "x"}
    assert shown(message="Who?", requestedSchema=loud)["requestedSchema"] == FORM


def test_our_line_fits_into_what_a_host_shows_and_names_cannot_break_out_of_it():
    line = shown(message="x", server='"s" ' * 20, tool="t" * 200)["message"].splitlines()[0]
    assert len(line) <= 110
    assert line.count('"') == 2


def test_a_long_text_is_cut_and_secrets_are_masked():
    assert shown(message="s3cret", requestedSchema=FORM)["message"].endswith("> ***")
    cut = shown(message="x" * 3000, requestedSchema=FORM, chars=100)["message"]
    assert cut.endswith(" …")
    assert len(cut) < 200


@pytest.mark.parametrize("schema", [None, {}, 7, {"type": "object"}])
def test_a_form_without_fields_is_one_to_agree_to(schema: object):
    params = shown(message="Sure?", requestedSchema=schema)
    assert params["requestedSchema"] == {"type": "object", "properties": {}}


def test_a_client_of_an_older_version_gets_choices_as_it_knows_them():
    colours = [{"const": "r", "title": "Red"}, {"const": "g"}]
    form = {"type": "object", "properties": {"a": {"type": "string", "oneOf": colours}}}
    old = shown(message="?", requestedSchema=form, version="2025-06-18")
    assert old["requestedSchema"]["properties"]["a"] == {
        "type": "string",
        "enum": ["r", "g"],
        "enumNames": ["Red", "g"],
    }
    for version in ("2025-11-25", None):
        assert shown(message="?", requestedSchema=form, version=version)["requestedSchema"] == form
