"""A well-behaved server with every feature of the protocol, in both eras.

Usage: plain.py [--era legacy|modern|both] [--version LEGACY_VERSION] [--paged]
    [--pages three|loop|odd] [--without CAPABILITY…] [--refuse METHOD…] [--ttl MS] [--deaf]
    [--toolbox FILE] [--hostile]

`--version` is the newest handshake version it knows; `--paged` splits tools/list in two pages,
`--pages` in three with an empty one, in pages without end, or in one with a thing that is no tool.
`--without` leaves a capability undeclared, though its methods work; `--refuse` forgets a method;
`--ttl` is how long a modern list lives; `--deaf` grants no subscription to a resource; each line of
the `--toolbox` is the name of one more tool, read when the server starts. `--hostile` adds tools
that do harm (see `hostile_tools`).
With FIXTURE_LOG set it writes down what it hears (see `rpc`), and `cancelled` when a slow call is
taken back, `spawned` when it starts a grandchild. It ends when stdin does.
"""

import argparse
from pathlib import Path

import dual
import hostile_tools
from calls import CAPABILITIES, Call, Tool
from plain_tools import PIXEL, TOOLS
from rpc import Message, RpcError, text

RESOURCES: list[Message] = [
    {"uri": "fixture://one", "name": "one", "mimeType": "text/plain", "description": "Some text"},
    {"uri": "fixture://two", "name": "two", "mimeType": "image/png", "description": "A pixel"},
]
TEMPLATES: list[Message] = [
    {"uriTemplate": "fixture://item/{id}", "name": "item", "mimeType": "text/plain"}
]
PROMPTS: list[Message] = [
    {"name": "greet", "description": "Greets", "arguments": [{"name": "name", "required": True}]},
    {"name": "plain", "description": "Takes nothing"},
]
COMPLETIONS = {"name": ["alice", "albert", "bob"], "id": ["1", "10", "11", "2"]}


def read(message: Message) -> Message:
    uri = message["params"]["uri"]
    if uri == "fixture://two":
        return {"contents": [{"uri": uri, "mimeType": "image/png", "blob": PIXEL}]}
    if uri != "fixture://one" and not uri.startswith("fixture://item/"):
        modern = CAPABILITIES in (message["params"].get("_meta") or {})
        raise RpcError(-32602 if modern else -32002, "Resource not found", {"uri": uri})
    return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"text of {uri}"}]}


def prompt(message: Message) -> Message:
    params = message["params"]
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "greet" and "name" in arguments:
        words = f"Say hello to {arguments['name']}."
    elif name == "plain":
        words = "Say something."
    else:
        raise RpcError(-32602, f"No prompt {name} with {sorted(arguments)}")
    said = {"role": "user", "content": {"type": "text", "text": words}}
    return {"description": name, "messages": [said]}


def complete(message: Message) -> Message:
    argument = message["params"]["argument"]
    known = COMPLETIONS.get(argument["name"], [])
    values = [value for value in known if value.startswith(argument["value"])]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


def three_pages(tools: list[Message], cursor: str | None) -> Message:
    """The tools, nothing, and the rest; the cursor of the last page is empty."""
    pages = {None: (tools[:3], "2"), "2": ([], ""), "": (tools[3:], None)}
    if cursor not in pages:
        raise RpcError(-32602, "Unknown cursor")
    listed, following = pages[cursor]
    return {"tools": listed} | ({} if following is None else {"nextCursor": following})


def one_page(options: argparse.Namespace, tools: list[Message], cursor: str | None) -> Message:
    if options.pages == "three":
        return three_pages(tools, cursor)
    if options.pages == "loop":
        return {"tools": tools[:1], "nextCursor": "again"}
    return {"tools": ["no tool", *tools, 7, None]}


def from_toolbox(name: str) -> Tool:
    def made(_: Call) -> Message:
        return text(name)

    made.__name__ = name
    return Tool(made)


def server(options: argparse.Namespace) -> dual.Server:
    made = dual.Server(
        "plain",
        era=options.era,
        newest=options.version,
        paged=options.paged,
        ttl=options.ttl,
        refused=options.refuse,
        deaf=options.deaf,
    )
    tools = TOOLS + (hostile_tools.TOOLS if options.hostile else [])
    made.tools.update((tool.listed["name"], tool) for tool in tools)
    if options.toolbox:
        for name in Path(options.toolbox).read_text().split():
            made.tools[name] = from_toolbox(name)
    made.capabilities |= {
        "resources": {"subscribe": True, "listChanged": True},
        "prompts": {},
        "logging": {},
        "completions": {},
    }
    made.shared |= {
        "resources/list": lambda _: {"resources": RESOURCES},
        "resources/templates/list": lambda _: {"resourceTemplates": TEMPLATES},
        "resources/read": read,
        "prompts/list": lambda _: {"prompts": PROMPTS},
        "prompts/get": prompt,
        "completion/complete": complete,
    }
    if options.pages:
        made.shared["tools/list"] = lambda m: one_page(
            options,
            [tool.listed for tool in made.tools.values()],
            (m.get("params") or {}).get("cursor"),
        )
    for capability in options.without:
        top, _, feature = capability.partition(".")
        if feature:
            del made.capabilities[top][feature]
        else:
            del made.capabilities[top]
    return made


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=("legacy", "modern", "both"), default="both")
    parser.add_argument("--version", choices=dual.LEGACY, default=dual.LEGACY[-1])
    parser.add_argument("--paged", action="store_true")
    parser.add_argument("--pages", choices=("three", "loop", "odd"))
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--refuse", action="append", default=[])
    parser.add_argument("--ttl", type=int, default=0)
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--toolbox")
    parser.add_argument("--hostile", action="store_true")
    return parser


def main(argv: list[str] | None = None) -> None:
    server(arguments().parse_args(argv)).run()


if __name__ == "__main__":
    main()
