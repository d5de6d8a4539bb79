"""Pack the MCP bundle that a double click installs in Claude Desktop.

Usage: python scripts/bundle.py [FILE]    (dist/emceepee.mcpb unless told)

The bundle holds our wheel, a pyproject.toml that asks for it with the versions of constraints.txt,
and a manifest of the kind `uv`: the host brings uv, which brings Python and the dependencies at the
first start. npm's `@anthropic-ai/mcpb` checks the manifest and packs; `scripts/peers.py bundle`
installs it.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from scripts import peers

ROOT = Path(__file__).resolve().parent.parent
ENTRY_POINT = "server/main.py"
MAIN = '''"""What the host starts."""

from emceepee_stdio.__main__ import main

main()
'''
_FIRST_SENTENCE = re.compile(r".+?[.!?](?=\s|$)", re.DOTALL)


def manifest(version: str, about: dict[str, object]) -> dict[str, object]:
    """What the host shows before it installs, and how it starts us."""
    tools = json.loads((ROOT / "emceepee_stdio" / "front" / "tools.json").read_bytes())
    return {
        "manifest_version": "0.4",
        "name": "emceepee",
        "display_name": "emceepee",
        "version": version,
        "description": about["description"],
        "long_description": (
            "Add MCP servers in the middle of a chat, by command or by URL, and keep working when "
            "one of them is slow, asks something, or crashes.\n\nServers for every chat are listed "
            "in emceepee's own configuration file, which the tool `list_servers` names."
        ),
        "author": {"name": "The emceepee authors"},
        "license": about["license"],
        "keywords": about["keywords"],
        "server": {
            "type": "uv",
            "entry_point": ENTRY_POINT,
            "mcp_config": {
                "command": "uv",
                "args": ["run", "--quiet", "--directory", "${__dirname}", ENTRY_POINT],
            },
        },
        "tools": [
            {"name": tool["name"], "description": _first_sentence(tool["description"])}
            for tool in tools
        ],
        "tools_generated": True,
        "compatibility": {
            "platforms": ["darwin", "win32", "linux"],
            "runtimes": {"python": about["requires-python"]},
        },
    }


def project(wheel: str, about: dict[str, object]) -> str:
    """The project that uv makes the environment for; the wheel lies beside it."""
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    return f"""[project]
name = "emceepee-bundle"
version = "0"
requires-python = "{about["requires-python"]}"
dependencies = ["emceepee-stdio"]

[tool.uv]
package = false
constraint-dependencies = {json.dumps([pin for pin in pins if pin], indent=4)}

[tool.uv.sources]
emceepee-stdio = {{ path = "{wheel}" }}
"""


def fill(place: Path) -> None:
    """Everything that is packed."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = place.glob("*.whl")
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = _semantic(wheel.name.split("-")[1])
    (place / "manifest.json").write_text(json.dumps(manifest(version, about), indent=2) + "\n")
    (place / "pyproject.toml").write_text(project(wheel.name, about))
    (place / ENTRY_POINT).parent.mkdir()
    (place / ENTRY_POINT).write_text(MAIN)
    shutil.copy(ROOT / "LICENSE", place)


def pack(place: Path, target: Path) -> None:
    """Have npm's own program check the manifest, and pack."""
    packages = peers.folder(peers.BUNDLE) / "node_modules"
    program = packages / "@anthropic-ai" / "mcpb" / "dist" / "cli" / "cli.js"
    target.parent.mkdir(parents=True, exist_ok=True)
    node = str(shutil.which("node"))
    subprocess.run([node, program, "pack", place, target], check=True, stdout=sys.stderr)


def _semantic(version: str) -> str:
    """`0.1.0.dev0` as hosts compare versions: `0.1.0-dev0`."""
    return re.sub(r"^(\d+\.\d+\.\d+)\.?(?=[a-z])", r"\1-", version)


def _first_sentence(text: str) -> str:
    found = _FIRST_SENTENCE.match(text)
    return found[0] if found else text


def main() -> int:
    if not peers.is_installed(peers.BUNDLE):
        print(f"The packer is missing; run: {peers.command_for(peers.BUNDLE)}", file=sys.stderr)
        return 1
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / "emceepee.mcpb"
    with tempfile.TemporaryDirectory() as place:
        fill(Path(place))
        pack(Path(place), target.absolute())
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
