import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from emceepee_stdio.wire.codec import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    Malformed,
    Message,
    Noise,
    Notification,
    Request,
    Response,
    RpcError,
    decode,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    salvage_id,
    to_json,
)

DEEP = 100_000
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
keys = st.text() | st.sampled_from(["id", "method", "result", "error", "jsonrpc", "params"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=12
)
objects = st.dictionaries(keys, values, max_size=5)
ids = st.integers() | st.text()


def one(line: bytes, *, strict: bool = False) -> Message:
    (message,) = decode(line, strict=strict)
    return message


def answer(line: bytes) -> Raw | RpcError:
    message = one(line)
    assert isinstance(message, Response)
    assert message.id == 1
    return message.outcome


def result(line: bytes) -> bytes:
    outcome = answer(line)
    assert isinstance(outcome, Raw)
    return bytes(outcome)


def error(line: bytes) -> RpcError:
    outcome = answer(line)
    assert isinstance(outcome, RpcError)
    return outcome


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


# The four kinds


def test_a_request_a_notification_a_result_and_an_error_are_told_apart():
    assert one(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1}}') == Request(
        1, "m", Raw(b'{"a":1}')
    )
    assert one(b'{"jsonrpc":"2.0","method":"m"}') == Notification("m")
    assert one(b'{"jsonrpc":"2.0","id":"x","result":{}}') == Response("x", Raw(b"{}"))
    assert one(
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no","data":[1]}}'
    ) == Response(1, RpcError(-1, "no", Raw(b"[1]")))


@pytest.mark.parametrize("message_id", [0, "", -1, "a b", 2**80])
def test_every_string_and_integer_is_an_id(message_id: int | str):
    shown = json.dumps(message_id).encode()
    assert one(b'{"id":%b,"method":"m"}' % shown) == Request(message_id, "m")
    assert one(b'{"id":%b,"result":0}' % shown) == Response(message_id, Raw(b"0"))


def test_params_that_are_null_are_no_params():
    assert one(b'{"id":1,"method":"m","params": null }') == Request(1, "m")
    assert one(b'{"method":"m","params":null}') == Notification("m")


def test_unknown_keys_of_the_envelope_are_ignored():
    assert one(b'{"id":1,"extra":{"id":9},"method":"m"}') == Request(1, "m")


# The envelope, when it is off


@pytest.mark.parametrize("version", [b"", b'"jsonrpc":"1.0",', b'"jsonrpc":2,', b'"jsonrpc":null,'])
def test_without_the_version_everything_is_taken_as_it_is_meant(version: bytes):
    assert one(b'{%b"id":1,"method":"m"}' % version) == Request(1, "m")
    assert one(b'{%b"method":"m"}' % version) == Notification("m")
    assert one(b'{%b"id":1,"result":2}' % version) == Response(1, Raw(b"2"))


@pytest.mark.parametrize("version", [b"", b'"jsonrpc":"1.0",', b'"jsonrpc":2,', b'"jsonrpc":null,'])
def test_strictly_a_question_must_say_its_version_but_an_answer_never_need(version: bytes):
    question = one(b'{%b"id":1,"method":"m"}' % version, strict=True)
    assert isinstance(question, Malformed)
    assert (question.id, question.code) == (1, INVALID_REQUEST)
    told = one(b'{%b"method":"m"}' % version, strict=True)
    assert isinstance(told, Malformed)
    assert (told.id, told.code) == (None, INVALID_REQUEST)
    assert one(b'{%b"id":1,"result":2}' % version, strict=True) == Response(1, Raw(b"2"))


def test_strictly_the_right_version_passes():
    assert one(b'{"jsonrpc":"2.0","id":1,"method":"m"}', strict=True) == Request(1, "m")
    assert one(b'{"jsonrpc":"2.0","method":"m"}', strict=True) == Notification("m")


