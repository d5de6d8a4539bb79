import pytest
from msgspec import Raw

from emceepee_stdio.backends.exchange import result_type, type_refused
from emceepee_stdio.errors import CallFailed, NotSupported


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (b'{"resultType":"input_required"}', "input_required"),
        (b'{"x":1,"resultType":"input_required","y":[{}]}', "input_required"),
        (b'{"resultType":"complete"}', "complete"),
        (b'{"resultType":null}', "complete"),
        (b'{"resultType":["input_required"]}', ["input_required"]),
        (b'{"resultType":7}', 7),
        (b'{"resultType":"task"}', "task"),
        (b'{"nested":{"resultType":"input_required"}}', "complete"),
        *((odd, "complete") for odd in (b"{}", b"[]", b"7", b'"task"', b"oops", b"[" * 9999)),
    ],
)
def test_a_result_is_complete_unless_it_says_otherwise(result: bytes, said: object) -> None:
    assert result_type(Raw(result)) == said


def test_an_unknown_type_is_told_with_what_came() -> None:
    result = Raw(b'{"resultType":"novel","secret":1}')
    error = type_refused("s", "novel", result)
    assert isinstance(error, CallFailed)
    assert 's answered with the unknown result type "novel"' in error.fact
    assert '"secret":1' in error.fact
    assert len(str(type_refused("s", "x" * 9999, Raw(b"{%b}" % (b" " * 9999))))) < 1_000


@pytest.mark.parametrize(
    ("handle", "named"),
    [
        (b'{"taskId":"k","status":"working"}', '{"id":"k","status":"working"}'),
        (b"{}", '{"id":null,"status":null}'),
        (b"7", '{"id":null,"status":null}'),
    ],
)
def test_a_task_of_the_protocol_is_told_by_its_name(handle: bytes, named: str) -> None:
    error = type_refused("s", "task", Raw(handle))
    assert isinstance(error, NotSupported)
    assert named in error.fact
