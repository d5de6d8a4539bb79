from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.trust.store import seal, unseal

KEY = bytes(range(32))


@given(st.text())
def test_what_is_sealed_is_opened_with_the_same_key_alone(text: str):
    sealed = seal(KEY, text)
    assert unseal(KEY, sealed) == text
    assert unseal(bytes(32), sealed) is None
    assert seal(KEY, text) != sealed


def test_what_was_changed_is_not_opened():
    sealed = seal(KEY, "quiet-river")
    for at in range(0, len(sealed) - 2, 5):
        other = "A" if sealed[at] != "A" else "B"
        assert unseal(KEY, sealed[:at] + other + sealed[at + 1 :]) is None
    for broken in ("", "?", "AAAA", "ä"):
        assert unseal(KEY, broken) is None
