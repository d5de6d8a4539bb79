"""Which directories count, and when somebody is told of them."""

from pathlib import Path

import pytest

from emceepee_stdio.session.client_link import ClientRoots, Root, directory_of, own_roots

ONE, TWO = {"uri": "file:///one"}, {"uri": "file:///two"}


def project(tmp_path: Path, name: str = "project") -> Path:
    place = tmp_path / name
    place.mkdir()
    return place


def found(cwd: Path, home: Path, *configured: str, **environ: str) -> list[str]:
    return [root["uri"] for root in own_roots(configured, environ=environ, cwd=cwd, home=home)]


def test_configured_directories_go_before_the_project(tmp_path: Path) -> None:
    place = project(tmp_path)
    told = found(place, tmp_path, "/srv/a", "file:///b", CLAUDE_PROJECT_DIR=str(place))
    assert told == [(place / "/srv/a").as_uri(), "file:///b"]  # on Windows of the same drive


def test_the_project_of_the_host_goes_before_the_working_directory(tmp_path: Path) -> None:
    one, two = project(tmp_path, "one"), project(tmp_path, "two")
    assert found(one, tmp_path, CLAUDE_PROJECT_DIR=str(two)) == [two.as_uri()]
    assert found(one, tmp_path) == [one.as_uri()]
    assert found(one, tmp_path, CLAUDE_PROJECT_DIR="") == [one.as_uri()]
    assert found(one, tmp_path, CLAUDE_PROJECT_DIR=str(tmp_path / "gone")) == [one.as_uri()]
    assert found(one, tmp_path, CLAUDE_PROJECT_DIR=str(tmp_path)) == [one.as_uri()], "home"


@pytest.mark.parametrize("place", ["/", "/usr", "/usr/bin", "/etc", "/proc/self", "/dev"])
def test_the_root_and_what_belongs_to_the_system_are_no_project(tmp_path: Path, place: str) -> None:
    assert found(Path(place), tmp_path) == []
    assert found(Path(place), tmp_path, CLAUDE_PROJECT_DIR=place) == []


def test_home_and_whatever_holds_it_are_no_project_by_any_way(tmp_path: Path) -> None:
    home = project(tmp_path, "home")
    link = tmp_path / "link"
    link.symlink_to(home)
    for place in (home, tmp_path, link, home / ".." / "home"):
        assert found(place, home) == []
    assert found(project(home), home) == [(home / "project").as_uri()]


class Server:
    """One that wants to know."""

    def __init__(self, roots: ClientRoots) -> None:
        self.told: list[tuple[Root, ...]] = []
        roots.tell(lambda told: self.told.append(tuple(told)))


def test_who_asks_waits_for_the_client_which_is_asked_once() -> None:
    asked = list[bool]()
    roots = ClientRoots([TWO], ask=lambda: asked.append(True) is None)
    first, second = Server(roots), Server(roots)
    assert (first.told, second.told, asked) == ([], [], [True])
    roots.learn([ONE])
    assert first.told == second.told == [(ONE,)]
    assert Server(roots).told == [(ONE,)]
    assert asked == [True]


def test_without_a_client_that_can_be_asked_the_others_count() -> None:
    assert Server(ClientRoots([TWO])).told == [(TWO,)]
    assert Server(ClientRoots()).told == [()]


def test_only_what_is_different_is_a_change() -> None:
    changes = list[tuple[Root, ...]]()
    roots = ClientRoots([TWO], ask=lambda: True, on_change=lambda: changes.append(roots.current))
    Server(roots)
    for learned in ([ONE], [ONE], None, [ONE, TWO], []):
        roots.learn(learned)
    assert changes == [(ONE, TWO), (TWO,)], "the first answer is none, and no answer is none"


def test_only_what_a_person_chose_may_be_written_to() -> None:
    """Our own directory tells a server where we are, and no more."""
    assert ClientRoots([ONE]).chosen == ()
    configured = ClientRoots([ONE], are_configured=True)
    assert configured.chosen == (ONE,)
    configured.learn([TWO])
    assert configured.chosen == (TWO,)
    configured.learn([])
    assert configured.chosen == (ONE,)


@pytest.mark.posix_only("paths of POSIX")
@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///work/a%20b", "/work/a b"),
        ("file://localhost/work", "/work"),
        ("file://server/work", None),
        ("file:work", None),
        ("file:///a%00b", None),
        ("file://[/x", None),
    ],
)
def test_a_root_is_a_directory_of_this_machine(uri: str, path: str | None) -> None:
    assert directory_of({"uri": uri}) == (None if path is None else Path(path))
