"""Where a test starts the real proxy, if need be with other fixed values.

`python proxy_entry.py '{"events": 50}' serve …` is `python -m emceepee_stdio serve …` but for them.
"""

import json
import sys
from collections.abc import Mapping

import msgspec

from emceepee_stdio.__main__ import main
from emceepee_stdio.config.settings import FixedValues


def proxy_command(fixed: Mapping[str, float] | None = None) -> list[str]:
    """The beginning of a proxy's command line; without other values that of the product."""
    if not fixed:
        return [sys.executable, "-m", "emceepee_stdio"]
    return [sys.executable, __file__, json.dumps(fixed)]


if __name__ == "__main__":
    main(fixed=msgspec.json.decode(sys.argv.pop(1), type=FixedValues))
