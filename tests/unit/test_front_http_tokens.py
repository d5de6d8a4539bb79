"""The file of tokens: what is in it, what is refused, and how that is said."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.front.http import access
from emceepee_stdio.front.http.access import HttpTokens

ONE, TWO = "1" * 32, "2" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "http-tokens"


def write(path: Path, text: str | bytes) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o600)


def owner(tokens: HttpTokens, token: str) -> str | None:
    return tokens.owner(f"Bearer {token}")


def test_a_byte_order_mark_is_no_part_of_the_first_name(path: Path) -> None:
    write(path, f"\ufefflaptop {ONE}\n")
    assert owner(HttpTokens.read(path), ONE) == "laptop"


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (f"one {ONE}\ntwo schlüssel-schlüssel-schlüssel\n", "clients cannot send"),
        (f"one {ONE}\ntwo {ONE}\n", "the token of one again"),
        (f"one {ONE}\none {TWO}\n", "the name one, which another line has"),
        (f"one {ONE}\ntwo short\n", "less than 20 characters"),
        (f"one {ONE}\n{TWO}\n", "is not a name and a token"),
        (f"one {ONE}\ntwo {TWO} {TWO}\n", "is not a name and a token"),
    ],
)
def test_a_line_that_would_not_do_what_it_says_is_refused(path: Path, text: str, fact: str) -> None:
    write(path, text)
    with pytest.raises(ConfigInvalid) as refused:
        HttpTokens.read(path)
    assert refused.value.fact.startswith(f"Line 2 of {path} ")
    assert fact in refused.value.fact
    assert not {ONE, TWO, "schlüssel"} & set(str(refused.value).split())


def make_link(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_null(path: Path) -> None:
    path.symlink_to("/dev/null")


def test_a_directory_is_refused_with_what_it_is(path: Path) -> None:
    refuse(path, Path.mkdir, "is not a regular file.")


@pytest.mark.posix_only("links and pipes of POSIX")
@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (make_link, "is a link to a file that does not exist."),
        (make_pipe, "is not a regular file."),
        (link_to_null, "is not a regular file."),
    ],
)
def test_what_is_no_file_is_refused_with_what_it_is(
    path: Path, make: Callable[[Path], None], fact: str
) -> None:
    refuse(path, make, fact)


def refuse(path: Path, make: Callable[[Path], None], fact: str) -> None:
    make(path)
    with pytest.raises(ConfigInvalid) as refused:
        HttpTokens.read(path)
    assert refused.value.fact == f"{path} {fact}"
    assert "chmod" not in refused.value.next_step


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigInvalid, match="cannot be made"):
        HttpTokens.read(tmp_path / "file" / "http-tokens")


@pytest.mark.parametrize("text", [f"one {ONE}\ntwo {ONE}\n", "one schlüssel-schlüssel-schlüssel\n"])
def test_while_a_changed_file_is_wrong_the_tokens_stay(path: Path, text: str) -> None:
    write(path, f"one {ONE}\n")
    tokens = HttpTokens.read(path)
    write(path, text)
    with pytest.raises(ConfigInvalid):
        tokens.follow()
    assert tokens.follow() == []
    assert owner(tokens, ONE) == "one"
    write(path, f"\ufefftwo {TWO}\n")
    assert tokens.follow() == ["one"]
    assert owner(tokens, TWO) == "two"


@pytest.mark.parametrize("text", [None, "", "# none\n"])
def test_a_file_that_stays_empty_or_gone_lets_nobody_in(path: Path, text: str | None) -> None:
    write(path, f"one {ONE}\ntwo {TWO}\n")
    tokens = HttpTokens.read(path)
    path.unlink() if text is None else write(path, text)
    assert tokens.follow() == []  # an editor may be writing it
    assert owner(tokens, ONE) == "one"
    assert tokens.follow() == ["one", "two"]
    assert tokens.is_empty
    assert not tokens.is_open
    assert owner(tokens, ONE) is None
    assert tokens.follow() == []
    write(path, f"two {TWO}\n")
    assert tokens.follow() == []
    assert (owner(tokens, TWO), owner(tokens, ONE)) == ("two", None)


def test_a_file_that_is_empty_only_while_it_is_written_revokes_nothing(path: Path) -> None:
    write(path, f"one {ONE}\n")
    tokens = HttpTokens.read(path)
    write(path, "")
    assert tokens.follow() == []
    write(path, f"one {ONE}\ntwo {TWO}\n")
    assert tokens.follow() == []
    assert (owner(tokens, ONE), owner(tokens, TWO)) == ("one", "two")


def test_a_file_that_is_gone_for_a_moment_again_and_again_revokes_nothing(path: Path) -> None:
    write(path, f"one {ONE}\n")
    tokens = HttpTokens.read(path)
    away = path.with_name("away")
    for _ in range(3):
        path.rename(away)
        assert tokens.follow() == []
        away.rename(path)
        assert tokens.follow() == []
    assert owner(tokens, ONE) == "one"


def test_a_file_that_cannot_be_looked_at_is_told_once_and_the_tokens_stay(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, f"one {ONE}\n")
    tokens = HttpTokens.read(path)

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "stat", fails)
        with pytest.raises(ConfigInvalid, match="cannot be read"):
            tokens.follow()
        assert tokens.follow() == []
    assert tokens.follow() == []
    assert owner(tokens, ONE) == "one"


@pytest.mark.posix_only("modes of POSIX")
def test_a_file_that_others_could_read_counts_as_soon_as_they_cannot(path: Path) -> None:
    write(path, f"one {ONE}\n")
    tokens = HttpTokens.read(path)
    path.write_text(f"two {TWO}{TWO}\n")
    path.chmod(0o644)
    with pytest.raises(ConfigInvalid, match="can be read by others") as refused:
        tokens.follow()
    assert refused.value.next_step == f"Run `chmod 600 {path}`."
    path.chmod(0o600)
    assert tokens.follow() == ["one"]


def test_what_is_written_while_the_file_is_read_counts_at_the_next_look(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, f"laptop {ONE}\n")
    read = access.read_regular

    def read_and_write(path: Path) -> bytes:
        text = read(path)
        write(path, f"other {TWO}\n")
        return text

    with monkeypatch.context() as patch:
        patch.setattr(access, "read_regular", read_and_write)
        tokens = HttpTokens.read(path)
    assert (owner(tokens, ONE), owner(tokens, TWO)) == ("laptop", None)
    assert tokens.follow() == ["laptop"]
    assert (owner(tokens, ONE), owner(tokens, TWO)) == (None, "other")
