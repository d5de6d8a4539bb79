"""The tools of `sdk2` over HTTP, on the mcp SDK 2.x, in both eras, and one with marked arguments.

Usage: http_sdk2.py TRANSPORT PORT; TRANSPORT is streamable-http or sse
"""

import sys
from typing import Annotated

from pydantic import Field
from sdk2 import server

Region = Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]
Count = Annotated[int, Field(json_schema_extra={"x-mcp-header": "Count"})]


@server.tool()
async def marked(region: Region, count: Count) -> str:
    """Wants both arguments in headers, too."""
    return f"{count} in {region}"


if __name__ == "__main__":
    server.run(sys.argv[1], port=int(sys.argv[2]))
