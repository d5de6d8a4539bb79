import json
import os
from pathlib import Path

import pytest

from emceepee_stdio.config.load import Source
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Config
from emceepee_stdio.errors import ConfigInvalid


def write(path: Path, **servers: object) -> None:
    path.write_text(json.dumps({"mcpServers": servers}))


def entry(command: str = "x", **fields: object) -> dict[str, object]:
    return {"command": command, **fields}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    write(path, a=entry())
    return path


def source(file: Path, *extra: ServerConfig, **environ: str) -> Source:
    return Source(file, environ=environ, extra=extra)


def test_a_file_that_is_not_touched_is_the_same(file: Path):
    made = source(file)
    assert made.stamp() == made.stamp()
    assert made.read() == made.read()


def test_every_kind_of_edit_changes_the_stamp(file: Path, tmp_path: Path):
    made = source(file)
    stamps = [made.stamp()]

    def changed() -> bool:
        stamps.append(made.stamp())
        return stamps[-1] not in stamps[:-1]

    write(file, a=entry(), b=entry())
    assert changed(), "longer"
    os.utime(file, ns=(1, 1))
    assert changed(), "touched"
    new = tmp_path / "new.json"
    new.write_bytes(file.read_bytes())
    os.utime(new, ns=(1, 1))
    new.replace(file)
    assert changed(), "another file of the same size and time in its place"
    file.chmod(0o444 if file.stat().st_mode & 0o200 else 0o644)
    assert changed(), "who may read or write it"
    file.chmod(0o644)
    file.unlink()
    assert changed(), "gone"
    assert made.stamp() is None


@pytest.mark.not_under_wine("links that lead to a file")
def test_a_link_is_followed(file: Path, tmp_path: Path):
    link = tmp_path / "link.json"
    link.symlink_to(file)
    made = source(link)
    before = made.stamp()
    write(file, a=entry(), b=entry())
    assert made.stamp() != before


@pytest.mark.parametrize("name", ["none.json", "a\0b", "config.json/below", "x" * 5000])
def test_what_cannot_be_looked_at_has_no_stamp(file: Path, name: str):
    assert Source(file.parent / name, environ={}).stamp() is None


def test_the_file_that_the_environment_names(file: Path):
    made = Source(None, environ={"EMCEEPEE_CONFIG": str(file)})
    assert made.stamp() == source(file).stamp()
    assert [server.name for server in made.read().servers] == ["a"]


def test_the_environment_fills_in_the_values(file: Path):
    write(file, a=entry(env={"A": "${B}"}))
    assert source(file, B="c").read().servers[0].env == {"A": "c"}
    assert source(file).read().servers == ()


def test_a_broken_file_is_an_error(file: Path):
    file.write_text("{")
    with pytest.raises(ConfigInvalid):
        source(file).read()


def test_the_servers_of_the_command_line_stand_in_the_place_of_the_others(file: Path):
    given = ServerConfig(name="a", command="given")
    write(file, a=entry("file"), b=entry("file"))
    config = source(file, given).read()
    assert [(server.name, server.command) for server in config.servers] == [
        ("b", "file"),
        ("a", "given"),
    ]
    write(file, a=entry(disabled=True), b={"command": 7})
    config = source(file, given).read()
    assert [server.command for server in config.servers] == ["given"]
    assert [broken.name for broken in config.disabled] == ["b"]


def test_without_a_readable_file_they_are_all_there_is(file: Path):
    given = ServerConfig(name="a", command="given")
    assert source(file, given).beside(Config()).servers == (given,)


def test_its_repr_shows_no_values(file: Path):
    given = ServerConfig(name="a", command="x", env={"TOKEN": "quiet-river"})
    assert repr(source(file, given)) == f"<Source {file} and 1 more>"
    assert repr(Source(None, environ={"A": "b"})) == "<Source default and 0 more>"
