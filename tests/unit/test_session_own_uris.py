import pytest

from emceepee_stdio.session.reply import is_own_uri


@pytest.mark.parametrize(
    "uri",
    [
        "emceepee://status",
        "EMCEEPEE://status",
        "Emceepee:status",
        "  emceepee://status",
        "\temceepee ://status",
        "%20emceepee://status",
        "%65mceepee://status",
        "emceepee%3A//status",
        "%2565mceepee://status",
        "emcee\u200bpee://status",
        "\uff45mceepee://status",
    ],
)
def test_an_address_that_could_be_taken_for_ours_is_ours_however_it_is_spelt(uri: str) -> None:
    assert is_own_uri(uri)


@pytest.mark.parametrize("uri", ["", "file:///emceepee://status", "emceepees://x", "x-emceepee:y"])
def test_another_address_is_not_ours(uri: str) -> None:
    assert not is_own_uri(uri)
