import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.config.fields import UnsetVariable, expand, fill_in
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


def template(text: object) -> object:
    return expand(text, environ=ENVIRON, path="servers.github.env", in_keyring=True)


@pytest.mark.parametrize(
    ("written", "kept", "meant"),
    [
        ("${keyring:gh.TOKEN}", "${keyring:gh.TOKEN}", "s3cret"),
        ("Bearer ${keyring:gh.TOKEN}", "Bearer ${keyring:gh.TOKEN}", "Bearer s3cret"),
        ("${HOST}/${keyring:gh.TOKEN}", "example.org/${keyring:gh.TOKEN}", "example.org/s3cret"),
        ("$${x}${keyring:gh.TOKEN}", "$${x}${keyring:gh.TOKEN}", "${x}s3cret"),
        ("${NESTED}${keyring:gh.TOKEN}", "$${HOST}${keyring:gh.TOKEN}", "${HOST}s3cret"),
        ("${keyring:nested}", "${keyring:nested}", "${keyring:gh.TOKEN}"),
    ],
)
def test_a_reference_to_the_keyring_stays_until_its_secret_is_known(
    written: str, kept: str, meant: str
):
    secrets = {"gh.TOKEN": "s3cret", "nested": "${keyring:gh.TOKEN}"}
    assert template(written) == kept
    assert fill_in(kept, secrets) == meant


def test_what_a_variable_holds_is_no_reference_to_the_keyring():
    environ = {"SLY": "${keyring:gh.TOKEN}"}
    assert expand("${SLY}", environ=environ, path="x", in_keyring=True) == "${keyring:gh.TOKEN}"
    mixed = expand("${SLY}${keyring:own}", environ=environ, path="x", in_keyring=True)
    assert fill_in(str(mixed), {"own": "1"}) == "${keyring:gh.TOKEN}1"


@pytest.mark.parametrize("text", ["${keyring:}", "${keyring:a b}", "${keyring:-x}y${keyring:a:-b}"])
def test_a_name_or_a_default_that_the_keyring_does_not_have_is_refused(text: str):
    with pytest.raises(ConfigInvalid, match=r"has a \$\{"):
        template(text)


def test_the_keyring_is_not_a_default_of_a_variable():
    with pytest.raises(ConfigInvalid, match=r"has a \$\{|refers to the keyring"):
        expanded("${NOPE:-${keyring:gh.TOKEN}}")
    with pytest.raises(ConfigInvalid, match=r"has a \$\{"):
        template("${NOPE:-${keyring:gh.TOKEN}}")


def test_the_keyring_is_refused_where_nobody_allowed_it():
    with pytest.raises(ConfigInvalid, match=r"servers\.github\.url refers to the keyring"):
        expanded("${keyring:gh.TOKEN}")
