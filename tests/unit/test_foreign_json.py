"""What a peer's JSON may cost: no number is read in the slow way, wherever it stands."""

import ast
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

import emceepee_stdio
from emceepee_stdio.foreign_json import (
    decode_object,
    decode_value,
    decoded,
    decoder,
    number,
    values_in,
)
from emceepee_stdio.front.http import http_app
from emceepee_stdio.front.http.http_replies import HttpRefusal

LONG = b"9" * 101
read_body = http_app._read
# These read what we wrote ourselves, or what the person at this terminal typed.
OWN = {
    "auth.token_store._decoded",
    "backends.lists.listed_in",
    "cli.call._value",
    "cli.call.given_arguments",
    "cli.doctor.backend_checks._listed",
    "config.fields.schema_of",
    "helper_main._serve_page",
    "journal.journal_reader._decode",
    "session.catalogue._decode_record",
    "session.catalogue_files._decode_names",
    "session.own_resources._read_held",
    "session.own_resources._read_message",
    "session.proxy_status._decode",
    "trace.trace_page.saved",
    "trace.trace_reader._decode_dropped",
    "trace.trace_reader._decode_record",
    "trust.store._read",
}


@pytest.mark.parametrize(
    "text", ["1e308", "5e-324", "1.7976931348623157e308", "-0.0", "1e-400", "12.5", "2e2"]
)
def test_floats_are_what_python_reads(text: str) -> None:
    assert decode_value(f"[{text}]") == [float(text)]
    assert decode_object(b'{"a":%b}' % text.encode()) == {"a": float(text)}


@pytest.mark.parametrize("text", ["1e309", "-1e999"])
def test_a_number_that_no_float_holds_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="out of range"):
        decode_value(f"[{text}]")


@pytest.mark.parametrize(
    "text",
    [LONG, b"[-%b]" % LONG, b'{"a": {"b":%b}}' % LONG, b'["%b\\"", %b]' % (LONG, LONG)],
)
def test_a_long_integer_is_refused_before_it_is_read(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError, match="more than 100 digits"):
        decode_value(text)
    with pytest.raises(msgspec.DecodeError, match="more than 100 digits"):
        decode_value(Raw(text))


@pytest.mark.parametrize(
    "text",
    [
        b"9" * 100,
        b'"%b"' % LONG,
        b'["a\\"%b", 1]' % LONG,
        b'{"%b": 1}' % LONG,
        b"0.%b" % LONG,
        b"%b.5" % LONG,
        b"%be-10" % LONG,
    ],
)
def test_long_digits_that_are_no_integer_are_read(text: bytes) -> None:
    assert decode_value(text) == msgspec.json.decode(text)


@pytest.mark.parametrize("value", [b"1e308", b"[]", b"{}", b'"x"', b'{"a":1}'])
def test_more_values_than_can_be_read_while_others_wait_are_refused(value: bytes) -> None:
    many = b"[%b]" % b",".join([value] * 20_001)
    for text in (many, Raw(many), b'{"a":{"b":%b}}' % many):
        with pytest.raises(msgspec.ValidationError, match="at most 20,000 values"):
            decode_value(text)
    few = b"[%b]" % b",".join([value] * 9_000)
    assert decode_value(few) == msgspec.json.decode(few)


@pytest.mark.parametrize("text", [",[{" * 50_000, '\\",[' * 50_000, "\\" * 50_001 + '","' * 30_000])
def test_what_a_string_holds_are_no_values(text: str) -> None:
    written = msgspec.json.encode([text])
    assert decode_value(written) == [text]
    assert values_in(written) <= 1


def test_what_is_not_json_raises_as_ever() -> None:
    for text in (b"", b"{", b'"\xff', b"nul"):
        with pytest.raises((msgspec.MsgspecError, UnicodeError)):
            decode_value(text)
    with pytest.raises(msgspec.ValidationError):
        decoder(dict[str, str])(b'{"a": 1}')


def test_a_string_that_never_ends_is_looked_at_once() -> None:
    """With every quote tried anew, this would take hours."""
    for text in (b"1" * 101 + b',"' + b'\\"' * 1_000_000, b'"' * 1_000_001 + LONG):
        with pytest.raises(msgspec.DecodeError):
            decode_value(text)


@pytest.mark.parametrize(
    ("raw", "value"), [(b"1", 1), (b"2.5", 2.5), (b"1e308", 1e308), (b"null", None)]
)
def test_a_number_that_stayed_raw_is_read_when_it_is_needed(raw: bytes, value: object) -> None:
    assert number(Raw(raw)) == value
    assert number(UNSET) is None


@pytest.mark.parametrize("raw", [b"true", b'"1"', b"[]", b"1e999", LONG])
def test_what_is_no_number_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        number(Raw(raw))


# Every decoder of the package


def modules() -> Iterator[tuple[str, Any]]:
    for found in pkgutil.walk_packages(emceepee_stdio.__path__, "emceepee_stdio."):
        name = found.name.removeprefix("emceepee_stdio.")
        if not found.ispkg and name not in ("__main__", "wire.windows", "wire.posix"):
            yield name, importlib.import_module(found.name)