@pytest.mark.parametrize("shown", [b"1.0", b"1e0", b"10e-1"])
def test_a_float_that_is_a_whole_number_is_an_id(shown: bytes):
    assert one(b'{"id":%b,"result":5}' % shown) == Response(1, Raw(b"5"))
    assert one(b'{"id":%b,"method":"m"}' % shown) == Request(1, "m")


@pytest.mark.parametrize(
    "shown", [b"1.5", b"null", b"true", b"false", b"[]", b"{}", b"NaN", b"1e999", b"-Infinity"]
)
def test_any_other_id_is_malformed_and_cannot_be_answered(shown: bytes):
    for rest in (b'"result":1', b'"method":"m"', b'"error":{"code":1,"message":"x"}'):
        message = one(b'{"jsonrpc":"2.0","id":%b,%b}' % (shown, rest))
        assert isinstance(message, Malformed)
        assert (message.id, message.code) == (None, INVALID_REQUEST)


def test_neither_method_nor_id_is_malformed():
    for line in (b"{}", b'{"jsonrpc":"2.0"}', b'{"result":1}', b'{"a":{"id":1,"method":"m"}}'):
        assert one(line) == Malformed(None, INVALID_REQUEST, "neither a method nor an id")


@pytest.mark.parametrize("method", [b"5", b"[]", b"true"])
def test_a_method_that_is_no_string_is_malformed_with_its_id(method: bytes):
    message = one(b'{"id":7,"method":%b}' % method)
    assert isinstance(message, Malformed)
    assert (message.id, message.code) == (7, INVALID_REQUEST)


def test_an_answer_padded_with_nulls_still_ends_its_call():
    line = b'{"jsonrpc":"2.0","id":1,"method":null,"params":null,"result":{"a":1},"error":null}'
    assert result(line) == b'{"a":1}'


def test_an_error_beside_a_result_wins():
    assert error(b'{"id":1,"result":{},"error":{"code":-5,"message":"no"}}') == RpcError(-5, "no")
    assert error(b'{"id":1,"error":{"code":-5,"message":"no"},"result":{}}') == RpcError(-5, "no")


def test_an_error_of_null_beside_a_result_is_no_error():
    assert result(b'{"id":1,"result":{"a":1},"error":null}') == b'{"a":1}'


def test_a_result_of_null_is_a_result():
    assert result(b'{"id":1,"result":null}') == b"null"
    assert result(b'{"id":1,"error":null,"result": null }') == b"null"


def test_neither_result_nor_error_ends_the_call_with_an_error():
    for line in (b'{"id":1}', b'{"id":1,"error":null}', b'{"jsonrpc":"2.0","id":1,"x":2}'):
        assert error(line).code == INVALID_REQUEST


@pytest.mark.parametrize(
    "odd",
    [
        b'"boom"',
        b"17",
        b"[]",
        b"{}",
        b"true",
        b'{"code":"x","message":"m"}',
        b'{"code":1.5,"message":"m"}',
        b'{"code":1}',
        b'{"message":"m"}',
        b'{"code":1,"message":null}',
        b'{"code":%b,"message":"m"}' % (b"9" * 5000),
    ],
)
def test_an_error_of_odd_shape_is_an_error_that_shows_it(odd: bytes):
    got = error(b'{"id":1,"error":%b}' % odd)
    assert got.code == INTERNAL_ERROR
    assert odd[:400].decode() in got.message
    assert len(got.message) < 1000
    assert got.data is None


def test_of_two_equal_keys_the_last_wins():
    assert one(b'{"id":2,"result":1,"id":1,"result":2}') == Response(1, Raw(b"2"))
    assert one(b'{"id":1,"method":"a","method":"b"}') == Request(1, "b")


# Batches


def test_a_batch_is_taken_apart_in_order():
    line = (
        b' [ {"id":1,"result":[1, 2]} ,{"method":"n"}, {"id":"q","method":"m"},'
        b'{"id":2,"error":{"code":1,"message":"x"}}, 7, "text", {"id":null,"method":"m"}]\r'
    )
    kinds = [type(message) for message in decode(line)]
    assert kinds == [
        *(Response, Notification, Request, Response),
        *(Malformed, Malformed, Malformed),
    ]
    assert decode(line)[0] == Response(1, Raw(b"[1, 2]"))


