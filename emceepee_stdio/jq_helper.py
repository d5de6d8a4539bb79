"""The helper that runs jq programs: `python -m emceepee_stdio.jq_helper`.

jq reads files and variables if it is let, and a program of a model may run for ever or fill the
memory. So it runs here: a program stands in brackets, where `import` and `include` are errors of
syntax; what would read or end something else is defined as an error; there is no environment and no
descriptor to open a file with; time, memory and output are limited. The owner kills a helper that
takes too long; one that has lost its owner ends by itself.

An order is a line of JSON, `{"program", "bytes"}`, and so many bytes of text; without `bytes` the
program is only compiled. The answer is one line of JSON: `value` or `error`, and `about`, in words
what the text is. One empty line says that the helper is ready.
"""

import faulthandler
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from io import BufferedWriter, FileIO
from typing import Any

import msgspec

LIMIT_S = 2.0  # for one program; whoever waits for it waits for an answer of a model's tool
MEMORY_BYTES = 1 << 30  # JSON in memory takes some ten times its text, of which 64 MB are stored
OUTPUT_BYTES = 4 << 20  # a larger result is no selection
_WITHOUT_OWNER_S = 5.0  # the owner has killed it long before, if there is one
_ERROR_CHARS = 1_000
_ABOUT_CHARS = 600

_NOTHING = re.compile(rb"null|\[(?:null(?:,null)*)?\]")
_PLACE = re.compile(r"(<top-level>, line )(\d+)")
_REFUSED = ("modulemeta", "input", "inputs", "input_line_number", "halt", "halt_error")
_PRELUDE = "".join(
    f'def {name}: error("{name} is not available");'
    for name in (*_REFUSED, "halt_error($code)", "get_search_list", "input_filename")
)
# What a text is, so that a program that found nothing can be corrected.
_ABOUT = r"""
def about($deep): def inside: if $deep > 0 and (type == "object" or type == "array") and length > 0
    then " (\(about($deep - 1)))" else "" end;
  if type == "object" then "an object with the keys \(to_entries[:20]
    | map("\(.key[:60])\(.value | inside)") | join(", "))" + (length - 20
    | if . > 0 then " and \(.) more" else "" end)
  elif type == "array" then "a list of \(length)" + (.[0]
    | if $deep >= 0 and . != null then ", first \(about($deep - 1))" else "" end)
  elif type == "string" then "a text of \(length) characters"
  elif type == "null" then "null" else "a \(type)" end; about(2)
"""

Given = Callable[[Any], Any]


def main() -> None:
    jq = import_module("jq")  # where it is missing, nothing is answered
    _confine()
    orders, answers = sys.stdin.buffer, BufferedWriter(FileIO(1, "wb"))
    answers.write(b"\n")
    answers.flush()
    while line := orders.readline():
        if not line.strip():  # the end of a text
            continue
        order = json.loads(line)
        size = order.get("bytes")
        text = None if size is None else orders.read(size).decode(errors="replace")
        faulthandler.dump_traceback_later(_WITHOUT_OWNER_S, exit=True)
        answer = _answer(jq, order["program"], text)
        faulthandler.cancel_dump_traceback_later()
        answers.write(answer + b"\n")
        answers.flush()


def _confine() -> None:
    os.chdir("/")
    os.environ.clear()
    if sys.platform != "win32":
        import resource  # noqa: PLC0415 - not on Windows

        with suppress(ValueError):  # macOS has more than that from the start
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))  # no other can be opened
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(jq: Any, program: str, text: str | None) -> bytes:
    try:
        compiled = jq.compile(f"{_PRELUDE}(\n{program}\n)\n|tojson")
    except ValueError as error:
        return _told(str(error))
    if text is None:
        return b"{}"
    given = _given(jq, text)
    try:
        value = _collected(given(compiled))
    except ValueError as error:
        return _told(str(error), _about(jq, given))
    except MemoryError:
        return _told("it takes more memory than it may have")
    about = _about(jq, given) if _NOTHING.fullmatch(value) else ""
    return b'{"value":%b,"about":%b}' % (value, json.dumps(about).encode())


def _given(jq: Any, text: str) -> Given:
    """One value of JSON, several as a list; a text that is no JSON is that text.

    jq reads more than JSON: of objects and lists that helps (NaN in them), but 007 is no number.
    """
    count = 0
    try:
        msgspec.json.decode(text, type=msgspec.Raw)  # reads it in a fraction of the time
        count = 1
    except RecursionError:
        count = 1  # jq says how deep it may be
    except msgspec.MsgspecError:
        if text.lstrip()[:1] in ("{", "["):
            with suppress(ValueError):
                count = jq.compile("length").input_text(text, slurp=True).first()
    if not count:
        return lambda compiled: compiled.input_value(text)
    return lambda compiled: compiled.input_text(text, slurp=count > 1)


def _collected(values: Iterable[object]) -> bytes:
    """What the program gives: one value, or a list of none or several."""
    found: list[bytes] = []
    left = OUTPUT_BYTES
    for value in values:
        if not isinstance(value, str) or "\n" in value:  # it has left its brackets
            raise ValueError("its brackets do not match")
        found.append(value.encode(errors="replace"))
        left -= len(found[-1]) + 1
        if left < 0:
            raise ValueError(f"it gives more than {OUTPUT_BYTES} bytes")
    return found[0] if len(found) == 1 else b"[%b]" % b",".join(found)


def _about(jq: Any, given: Given) -> str:
    try:
        return str(given(jq.compile(_ABOUT)).first())[:_ABOUT_CHARS]
    except (ValueError, MemoryError):
        return ""


def _told(error: str, about: str = "") -> bytes:
    """The program's own lines count from one."""
    text = _PLACE.sub(lambda found: f"{found[1]}{int(found[2]) - 1}", error)
    return json.dumps({"error": text[:_ERROR_CHARS], "about": about}).encode()


if __name__ == "__main__":
    main()
