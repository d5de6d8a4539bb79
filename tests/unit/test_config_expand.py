import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.config.expand import UnsetVariable, expand
from emceepee_stdio.errors import ConfigInvalid

ENVIRON = {"HOST": "example.org", "EMPTY": "", "NESTED": "${HOST}"}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def expanded(text: object) -> object:
    return expand(text, environ=ENVIRON, path="servers.github.url")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("${HOST}", "example.org"),
        ("https://${HOST}/${HOST}", "https://example.org/example.org"),
        ("${env:HOST}", "example.org"),
        ("${HOST:-other}", "example.org"),
        ("${NOPE:-other}", "other"),
        ("${NOPE:-}", ""),
        ("${NOPE:-a:-b $c}", "a:-b $c"),
        ("${EMPTY}", ""),
        ("${EMPTY:-other}", "other"),
        ("$${HOST}", "${HOST}"),
        ("$HOST costs $5", "$HOST costs $5"),
        ("a } b { c $", "a } b { c $"),
    ],
)
def test_references_read_as_in_a_shell(written: str, meant: str):
    assert expanded(written) == meant


def test_what_a_variable_holds_is_not_expanded_again():
    assert expanded("${NESTED}") == "${HOST}"


def test_lists_and_objects_are_expanded_inside_and_keys_are_not():
    assert expanded({"${HOST}": ["${HOST}", {"a": "${HOST}"}, 5]}) == {
        "${HOST}": ["example.org", {"a": "example.org"}, 5]
    }


def test_an_unset_variable_names_itself_and_the_field():
    with pytest.raises(UnsetVariable) as caught:
        expand({"env": {"TOKEN": ["x", "${NOPE}"]}}, environ=ENVIRON, path="servers.github")
    assert caught.value.variable == "NOPE"
    assert caught.value.path == "servers.github.env.TOKEN[1]"
    assert "NOPE" in caught.value.fact
    assert "servers.github.env.TOKEN[1]" in caught.value.fact


@pytest.mark.parametrize("text", ["${", "${}", "${1}", "${a b}", "${input:token}", "${A:-${HOST}}"])
def test_a_reference_that_cannot_be_understood_is_refused_not_passed_on(text: str):
    with pytest.raises(ConfigInvalid, match=r"servers\.github\.url has a \$\{"):
        expanded(text)


@given(values)
def test_escaping_makes_every_value_survive_as_it_is(value: object):
    def escape(part: object) -> object:
        if isinstance(part, str):
            return part.replace("${", "$${")
        if isinstance(part, list):
            return [escape(item) for item in part]
        if isinstance(part, dict):
            return {key: escape(item) for key, item in part.items()}
        return part

    assert expand(escape(value), environ={}, path="x") == value


@given(before=st.text(), held=st.text(min_size=1), after=st.text())
def test_a_variable_is_put_in_place_whatever_it_holds(before: str, held: str, after: str):
    before, after = before.replace("$", ""), after.replace("$", "")
    for reference in ("${V}", "${V:-default}"):
        assert expand(before + reference + after, environ={"V": held}, path="x") == (
            before + held + after
        )
