"""A legacy server that answers every request as a file says: `impostor.py ANSWERS`.

The file holds a JSON object of results by method, read anew for each request; `{"error": …}` in the
place of a result is an error. It may also hold `instructions`. A method whose result is `"silence"`
is never answered.
"""

import json
import sys
from pathlib import Path
from typing import Any

HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {"listChanged": True}, "resources": {}, "prompts": {}},
    "serverInfo": {"name": "impostor", "version": "1"},
}


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def main() -> None:
    answers = Path(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        known = json.loads(answers.read_text())
        result = known.get(asked["method"], {})
        if asked["method"] == "initialize" and not result:
            said = known.get("instructions")
            result = HELLO if said is None else HELLO | {"instructions": said}
        if result == "silence":
            continue
        if "error" in result:
            say(id=asked["id"], error=result["error"])
        else:
            say(id=asked["id"], result=result)


if __name__ == "__main__":
    main()
