"""Which answers are a person's, and what is remembered of a host that answers by itself."""

import pytest

from emceepee_stdio.state.pending_requests import AutomaticAnswers

FAST, SLOW = 0.1, 0.5


def answers() -> AutomaticAnswers:
    return AutomaticAnswers(within=0.3)


@pytest.mark.parametrize("action", ["decline", "cancel", None], ids=str)
def test_only_a_fast_refusal_is_automatic(action: str | None) -> None:
    judge = answers()
    assert judge.is_automatic(action, took=0.0, server="s", plain=True)
    assert judge.is_automatic(action, took=0.299, server="s", plain=True)
    assert not judge.is_automatic(action, took=0.3, server="s", plain=True)


def test_a_fast_accept_is_an_answer() -> None:
    judge = answers()
    for server in ("a", "b", None):
        assert not judge.is_automatic("accept", took=0.0, server=server, plain=True)
    assert not judge.expected
    assert judge.is_fast(took=0.0)


def test_one_server_says_nothing_about_the_host_however_often_it_is_refused() -> None:
    judge = answers()
    for _ in range(5):
        assert judge.is_automatic("decline", took=FAST, server="a", plain=True)
    assert not judge.expected
    assert judge.is_automatic("decline", took=FAST, server="b", plain=True)
    assert judge.expected


def test_two_questions_of_ours_are_enough_and_so_is_one_beside_a_servers() -> None:
    judge = answers()
    judge.is_automatic("cancel", took=FAST, server=None, plain=True)
    assert not judge.expected
    judge.is_automatic("cancel", took=FAST, server=None, plain=True)
    assert judge.expected
    mixed = answers()
    mixed.is_automatic(None, took=FAST, server="a", plain=True)
    mixed.is_automatic(None, took=FAST, server=None, plain=True)
    assert mixed.expected


def test_a_form_that_not_every_host_shows_says_nothing_about_the_host() -> None:
    judge = answers()
    for server in ("a", "b", "c", None, None):
        assert judge.is_automatic("decline", took=FAST, server=server, plain=False)
    assert not judge.expected


def test_a_person_who_answers_is_there_whatever_was_refused_before() -> None:
    judge = answers()
    judge.is_automatic("decline", took=FAST, server="a", plain=True)
    assert not judge.is_automatic("decline", took=SLOW, server="b", plain=True)
    judge.is_automatic("decline", took=FAST, server="c", plain=True)
    assert not judge.expected


def test_a_slow_error_is_nobodys_answer() -> None:
    judge = answers()
    judge.is_automatic("decline", took=FAST, server="a", plain=True)
    assert not judge.is_automatic(None, took=SLOW, server="b", plain=True)
    judge.is_automatic("decline", took=FAST, server="c", plain=True)
    assert judge.expected


def test_what_is_kept_is_bounded() -> None:
    judge = answers()
    for number in range(1_000):
        judge.is_automatic("decline", took=FAST, server=f"s{number}", plain=True)
        judge.is_automatic("decline", took=FAST, server=None, plain=True)
    assert repr(judge) == "<AutomaticAnswers 2 refusals>"
