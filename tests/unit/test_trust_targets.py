import pytest

from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.trust.targets import (
    canonical_url,
    leads_to_same,
    may_be_same,
    target_id,
    target_id_of_version_1,
)

KEY = bytes(32)


def at(url: str, name: str = "s") -> ServerConfig:
    return ServerConfig(name=name, url=url)


def run(*args: str, **fields: object) -> ServerConfig:
    return ServerConfig(name="s", command="node", args=args, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "HTTPS://Bank.example/mcp",
        "https://bank.example:443/mcp",
        "https://bank.example./mcp",
        "https://bank.example/mcp#part",
        "https://bank.example/%6Dcp",
    ],
)
def test_another_spelling_of_an_address_is_the_same_target(url: str) -> None:
    assert canonical_url(url) == "https://bank.example/mcp"
    assert target_id(at(url, "other"), KEY) == target_id(at("https://bank.example/mcp"), KEY)


@pytest.mark.parametrize(
    "url",
    [
        "http://bank.example/mcp",
        "https://bank.example:444/mcp",
        "https://bank.example/MCP",
        "https://bank.example/mcp/",
        "https://bank.example/mcp?a=1",
        "https://bank.example/%2Fmcp",
        "https://sub.bank.example/mcp",
    ],
)
def test_another_address_is_another_target(url: str) -> None:
    assert target_id(at(url), KEY) != target_id(at("https://bank.example/mcp"), KEY)


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("https://münchen.example", "https://xn--mnchen-3ya.example/"),
        ("http://[::1]:8080/a", "http://[::1]:8080/a"),
        ("https://a.example/?q=%7e%2f", "https://a.example/?q=~%2F"),
        ("https://a.example:port/", "https://a.example:port/"),
        ("https://[broken/", "https://[broken/"),
    ],
)
def test_every_address_has_one_spelling(url: str, canonical: str) -> None:
    assert canonical_url(url) == canonical
    assert canonical_url(canonical) == canonical


def test_a_command_line_is_the_target_whatever_it_is_called_or_given() -> None:
    same = ServerConfig(name="b", command="node", args=("a.js",), env={"A": "1"}, cwd="/x")
    assert target_id(same, KEY) == target_id(run("a.js"), KEY)
    assert target_id(run("b.js"), KEY) != target_id(run("a.js"), KEY)
    assert target_id(run("a.js"), KEY) != target_id(run("a.js"), b"\x01" * 32)


def test_targets_of_version_1_are_found_again() -> None:
    assert target_id_of_version_1(run("a.js"), KEY) == target_id(run("a.js"), KEY)
    plain = at("https://bank.example/mcp")
    assert target_id_of_version_1(plain, KEY) == target_id(plain, KEY)
    assert target_id_of_version_1(at("https://bank.example/mcp#x"), KEY) == target_id(plain, KEY)


@pytest.mark.parametrize(
    "url",
    [
        "http://bank.example/mcp",
        "https://BANK.example:443/mcp/",
        "https://bank.example/mcp?a=1#b",
        "https://bank.example/MCP",
        "https://bank.example/sse",
        "https://bank.example/./x/..//mcp",
        "https://bank.example/%6dcp/",
        "https://bank.example/mcp%2F",
        "https://bank.example/x%2f..%5cmcp",
        "https://bank.example/mcp;a=1",
        "https://bank.example/;a/mcp%3Bb/",
        "https://bank.example",
    ],
)
def test_no_spelling_leads_around_what_binds_an_address(url: str) -> None:
    assert leads_to_same(at(url, "other"), at("https://bank.example/mcp"))


@pytest.mark.parametrize(
    "url",
    [
        "https://bank.example:444/mcp",
        "https://sub.bank.example/mcp",
        "https://bank.example/other/mcp",
        "https://bank.example/mcp2",
    ],
)
def test_another_place_is_not_bound(url: str) -> None:
    assert not leads_to_same(at(url), at("https://bank.example/mcp"))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "[::1]", "a.localhost."])
def test_this_machine_has_many_names_and_is_one_place(host: str) -> None:
    assert leads_to_same(at(f"http://{host}:9/mcp"), at("http://localhost:9/mcp"))
    assert not leads_to_same(at(f"http://{host}:9/mcp"), at("http://localhost:8/mcp"))


def test_a_command_is_bound_by_its_program_and_all_of_its_arguments() -> None:
    elsewhere = ServerConfig(name="o", command="/usr/bin/node", args=("s.js",), env={"A": "1"})
    assert leads_to_same(run("s.js", cwd="/"), elsewhere)
    assert not leads_to_same(run("s.js"), run("t.js"))
    assert not leads_to_same(run(), at("https://node/"))


FILES = ServerConfig(name="files", command="/opt/bin/file-server", args=("--root", "/home"))
PACKAGE = ServerConfig(name="p", command="npx", args=("-y", "@scope/file_server@1.2.3", "/home"))
SCRIPT = ServerConfig(name="s", command="python3.11", args=("-B", "/srv/file-server.py"))
MODULE = ServerConfig(name="m", command="python3", args=("-m", "file_server"))
IMAGE = ServerConfig(
    name="i",
    command="docker",
    args=("run", "-i", "-e", "TOKEN", "-p", "80:8080", "ghcr.io/x/file-server:2"),
)


@pytest.mark.parametrize("known", [FILES, PACKAGE, MODULE, IMAGE], ids=lambda known: known.name)
@pytest.mark.parametrize(
    "argv",
    [
        ["file-server", "--more"],
        ["env", "/opt/bin/file-server"],
        ["sh", "-c", "cd /tmp;exec 'file-server' x"],
        ["npx", "file-server@2"],
        ["uvx", "--from=file_server==1.0", "x"],
        ["python3", "-mfile_server", "-m", "file_server"],
        ["docker", "run", "other/file-server:1"],
        ["node", "-e", "import('file-server')"],
    ],
    ids=" ".join,
)
def test_another_spelling_of_a_command_may_be_the_same(known: ServerConfig, argv: list[str]):
    assert may_be_same(ServerConfig(name="n", command=argv[0], args=tuple(argv[1:])), known)


def test_a_script_is_known_by_its_file_whatever_stands_around_it() -> None:
    assert may_be_same(run("/srv/file-server.py", "x"), SCRIPT)
    assert may_be_same(
        ServerConfig(name="n", command="sh", args=("-c", "./file-server.py")), SCRIPT
    )
    assert not may_be_same(run("/srv/other.py"), SCRIPT)


@pytest.mark.parametrize("known", [FILES, PACKAGE, SCRIPT, MODULE, IMAGE])
def test_another_program_is_no_other_spelling(known: ServerConfig) -> None:
    assert not may_be_same(ServerConfig(name="n", command="npx", args=("-y", "weather")), known)


@pytest.mark.parametrize("argv", [["sh", "-c"], ["env"], ["npx", "-y"]])
def test_a_command_that_names_nothing_is_like_no_other(argv: list[str]) -> None:
    nothing = ServerConfig(name="n", command=argv[0], args=tuple(argv[1:]))
    assert not may_be_same(ServerConfig(name="m", command="x", args=("///",)), nothing)


def test_another_path_of_a_host_and_a_command_that_names_it_may_be_the_same() -> None:
    known = at("https://bank.example/mcp")
    assert may_be_same(at("https://BANK.example/v2"), known)
    assert may_be_same(run("bridge", "https://bank.example/mcp"), known)
    assert not may_be_same(at("https://bank.example:444/mcp"), known)
    assert not may_be_same(at("https://other.example/mcp"), known)
    assert not may_be_same(at("https://bank.example/mcp"), FILES)
