"""Where tokens are kept: whose they are, when they are due, and what survives a kill."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from emceepee_stdio.auth.token_store import (
    OAuthClient,
    TokenRecord,
    TokenStore,
    Visit,
    lifetime,
    sendable,
)
from emceepee_stdio.storage.file_lock import take_lock

KILLED = -signal.SIGKILL if os.name == "posix" else 9
URL = "https://mcp.example/mcp"


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "tokens", URL)


def record(**fields: object) -> TokenRecord:
    made = {
        "server": URL,
        "token_endpoint": "https://id.example/token",
        "access_token": "quiet-river",
        "refresh_token": "silent-lake",
        "client": OAuthClient(client_id="c", client_secret="hidden-brook"),
    }
    return TokenRecord(**{**made, **fields})


def test_a_record_is_for_its_owner_alone_and_comes_back_as_it_was(store: TokenStore):
    assert (store.read(), store.stamp()) == (None, None)
    with store.writing():
        store.write(record(expires_at=7.5))
    assert store.read() == record(expires_at=7.5)
    if os.name == "posix":  # elsewhere the directory of the user gives its rights to all in it
        modes = {stat.S_IMODE(path.stat().st_mode) for path in store.directory.iterdir()}
        assert modes == {0o600}
        assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700


def test_it_belongs_to_one_address_however_it_is_spelt_and_to_one_client(tmp_path: Path):
    def where(url: str, client_id: str | None = None) -> str:
        return repr(TokenStore(tmp_path, url, client_id=client_id))

    assert where(URL) == where("HTTPS://mcp.example:443/mcp")
    assert len({where(URL), where(URL, "c"), where("https://mcp.example/other")}) == 3


@pytest.mark.parametrize("text", [b"", b"{", b'{"server": 7}', b"\xff", b"[" * 100_000])
def test_what_cannot_be_read_counts_as_not_there(store: TokenStore, text: bytes):
    with store.writing():
        store.write(record())
    (path,) = [p for p in store.directory.iterdir() if p.suffix == ".json"]
    path.write_bytes(text)
    assert store.read() is None


def test_a_record_of_a_newer_version_is_neither_used_nor_replaced(store: TokenStore):
    with store.writing():
        store.write(record())
        (path,) = [p for p in store.directory.iterdir() if p.suffix == ".json"]
        path.write_text('{"version": 2, "server": {"of": "another form"}}')
        assert store.read() is None
        assert store.is_newer()
        with pytest.raises(PermissionError, match="a newer emceepee wrote it"):
            store.write(record())
        assert "another form" in path.read_text()
        assert store.remove()
        assert not store.is_newer()
        store.write(record())
    assert store.read() == record()


@pytest.mark.parametrize(
    ("life", "due_after"), [(3600, 3540.0), (100, 90.0), (5, 4.5), (None, None)]
)
def test_a_token_is_due_a_little_before_its_end(life: int | None, due_after: float | None):
    taken = record().taken({"access_token": "new", "expires_in": life}, now=1000.0)
    if due_after is None:
        assert not taken.is_due(now=1e12)
    else:
        assert not taken.is_due(now=1000.0 + due_after - 0.01)
        assert taken.is_due(now=1000.0 + due_after)


def test_without_a_refresh_token_nothing_is_due():
    assert not record(refresh_token=None, expires_at=1.0).is_due(now=2.0)


def test_what_a_server_leaves_out_of_a_refresh_stays_as_it_was():
    before = record(scope="read", expires_at=5.0)
    after = before.taken({"access_token": "new", "expires_in": "60"}, now=10.0)
    assert (after.access_token, after.refresh_token, after.scope) == ("new", "silent-lake", "read")
    assert (after.obtained_at, after.expires_at) == (10.0, 70.0)
    odd = before.taken({"access_token": "new", "expires_in": True, "scope": 7}, now=10.0)
    assert (odd.expires_at, odd.scope) == (None, "read")


def test_nothing_that_is_printed_shows_a_token(store: TokenStore):
    with store.writing():
        store.write(record())
    shown = (
        f"{record()!r} {record().client!r} {store!r} {Visit(url='https://id.example/?state=s')!r}"
    )
    for secret in ("quiet-river", "silent-lake", "hidden-brook", "state="):
        assert secret not in shown


def test_a_visit_is_shown_while_somebody_waits_for_it(store: TokenStore):
    with store.person(within=1):
        store.tell(Visit(url="https://id.example/authorize"))
        assert store.visit() == Visit(url="https://id.example/authorize")
    assert store.visit() is None
    store.tell(Visit(failed="no"))
    assert store.visit() == Visit(failed="no")
    store.end_visit()
    assert store.visit() is None


def test_the_two_locks_do_not_stand_in_each_others_way(store: TokenStore):
    with store.person(within=1), store.writing(within=1):
        assert store.is_visited()


def test_a_visit_that_ended_without_a_word_is_not_shown_because_others_look_as_well(
    store: TokenStore,
):
    with store.person(within=1):
        store.tell(Visit(url="https://id.example/authorize"))
    (lock,) = store.directory.glob("*.person.lock")
    with lock.open() as another:  # a process that is just looking
        assert take_lock(another.fileno(), shared=True)
        assert store.visit() is None


# Kills the process at the given system call of writing a record, for every one in turn.
WRITER = """
import os, sys
from pathlib import Path
import tests.unit.test_auth_token_store as t
left = int(sys.argv[2])
def counted(call):
    def made(*a, **k):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return call(*a, **k)
    return made
for name in ("open", "write", "fsync", "replace", "rename", "fdopen", "close"):
    setattr(os, name, counted(getattr(os, name)))
store = t.TokenStore(Path(sys.argv[1]), t.URL)
with store.writing():
    store.write(t.record(access_token="second"))
"""


def test_a_kill_at_any_step_leaves_the_old_record_or_the_new_one(store: TokenStore):
    with store.writing():
        store.write(record(access_token="first"))
    outcomes: list[str] = []
    for steps in range(40):
        done = subprocess.run(
            [sys.executable, "-c", WRITER, store.directory, str(steps)],
            check=False,
            capture_output=True,
            cwd=Path(__file__).parents[2],
        )
        assert done.returncode in (0, KILLED), done.stderr
        found = store.read()
        assert found is not None
        outcomes.append(str(found.access_token))
        if done.returncode == 0:
            break
    assert outcomes[0] == "first"
    assert outcomes[-1] == "second"
    assert len(outcomes) > 3


TEN_YEARS_S = 10 * 365 * 86_400


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (3600, 3600),
        ("60", 60),
        (10**14, TEN_YEARS_S),
        (10**400, TEN_YEARS_S),
        ("9" * 400, TEN_YEARS_S),
        (float("inf"), TEN_YEARS_S),
        (float("nan"), None),
        (-5, None),
        ("soon", None),
        (True, None),
        ([1], None),
        (None, None),
    ],
)
def test_a_lifetime_is_bounded_and_what_is_none_does_not_count(said: object, meant: float | None):
    assert lifetime(said) == meant


@pytest.mark.parametrize("end", [10.0**14, 10.0**18, -(10.0**18)])
def test_a_record_whose_end_is_no_date_can_still_be_told(end: float):
    assert record(expires_at=end, refresh_token=None).validity() == "until the server ends it"


@pytest.mark.parametrize(
    ("token", "is_sendable"),
    [("quiet-river.~+/==", True), ("", False), ("a\r\nb", False), ("a b", False), ("é", False)],
)
def test_a_token_is_what_a_header_can_carry(token: str, is_sendable: bool):  # noqa: FBT001
    assert sendable(token) is is_sendable
