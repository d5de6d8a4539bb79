import pytest

from emceepee_stdio.config.entries import starts_emceepee


@pytest.mark.parametrize(
    "line",
    [
        "emceepee",
        "emceepee serve",
        "/usr/local/bin/emceepee",
        r"C:\Tools\Emceepee.EXE",
        "python -m emceepee_stdio",
        "/usr/bin/python3.12 -I -m emceepee_stdio serve",
        "python3 -memceepee_stdio",
        "python3 /opt/bin/emceepee",
        "py -m emceepee_stdio",
        "uvx emceepee-stdio",
        "uvx emceepee-stdio@latest",
        "uvx -q emceepee_stdio[uvloop]==1.0",
        "uvx --from emceepee-stdio emceepee",
        "uvx --from=emceepee-stdio emceepee",
        "uvx --from some-fork emceepee",
        "uv tool run emceepee-stdio",
        "uv run emceepee",
        "pipx run --spec emceepee-stdio anything",
        "npx -y emceepee",
        "npx -p emceepee@1 anything",
        "cmd /c uvx emceepee-stdio",
        "env A=b emceepee",
    ],
)
def test_every_way_to_start_this_proxy_is_seen(line: str):
    command, *args = line.split()
    assert starts_emceepee(command, args)


@pytest.mark.parametrize(
    "line",
    [
        "npx -y @modelcontextprotocol/server-memory",
        "npx some-server emceepee",
        "uvx --from other other-server --name emceepee",
        "uvx --from=other other-server",
        "uvx",
        "uvx -q",
        "python -m",
        "python -m other emceepee_stdio",
        "python -mother",
        "python -u",
        "python server.py -m emceepee_stdio",
        "node emceepee.js",
        "emceepee-tools",
        "env A=b",
        "cmd /c node",
    ],
)
def test_other_commands_are_left_alone(line: str):
    command, *args = line.split()
    assert not starts_emceepee(command, args)