def test_a_batch_within_a_batch_is_malformed_and_its_neighbours_are_not():
    messages = decode(b'[[{"id":1,"result":1}],{"id":2,"result":2}]')
    assert isinstance(messages[0], Malformed)
    assert messages[1:] == [Response(2, Raw(b"2"))]


def test_an_empty_batch_is_malformed():
    [message] = decode(b"[]")
    assert message == decode(b" [ ] ")[0] == Malformed(None, -32600, "a batch holds no message")


def test_a_batch_that_is_slightly_off_is_repaired():
    assert decode(rb'[{"id":1,"result":{"a":NaN}},{"id":2,"result":"\ud800"}]') == [
        Response(1, Raw(b'{"a":null}')),
        Response(2, Raw('"\ufffd"'.encode())),
    ]


def test_strictness_reaches_into_a_batch():
    messages = decode(b'[{"id":1,"method":"m"},{"id":2,"result":2}]', strict=True)
    assert [type(message) for message in messages] == [Malformed, Response]


@pytest.mark.parametrize("line", [b"[INFO] started", b"[", b'[{"id":1,"result":1}', b"[1,]"])
def test_a_line_that_only_looks_like_a_batch_is_noise(line: bytes):
    assert one(line) == Noise(line.decode())


def test_a_batch_nested_too_deep_is_noise():
    assert isinstance(one(nested(DEEP)[:-1]), Noise)


# What is repaired


@pytest.mark.parametrize("constant", [b"NaN", b"Infinity", b"-Infinity"])
def test_constants_that_json_does_not_know_become_null(constant: bytes):
    assert result(b'{"id":1,"result":{"a":[%b]}}' % constant) == b'{"a":[null]}'
    request = one(b'{"id":1,"method":"m","params":{"a":%b}}' % constant)
    assert request == Request(1, "m", Raw(b'{"a":null}'))


@pytest.mark.parametrize(
    ("escaped", "repaired"),
    [
        (rb"\ud800", "\ufffd"),
        (rb"\udc00", "\ufffd"),
        (rb"a\udfffb", "a\ufffdb"),
        (rb"\udc00\ud800", "\ufffd\ufffd"),
        (rb"\ud83d\ude00\ud83d", "\U0001f600\ufffd"),
    ],
)
def test_lone_surrogates_become_the_replacement_character(escaped: bytes, repaired: str):
    good = json.dumps(repaired, ensure_ascii=False).encode()
    assert result(b'{"id":1,"result":["%b"]}' % escaped) == b"[%b]" % good
    assert result(b'{"id":1,"result":{"%b":1}}' % escaped) == b"{%b:1}" % good
    assert one(b'{"id":"%b","result":1}' % escaped) == Response(repaired, Raw(b"1"))
    assert one(b'{"id":1,"method":"%b"}' % escaped) == Request(1, repaired)
    assert error(b'{"id":1,"error":{"code":1,"message":"%b"}}' % escaped) == RpcError(1, repaired)


def test_whole_surrogate_pairs_are_left_as_they_are():
    assert result(rb'{"id":1,"result":"\ud83d\ude00"}') == rb'"\ud83d\ude00"'


def test_raw_control_characters_in_strings_are_escaped():
    assert json.loads(result(b'{"id":1,"result":"a\tb\x01c\x00d\x1f"}')) == "a\tb\x01c\x00d\x1f"


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88", b"\x80"])
def test_invalid_utf_8_becomes_replacement_characters(bad: bytes):
    text = json.loads(result(b'{"id":1,"result":"a%bb"}' % bad))
    assert text == f"a{bad.decode(errors='replace')}b"
    assert "\ufffd" in text


