"""A well-behaved server with every feature of the protocol, in both eras.

Usage: plain.py [--era legacy|modern|both] [--version LEGACY_VERSION] [--paged]

`--version` is the newest handshake version it knows; `--paged` splits tools/list in two pages.
With FIXTURE_LOG set it writes down what it hears (see `rpc`), and `cancelled` when a slow call is
taken back, `spawned` when it starts a grandchild. It ends when stdin does.
"""

import argparse

import dual
from calls import CAPABILITIES
from plain_tools import PIXEL, TOOLS
from rpc import Message, RpcError

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


def server(options: argparse.Namespace) -> dual.Server:
    made = dual.Server("plain", era=options.era, newest=options.version, paged=options.paged)
    made.tools.update((tool.listed["name"], tool) for tool in TOOLS)
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
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=("legacy", "modern", "both"), default="both")
    parser.add_argument("--version", choices=dual.LEGACY, default=dual.LEGACY[-1])
    parser.add_argument("--paged", action="store_true")
    server(parser.parse_args()).run()


if __name__ == "__main__":
    main()
