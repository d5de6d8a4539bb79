import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emceepee_stdio import errors
from emceepee_stdio.backends.base import Loss
from emceepee_stdio.backends.channels.http_errors import HttpRefused
from emceepee_stdio.errors import MAX_ERROR_CHARS, ProxyError, TaskLimit, ToolNotFound

CODES = [
    "server_not_found",
    "server_exists",
    "server_unavailable",
    "server_failed",
    "tool_not_found",
    "invalid_arguments",
    "call_failed",
    "call_timeout",
    "server_disconnected",
    "task_not_found",
    "task_limit",
    "result_expired",
    "request_not_found",
    "timer_not_found",
    "timer_limit",
    "invalid_pattern",
    "resource_not_found",
    "prompt_not_found",
    "not_supported",
    "policy_denied",
    "needs_approval",
    "needs_sign_in",
    "config_invalid",
    "result_too_large",
]
TYPES = [kind for kind in errors.error_types() if kind.__module__ == errors.__name__]


def test_the_codes_are_stable():
    assert [kind.code for kind in TYPES] == CODES


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.code)
def test_an_error_says_the_fact_the_code_and_the_next_step(kind: type[ProxyError]):
    error = kind("It is so.")
    assert str(error) == f"It is so. [{kind.code}] {kind.hint}"
    assert error.fact == "It is so."
    assert error.next_step.endswith(".")


def test_a_hint_for_the_occasion_wins():
    error = ToolNotFound("No tool 'ehco'.", hint="Did you mean 'echo'?")
    assert str(error) == "No tool 'ehco'. [tool_not_found] Did you mean 'echo'?"
    assert str(ToolNotFound("x")).endswith(ToolNotFound.hint)


def test_a_long_fact_is_cut_and_the_rest_stays():
    text = str(TaskLimit("f" * 20_000))
    assert len(text) == MAX_ERROR_CHARS
    assert text.endswith(f" … (cut) [task_limit] {TaskLimit.hint}")


def test_a_fact_that_just_fits_is_whole():
    room = MAX_ERROR_CHARS - len(str(TaskLimit("")))
    assert str(TaskLimit("f" * room)).startswith("f" * room + " [")
    assert "(cut)" in str(TaskLimit("f" * (room + 1)))


def test_a_long_hint_costs_neither_the_fact_nor_the_code():
    text = str(TaskLimit("It is so.", hint="h" * 20_000))
    assert text.startswith("It is so. [task_limit] hhh")
    assert len(text) <= MAX_ERROR_CHARS


@settings(max_examples=60, deadline=None)
@given(
    fact=st.integers(0, 20_000),
    hint=st.none() | st.integers(0, 20_000),
    kind=st.sampled_from(TYPES),
)
def test_an_error_never_exceeds_its_bound_and_always_holds_its_code(
    fact: int, hint: int | None, kind: type[ProxyError]
):
    text = str(kind("😀" * fact, hint=None if hint is None else "h" * hint))
    assert len(text) <= MAX_ERROR_CHARS
    assert f" [{kind.code}] " in text


def hide(text: str) -> str:
    return text.replace("quiet-river", "[redacted]")


def test_a_masked_error_is_of_the_same_kind_and_shows_nothing():
    error = ToolNotFound("It has quiet-river.", hint="Give quiet-river again.")
    shown = error.masked(hide)
    assert type(shown) is ToolNotFound
    assert str(shown) == "It has [redacted]. [tool_not_found] Give [redacted] again."
    assert shown.args == ("It has [redacted].",)
    assert "quiet-river" not in repr(shown)
    assert "quiet-river" in str(error), "the error itself stays as it was"


def test_a_masked_error_keeps_what_its_kind_adds():
    error = HttpRefused("it", 401, detail="no quiet-river here", wait=2.0)
    shown = error.masked(hide)
    assert (type(shown), shown.status) == (HttpRefused, 401)
    assert shown.fact == "it answered with HTTP status 401 Unauthorized: no [redacted] here"
    with pytest.raises(HttpRefused, match="redacted"):
        raise shown


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.code)
def test_with_nothing_to_hide_an_error_says_the_same(kind: type[ProxyError]):
    error = kind("It is so.")
    assert str(error.masked(hide)) == str(error)


def test_a_masked_loss_keeps_its_code_and_hides_its_last_words():
    loss = Loss(fact="it left quiet-river.", tail=("a quiet-river", "b"), exit_code=3)
    shown = loss.masked(hide)
    assert (shown.fact, shown.exit_code) == ("it left [redacted].", 3)
    assert str(shown) == "it left [redacted]. The last lines of its stderr:\na [redacted]\nb"
    assert "quiet-river" in str(loss)