def test_a_byte_order_mark_is_skipped_however_often_it_stands():
    bom = b"\xef\xbb\xbf"
    for mark in (bom, bom * 3, bom + b" " + bom, b" " + bom, (bom + b" ") * 5_000):
        assert result(mark + b'{"id":1,"result":{"b":2}}') == b'{"b":2}'
    assert decode(bom) == decode(bom * 5_000) == []


@pytest.mark.parametrize("line", [b"", b" ", b"\r", b"\t \r", b"\0\0", b"\0 \r"])
def test_a_blank_line_says_nothing(line: bytes):
    assert decode(line) == []


@pytest.mark.parametrize(
    ("before", "after"), [(b"", b"\r"), (b"  ", b"\t"), (b"\0\0", b"\0"), (b"\r", b"\0\r")]
)
def test_padding_around_a_message_is_ignored(before: bytes, after: bytes):
    assert result(before + b'{"id":1,"result":{"b" : 2}}' + after) == b'{"b" : 2}'


@pytest.mark.parametrize(
    "number", [b"1e999", b"-0", b"123456789012345678901234567890", b"9" * 5000, b"1E+2", b"0.10"]
)
def test_a_number_of_any_size_is_handed_on_as_it_is(number: bytes):
    assert result(b'{"id":1,"result":%b}' % number) == number


def test_a_huge_integer_beside_something_to_repair_survives():
    line = b'{"id":1,"result":[NaN,123456789012345678901234567890]}'
    assert result(line) == b"[null,123456789012345678901234567890]"


# What is broken, but carries an id


@pytest.mark.parametrize(
    "line",
    [
        b'{"id":1,"result":%b}' % nested(DEEP),
        b'{"result":%b,"id":1}' % nested(DEEP),
        b'{"result":%b , "jsonrpc":"2.0", "id" : 1 } \r' % nested(DEEP),
        b'{"id":1,"result":%b}' % (b'{"id":' * DEEP + b"7" + b"}" * DEEP),
        b'{"result":%b,"id":1}' % (b'{"id":' * DEEP + b"7" + b"}" * DEEP),
        b'{"id":1,"result":NaN,"x":%b}' % nested(5_000),
    ],
    ids=["head", "tail", "tail with spaces", "ids inside", "ids inside, tail", "to repair"],
)
def test_an_answer_nested_too_deep_ends_its_call(line: bytes):
    assert error(line).code == PARSE_ERROR
    assert len(error(line).message) < 1000


def test_a_question_nested_too_deep_is_malformed_with_its_id():
    for line in (
        b'{"id":7,"method":"m","params":%b}' % nested(DEEP),
        b'{"method":"m","params":%b,"id":7}' % nested(DEEP),
    ):
        message = one(line)
        assert isinstance(message, Malformed)
        assert (message.id, message.code) == (7, PARSE_ERROR)


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"te',
        b'{"jsonrpc":"2.0","id":1,"result":"unfinished \\" text, {[',
        b'{"jsonrpc":"2.0","id":1,',
        b'{"id":1,"result":{"a":1}} trailing',
        b'{"id":1,"result":{"a":\'single\'}}',
        b'{"id":1,"result":{"a":1,}}',
        b'{"id":1,"result":01}',
        b'{"id":1,"result":"\\x"}',
        b'{"result":{"a":1,},"id":1}',
        b'{"id":1,"error":{"code":1,"message":"cut o',
        b'{"id":1,"result":{"method":"inner',
        b'{"id":1,"result":{}}{"id":2,"method":"m"}',
        b'{"id":1,"result":x"method":"m","id":9}}',
    ],
)
def test_a_broken_answer_with_a_readable_id_ends_its_call(line: bytes):
    assert error(line).code == PARSE_ERROR


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"na',
        b'{"method":"m","id":7,"params":',
        b'{"method":"m","params":{"result":1,},"id":7}',
    ],
)
def test_a_broken_question_with_a_readable_id_can_be_answered(line: bytes):
    message = one(line)
    assert isinstance(message, Malformed)
    assert (message.id, message.code) == (7, PARSE_ERROR)


