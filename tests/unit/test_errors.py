import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emceepee_stdio import errors
from emceepee_stdio.backends.channels.http_errors import HttpRefused, Unreachable
from emceepee_stdio.backends.interface import Loss
from emceepee_stdio.config.edit import EditRefused
from emceepee_stdio.errors import (
    MAX_ERROR_CHARS,
    ConfigInvalid,
    ProxyError,
    ServerFailed,
    TaskLimit,
    ToolNotFound,
)

CODES = [
    "server_not_found",
    "server_exists",
    "server_unavailable",
    "server_failed",
    "tool_not_found",
    "invalid_arguments",
    "invalid_select",
    "save_refused",
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


def test_the_last_lines_of_stderr_are_a_field_and_the_end_of_the_fact():
    error = ServerFailed("It exited.", stderr=["first", "second"])
    told = "It exited. The last lines of its stderr:\nfirst\nsecond"
    assert (error.fact, error.stderr, error.whole_fact) == ("It exited.", ("first", "second"), told)
    assert str(error) == f"{told} [server_failed] {ServerFailed.hint}"


def test_a_secret_of_several_lines_is_hidden_in_stderr():
    error = ServerFailed("It exited.", stderr=["key:", "ab", "cd", "end"])
    shown = error.masked(lambda text: text.replace("ab\ncd", "[redacted]"))
    assert shown.stderr == ("key:", "[redacted]", "end")


@pytest.mark.parametrize(
    ("error", "for_person", "reconnects"),
    [
        (ServerFailed("x"), "", True),
        (ServerFailed("x", hint="Make it."), "Make it.", False),
        (ServerFailed("x", hint="Call a_tool.", for_person="Run it."), "Run it.", False),
        (errors.ServerDisconnected("x"), "", False),
        (ConfigInvalid("x"), ConfigInvalid.hint, False),
        (EditRefused("x"), EditRefused.hint, False),
        (HttpRefused("it", 401), "Give a valid Authorization in headers.", True),
        (HttpRefused("it", 404), HttpRefused("it", 404).next_step, False),
        (Unreachable("x"), Unreachable.hint, False),
    ],
)
def test_a_person_gets_a_step_that_is_no_call_of_a_tool(
    error: ProxyError, for_person: str, *, reconnects: bool
):
    assert (error.for_person, error.reconnects) == (for_person, reconnects)


def test_a_failure_as_another_kind_keeps_what_is_known():
    error = errors.SecretUnavailable("It is.", hint="Store it.", command="c", stderr=["oops"])
    other = error.turned_into(ServerFailed, hint="Store it. Then call reconnect_server.")
    assert type(other) is ServerFailed
    assert (other.whole_fact, other.command) == (error.whole_fact, "c")
    assert (other.next_step, other.for_person) == (
        "Store it. Then call reconnect_server.",
        "Store it.",
    )
