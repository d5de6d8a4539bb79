"""Where a test starts the real HTTP front with other limits.

`python front_entry.py '{"idle_s": 1}' serve …` is `emceepee serve …` but for them.
"""

import json
import sys

from emceepee_stdio.cli.serve_http import serve_http
from emceepee_stdio.front.http.http_replies import HttpLimits


def front_command(**limits: float) -> list[str]:
    return [sys.executable, __file__, json.dumps(limits)]


if __name__ == "__main__":
    sys.exit(serve_http(sys.argv[3:], limits=HttpLimits(**json.loads(sys.argv[1]))))
