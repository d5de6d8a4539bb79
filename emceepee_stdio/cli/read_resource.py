"""`emceepee read`: one resource of one server, from the shell."""

from base64 import b64decode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from emceepee_stdio.cli.one_request import REQUEST_TIMEOUT_S, TimeoutOption, ask_server
from emceepee_stdio.cli.server_choice import AnyServerArgument, choose
from emceepee_stdio.cli.shared_options import ConfigOption, JsonOption
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.json_values import elements, mapping

if TYPE_CHECKING:
    from msgspec import Raw

    from emceepee_stdio.backends.backend import Backend
    from emceepee_stdio.cli.one_shot import OneShotSession

__all__ = ["read_resource"]


def read_resource(
    context: typer.Context,
    server: AnyServerArgument,
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="One of its resources; see emceepee ls.")
    ],
    *,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read one resource of a server, and print it; a binary one only into a pipe or a file.

    Exit code 1: the server refuses, or does not answer in time; 2: there is no such server, or it
    says that it has no such resource; 3: the server refuses the credentials; 4: the server failed.

    Example: emceepee read docs file:///notes.txt
    Example: emceepee read pictures picture://logo > logo.png
    """
    choice = choose(context, server, config)
    terminal = Terminal()

    async def send(_here: "OneShotSession", backend: "Backend") -> "Raw":
        with terminal.waiting(f"Reading {uri} …"):
            return await backend.read_resource(uri, within=timeout)

    result = ask_server(choice, send, within=timeout, terminal=terminal)
    if as_json:
        terminal.document({"server": choice.server.name, "result": result})
        return
    for one in elements(result.get("contents")):
        _show(mapping(one), terminal)


def _show(content: Mapping[str, object], terminal: Terminal) -> None:
    if "blob" not in content:
        terminal.said(str(content.get("text", "")))
        return
    try:
        data = b64decode(str(content["blob"]), validate=True)
    except ValueError:
        terminal.note(f"{content.get('uri')} cannot be read: it is not base64.")
        return
    kind = content.get("mimeType", "data")
    if terminal.columns is None:
        terminal.raw(data)
    else:
        terminal.said(f"[{kind}, {len(data)} bytes; in a pipe you get them]")