@pytest.mark.parametrize(
    "line",
    [
        b'{"result":{"id":7}',
        b'{"result":{"items":[{"id":7}',
        b'{"jsonrpc":"2.0","result":[{"id":7},',
        b'{"params":{"id":7},"method":"m"',
        b'{"a":"x \\"id\\":7, ","b":"\\"id\\":7}',
        b'{"text":"\\\\","x\\"id":7,',
        b'{"id":null,7,"a',
        b'{"id":{"id":7},"a',
        b'{"id":[7],"a',
        b'{"id":true,"a',
        b'{"result":%b' % (b'{"id":7}' * 20_000),
        b'{"result":[%b' % (b'{"id":7},' * 20_000 + b'{"id":7}'),
        b'{"result":{}}{"id":7}',
        b'{"id":7',
        b'{"id":"7',
        b'{"id":"7"',
        b'{"x":%b"id":7}' % (b" " * 70_000),
    ],
)
def test_an_id_that_is_nested_or_cut_off_is_never_taken(line: bytes):
    message = one(line)
    assert isinstance(message, Noise)


def test_the_text_of_an_unfinished_string_is_not_searched():
    head = b'{"id":1,"result":"'
    assert error(head + b',"id":2,'.replace(b'"', b'\\"') * 50).code == PARSE_ERROR


@pytest.mark.timeout(20)
def test_many_quotes_in_an_unfinished_string_cost_no_time():
    for _ in range(3):
        assert error(b'{"id":1,"result":"' + b'\\"' * 40_000).code == PARSE_ERROR


@pytest.mark.timeout(20)
def test_many_quotes_beyond_what_is_searched_cost_no_time():
    for telling in (b'"method":"x","params"', b'"result"'):
        head = b'{"jsonrpc":"2.0",%b:{"x":"\x01' % telling
        assert isinstance(one(head + b'\\"' * 2_000_000), Noise)


def test_an_id_beyond_what_is_searched_is_not_found():
    line = b'{"a":"%b","id":1,"b":' % (b"x" * 70_000)
    assert isinstance(one(line), Noise)


@pytest.mark.parametrize("cut", [65_530, 65_536, 65_540])
def test_an_id_that_the_limit_of_the_search_cuts_is_not_taken_for_a_shorter_one(cut: int):
    head = b'{"a":"'
    head += b"x" * (cut - len(head) - 8) + b'","id":'
    found, _ = salvage_id(head + b"123456789,")
    assert found in (None, 123456789)


def test_the_end_of_a_line_that_was_not_kept_may_hold_its_id():
    head = b'{"result":{"text":"' + b"x" * 70_000
    assert salvage_id(head) == (None, False)
    assert salvage_id(head, b'xxx"},"jsonrpc":"2.0","id":5}\r') == (5, False)
    assert salvage_id(head, b'xxx"},"jsonrpc":"2.0","id":"five"}') == ("five", False)
    assert salvage_id(b'{"id":4,' + head[1:], b',"id":5}') == (4, False)


# Noise


@pytest.mark.parametrize(
    "line",
    [
        b"Server listening on port 8080",
        b"{not json}",
        b"{",
        b'{"a',
        b"{'id': 1, 'result': 2}",
        b'"a string"',
        b"17",
        b"null",
        b"\x1b[32mINFO\x1b[0m",
        b"}{",
        b'{"id":%b,"result":1}' % (b"1" * 5000),
    ],
)
def test_a_line_that_is_no_message_is_noise(line: bytes):
    assert one(line) == Noise(line[:2_000].decode())


def test_noise_that_is_no_text_is_shown_as_far_as_it_goes():
    assert one(b"\xff\xfe" + b"x" * 10_000) == Noise("\ufffd\ufffd" + "x" * 1_994)


# What we write


