"""One of many servers, each with forty tools of its own field, or one that is of no use.

Usage: many.py NAME [fail|hang] [--era legacy|modern|both]

Without a word after its name it serves; `fail` answers tools/list with an error, `hang` not at all.
A tool says which one it is and what it was given.
"""

import argparse
import json
from typing import Any

import dual
from calls import Call, Tool
from catalogue import servers
from rpc import Message, RpcError, text


class Listed(Tool):
    """A tool that answers with its name and its arguments."""

    def __init__(self, listed: Message) -> None:
        self.listed = listed
        self.function = self._answer

    def _answer(self, _: Call, **given: Any) -> Message:
        return text(json.dumps({"tool": self.listed["name"], "given": given}))


def _refuse(_: Message) -> Message:
    raise RpcError(-32603, "the catalogue is closed for stocktaking")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("mode", nargs="?", choices=("serve", "fail", "hang"), default="serve")
    parser.add_argument("--era", choices=("legacy", "modern", "both"), default="both")
    options = parser.parse_args(argv)
    server = dual.Server(options.name, era=options.era)
    server.tools.update((tool["name"], Listed(tool)) for tool in servers().get(options.name, ()))
    if options.mode == "fail":
        server.shared["tools/list"] = _refuse
    elif options.mode == "hang":
        server.mute.add("tools/list")
    server.run()


if __name__ == "__main__":
    main()
