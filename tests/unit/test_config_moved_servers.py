"""Which servers count as moved behind emceepee, by a client's file and its backups."""

import json

import pytest

from emceepee_stdio.config.clients import CLIENTS, moved_servers

OURS = {"command": "emceepee", "args": ["serve"]}
BROKEN = "{"


def file(names: str) -> str:
    """A file with these servers; `*` is emceepee, `!` a file that cannot be read."""
    entries = {name: OURS if name == "*" else {"command": name} for name in names}
    return BROKEN if names == "!" else json.dumps({"mcpServers": entries})


@pytest.mark.parametrize(
    ("history", "moved"),
    [
        (["a", "*"], "a"),
        (["a", "a*", "*"], "a"),
        (["ab", "a*", "*"], "ba"),
        (["a", "!", "*"], "a"),
        (["a", "*", ""], "a"),
        (["a", ""], "a"),
        (["a", "", "*"], ""),
        (["a", "b", "b*", "*"], "b"),
        (["a*", "b", "b*", "*"], "b"),
        (["a", "*", "", "*"], "a"),
        (["a", "*", "a"], ""),
        (["a", "*", "a", ""], ""),
        (["a", "*", "a", "", "*"], ""),
        (["a", "*", "a", "a*", "*"], "a"),
        (["a", "*", "a", "*", ""], "a"),
        (["ab", "*", "a", ""], "b"),
        (["", "a*", "*", ""], "a"),
        (["x", "*"], ""),
    ],
    ids=str,
)
def test_the_history_of_a_file_tells_what_was_moved(history: list[str], moved: str):
    *copies, now = map(file, history)
    found = moved_servers(CLIENTS["cursor"], now, copies[::-1], behind={"a", "b"})
    assert "".join(str(steps[-1]) for steps in found) == moved


def test_a_server_is_put_back_as_the_newest_copy_has_it():
    old, new = (json.dumps({"mcpServers": {"a": {"command": word}}}) for word in ("old", "new"))
    found = moved_servers(CLIENTS["cursor"], file("*"), [new, old], behind={"a"})
    assert found == {("mcpServers", "a"): {"command": "new"}}