def test_json_that_we_write_can_be_read_by_everybody():
    assert to_json({"a": float("nan"), "b": [float("inf")]}) == b'{"a":null,"b":[null]}'
    assert to_json({"\ud800": ["\udc00", {"x": "\ud83d"}], "raw": Raw(b"[1 , 2]")}) == (
        '{"\ufffd":["\ufffd",{"x":"\ufffd"}],"raw":[1 , 2]}'.encode()
    )
    assert to_json("\ud83d\ude00") == '"\U0001f600"'.encode()


def test_an_error_without_an_id_leaves_it_out():
    line = encode_error(None, RpcError(PARSE_ERROR, "no"))
    assert line == b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"no"}}\n'


def check_line(line: bytes) -> Any:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return json.loads(line)


@given(message_id=ids, method=st.text(), params=st.none() | objects)
def test_a_request_is_read_as_it_was_written(message_id: int | str, method: str, params: Any):
    raw = None if params is None else to_json(params)
    line = encode_request(message_id, method, params)
    assert check_line(line)["method"] == method
    expected = Request(message_id, method, None if raw is None else Raw(raw))
    assert decode(line[:-1], strict=True) == [expected]


@given(method=st.text(), params=st.none() | objects)
def test_a_notification_is_read_as_it_was_written(method: str, params: Any):
    raw = None if params is None else to_json(params)
    line = encode_notification(method, raw)
    assert "id" not in check_line(line)
    expected = Notification(method, None if raw is None else Raw(raw))
    assert decode(line[:-1], strict=True) == [expected]


@given(message_id=ids, value=values)
def test_a_result_is_read_as_it_was_written(message_id: int | str, value: Any):
    raw = to_json(value)
    line = encode_result(message_id, raw)
    assert check_line(line)["id"] == message_id
    assert decode(line[:-1]) == [Response(message_id, Raw(raw))]


@given(
    message_id=ids,
    code=st.integers(-(2**63), 2**63 - 1),
    message=st.text(),
    data=st.none() | values.filter(lambda value: value is not None).map(to_json).map(Raw),
)
def test_an_error_is_read_as_it_was_written(
    message_id: int | str, code: int, message: str, data: Raw | None
):
    told = RpcError(code, message, data)
    line = encode_error(message_id, told)
    assert check_line(line)["error"]["message"] == message
    assert decode(line[:-1]) == [Response(message_id, told)]


@given(text=st.text(st.characters(codec=None)))
def test_text_with_surrogates_is_written_as_valid_utf_8(text: str):
    for line in (
        encode_request(text, text, {text: text}),
        encode_error(text, RpcError(1, text)),
    ):
        check_line(line)
        assert not isinstance(one(line[:-1]), Malformed | Noise)


# What may arrive


@settings(max_examples=300)
@given(line=st.binary(max_size=200), strict=st.booleans())
def test_no_bytes_whatever_make_it_raise(line: bytes, strict: bool):  # noqa: FBT001
    for start in (b"", b"{", b'{"id":1,', b"[", b"\xef\xbb\xbf", b'{"method":"m","params":'):
        decode(start + line, strict=strict)