def slow_types(kind: Any, *, has_hook: bool) -> set[str]:
    """The types in which a number is read by msgspec itself: floats, and anything at all."""
    found: set[str] = set()
    seen: list[object] = []

    def look(info: object) -> None:
        if any(info is known for known in seen):
            return
        seen.append(info)
        if isinstance(info, msgspec.inspect.FloatType):
            found.add("float")
        is_any = isinstance(info, msgspec.inspect.AnyType | msgspec.inspect.CustomType)
        if is_any and not has_hook:
            found.add("object")
        for name in getattr(info, "__struct_fields__", ()):
            inner = getattr(info, name)
            for one in inner if isinstance(inner, tuple) else [inner]:
                if isinstance(one, msgspec.inspect.Type | msgspec.inspect.Field):
                    look(one)

    look(msgspec.inspect.type_info(kind))
    return found


def test_no_decoder_of_foreign_json_reads_numbers_in_the_slow_way() -> None:
    slow: dict[str, set[str]] = {}
    count = 0
    for module, loaded in modules():
        for name, value in vars(loaded).items():
            reader = _decoder_in(value)
            if reader is not None and f"{module}.{name}" not in OWN:
                count += 1
                found = slow_types(reader.type, has_hook=reader.float_hook is not None)
                if found:
                    slow[f"{module}.{name}"] = found
    assert count > 30, "decoders are found where they are"
    assert slow == {}


def test_what_stays_raw_in_an_envelope_is_all_that_may_be_large() -> None:
    """No member is anything at all: it would be read whole, however large it is."""
    wide = {
        f"{module}.{name}"
        for module, loaded in modules()
        for name, value in vars(loaded).items()
        if (reader := _decoder_in(value)) is not None
        and "decode_foreign" not in getattr(value, "__qualname__", "")
        and slow_types(reader.type, has_hook=False)
    }
    for module, loaded in modules():
        for call, function in calls_in(ast.parse(Path(loaded.__file__).read_text("utf-8"))):
            if ast.unparse(call.func) == "opened" and len(call.args) == 2:
                kind = ast.unparse(call.args[1])
                if kind.isidentifier() and kind.islower():
                    continue  # a parameter: of the store of approvals, whose files are ours
                if slow_types(eval(kind, vars(loaded)), has_hook=False):  # the package's own code
                    wide.add(f"{module}.{function}")
    assert wide - OWN == set()


def _decoder_in(value: Any) -> msgspec.json.Decoder[Any] | None:
    owner = getattr(value, "__self__", None)
    if isinstance(owner, msgspec.json.Decoder):
        return owner
    cells: list[Callable[..., object]] = [
        cell.cell_contents for cell in getattr(value, "__closure__", None) or ()
    ]
    return next((found for cell in cells if (found := _decoder_in(cell))), None)


def calls_in(tree: ast.AST, function: str = "") -> Iterator[tuple[ast.Call, str]]:
    """Every call, and the function in which it stands."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield node, function
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from calls_in(node, node.name if is_function else function)


def test_no_call_of_decode_reads_foreign_json_in_the_slow_way() -> None:
    slow: dict[str, object] = {}
    count = 0
    for module, loaded in modules():
        for call, function in calls_in(ast.parse(Path(loaded.__file__).read_text("utf-8"))):
            is_decode = ast.unparse(call.func) == "msgspec.json.decode"
            if is_decode and f"{module}.{function}" not in OWN:
                count += 1
                kind = next((word.value for word in call.keywords if word.arg == "type"), None)
                found = {"object"}
                if kind is not None:
                    given = eval(ast.unparse(kind), vars(loaded))  # the package's own code
                    found = slow_types(given, has_hook=False)
                if found:
                    slow[f"{module}:{call.lineno}"] = found
    assert count > 10, "calls are found where they are"
    assert slow == {}


@pytest.mark.parametrize("value", [b"1e308", b"[]", b'"x"', b"{}", LONG])
@pytest.mark.parametrize("member", [b"arguments", b"name", b"x"])
def test_of_a_request_over_http_what_is_large_is_passed_on_unread(value: bytes, member: bytes):
    many = b"[%b]" % b",".join([value] * 100_000)
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"a":1},"%b":%b}}'
    message = read_body(body % (member, many))
    assert {**message, "params": None} == {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": None,
    }
    params = message["params"]
    assert isinstance(params, dict)
    assert params == {"_meta": {"a": 1}, member.decode(): Raw(many)}


@pytest.mark.parametrize("member", [b"jsonrpc", b"id", b"method"])
def test_a_large_value_in_the_head_of_a_request_is_not_read(member: bytes):
    many = b"[%b]" % b",".join([b"1e308"] * 100_000)
    assert read_body(b'{"%b":%b}' % (member, many)) == {member.decode(): Raw(many)}


def test_a_request_with_large_metadata_is_refused():
    with pytest.raises(HttpRefusal):
        read_body(b'{"params":{"_meta":{"a":[%b]}}}' % b",".join([b"[]"] * 50_000))


@pytest.mark.parametrize(
    "data", ["", "[", '{"a": 1e999}', "[" * 100_000, '["x"]', b'{"\xff": 1}', "1" * 101]
)
def test_what_cannot_be_read_as_the_type_is_none(data: str | bytes) -> None:
    assert decoded(data, dict[str, int]) is None


def test_what_can_be_read_is_its_value() -> None:
    assert decoded('{"a": 1}', dict[str, int]) == {"a": 1}
