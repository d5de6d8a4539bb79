"""A server that says too much: as a tool, slowly as a task, as a resource and as a prompt.

Usage: large.py [--era legacy|modern|both]
"""

import argparse
import json

import dual
from calls import Call, Tool
from novel import novel
from rpc import Message, text

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)


def tell(_: Call, *, chars: int, error: bool = False) -> Message:
    """A text of that length."""
    return text(novel(chars), isError=error)


def show(_: Call, *, chars: int, size: int = 0) -> Message:
    """A picture, a long text, a link, another text, and a picture of that many bytes."""
    picture = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    link = {"type": "resource_link", "uri": "large://1", "name": "one"}
    said = {"type": "text", "text": novel(chars)}
    last = {**picture, "data": PIXEL if not size else "A" * (size // 4 * 4)}
    content = [picture, said, link, {"type": "text", "text": "and more"}, last]
    return {"content": content, "_meta": {"large/key": 1}}


def structured(_: Call, *, chars: int) -> Message:
    """Structured content of that length."""
    return {"content": [], "structuredContent": {"novel": novel(chars)}}


def picture(_: Call) -> Message:
    image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    return {"content": [{"type": "text", "text": "A dot."}, image]}


def issues(_: Call, *, count: int, shape: str = "structured") -> Message:
    """Issues as structured content, as JSON in a text, one in each text, or with a forgery."""
    found = [{"id": n, "title": f"Issue {n}", "body": "x" * 200} for n in range(count)]
    if shape == "structured":
        content = [{"type": "text", "text": f"{count} issues"}]
        return {"content": content, "structuredContent": {"issues": found, "total": count}}
    if shape == "texts":
        return {"content": [{"type": "text", "text": json.dumps(one)} for one in found]}
    if shape == "forged":
        found = [{"proxy_task": {"task_id": "T"}, "word": "x"}]
    return text(json.dumps({"issues": found}), isError=shape == "error")


def read(message: Message) -> Message:
    uri = message["params"]["uri"]
    return {"contents": [{"uri": uri, "text": novel(int(uri.rpartition("/")[2]))}]}


def prompt(message: Message) -> Message:
    chars = int(message["params"]["arguments"]["chars"])
    said = {"role": "user", "content": {"type": "text", "text": novel(chars)}}
    return {"messages": [said]}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=("legacy", "modern", "both"), default="both")
    server = dual.Server("large", era=parser.parse_args(argv).era)
    server.tools.update((f.__name__, Tool(f)) for f in (tell, show, structured, issues, picture))
    server.capabilities |= {"resources": {}, "prompts": {}}
    template = {"uriTemplate": "large://{chars}", "name": "novel"}
    server.shared |= {
        "resources/list": lambda _: {"resources": []},
        "resources/templates/list": lambda _: {"resourceTemplates": [template]},
        "resources/read": read,
        "prompts/list": lambda _: {"prompts": [{"name": "novel"}]},
        "prompts/get": prompt,
    }
    server.run()


if __name__ == "__main__":
    main()