pieces = st.sampled_from(
    [
        *(b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\", b" ", b"\r", b"\0", b"\\ud800", b"\xff"),
        *(b'"id"', b'"method"', b'"result"', b'"error"', b'"jsonrpc"', b'"2.0"', b'"message"'),
        *(b"1", b"-", b"1.5", b"1e9", b"9" * 5000, b"null", b"true", b"NaN", b"\xef\xbb\xbf"),
    ]
)


@settings(max_examples=500)
@given(line=st.lists(pieces, max_size=30).map(b"".join), strict=st.booleans())
def test_no_heap_of_broken_json_makes_it_raise(line: bytes, strict: bool):  # noqa: FBT001
    for message in decode(line, strict=strict) + decode(b'{"id":1,' + line, strict=strict):
        if isinstance(message, Response) and isinstance(message.outcome, Raw):
            json.dumps(json.loads(bytes(message.outcome), parse_int=str), allow_nan=True)


@given(
    message_id=ids,
    value=values,
    ascii_only=st.booleans(),
    spaces=st.sampled_from([(",", ":"), (", ", ": "), (" ,", "\t:")]),
    head=st.booleans(),
)
def test_a_valid_result_is_handed_on_byte_for_byte(
    message_id: int | str,
    value: Any,
    ascii_only: bool,  # noqa: FBT001
    spaces: tuple[str, str],
    head: bool,  # noqa: FBT001
):
    raw = json.dumps(value, ensure_ascii=ascii_only, separators=spaces).encode()
    shown = json.dumps(message_id).encode()
    line = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (shown, raw)
    if not head:
        line = b'{"result":%b,"jsonrpc":"2.0","id":%b}' % (raw, shown)
    assert decode(line) == [Response(message_id, Raw(raw))]


edits = st.lists(
    st.tuples(
        st.sampled_from(["replace", "delete", "insert", "truncate"]),
        st.integers(0, 10_000),
        st.sampled_from([bytes([c]) for c in b'{}[]",:\\x0 \r\0\x01'] + [b"\xff", b"\xc3", b"NaN"]),
    ),
    min_size=1,
    max_size=4,
)


def is_json(line: bytes) -> bool:
    try:
        json.loads(line.decode(errors="replace"), strict=False)
    except ValueError:
        return False
    return True


def edited(line: bytes, start: int, changes: list[tuple[str, int, bytes]]) -> bytes:
    for how, where, what in changes:
        at = start + where % (len(line) - start + 1)
        cut = {"replace": at + 1, "delete": at + 1, "insert": at, "truncate": len(line)}[how]
        line = line[:at] + (b"" if how in ("delete", "truncate") else what) + line[cut:]
    return line


@settings(max_examples=400)
@given(message_id=st.integers(0, 10**6) | st.text(), value=values, changes=edits)
def test_damage_after_the_id_of_an_answer_never_loses_the_id(
    message_id: int | str, value: Any, changes: list[tuple[str, int, bytes]]
):
    head = b'{"jsonrpc":"2.0","id":%b,' % json.dumps(message_id).encode()
    whole = head + b'"result":%b}' % json.dumps(value).encode()
    line = edited(whole, len(head), changes)
    message = one(line)
    assert isinstance(message, Response | Malformed | Request)
    assert message.id == message_id or is_json(line)


@settings(max_examples=400)
@given(message_id=st.integers(1000, 2000), inner=st.integers(0, 9), cut=st.integers(0, 400))
def test_a_truncated_answer_never_ends_the_call_of_another(message_id: int, inner: int, cut: int):
    value = {"id": inner, "items": [{"id": inner}, {"x": {"id": inner, "t": '"id":3,'}}]}
    for order in ({"id": message_id, "result": value}, {"result": value, "id": message_id}):
        line = json.dumps({"jsonrpc": "2.0", **order}).encode()[:cut]
        for message in decode(line):
            assert isinstance(message, Noise | Response)
            if isinstance(message, Response):
                assert message.id == message_id


def test_a_batch_of_more_messages_than_there_can_be_calls_is_noise() -> None:
    line = b"[" + b",".join([b'{"jsonrpc":"2.0","method":"x"}'] * 1_001) + b"]"
    (noise,) = decode(line)
    assert isinstance(noise, Noise)
    assert noise.text.startswith("a batch of 1001 messages was dropped")


def test_a_large_line_that_is_not_quite_json_still_ends_its_call_without_a_second_reading() -> None:
    line = b'{"jsonrpc":"2.0","id":7,"result":[%b]}' % b",".join([b"NaN"] * 300_000)
    (answer,) = decode(line)
    assert isinstance(answer, Response)
    assert answer.id == 7
    assert isinstance(answer.outcome, RpcError)
    assert answer.outcome.code == PARSE_ERROR
