"""Records of requests and lines of journals as a busy day leaves them, made from a seed.

`python -m tests.trace_records DIRECTORY [COUNT]` writes them as a proxy would, for a look at
`emceepee trace --log-dir DIRECTORY`.
"""

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Json = dict[str, Any]

SESSION = "01KTRACE00SESS10N0000000AA"
START_MS = 1_763_370_000_000.0
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Name, tools, how long one takes at the server, and how often it fails.
_SERVERS: Sequence[tuple[str, Sequence[str], float, float]] = (
    ("git", ("git_status", "git_log", "git_diff", "git_show"), 18, 0.01),
    ("files", ("read_file", "search_files", "list_directory"), 6, 0.02),
    ("postgres", ("query", "explain", "list_tables"), 120, 0.04),
    ("browser", ("navigate", "screenshot", "click"), 900, 0.08),
)
_OWN = ("list_servers", "list_tools", "await_activity")


def _id(at_ms: float, number: int) -> str:
    value = (int(at_ms) << 80) | number
    return "".join(_DIGITS[(value >> 5 * place) & 31] for place in range(25, -1, -1))


def request(number: int, start_ms: float, *legs: tuple[str, float], **more: Any) -> Json:
    """One record; its legs are its duration."""
    return {
        "id": _id(start_ms, number),
        "session": SESSION,
        "kind": "request",
        "method": "tools/call",
        "start_ms": round(start_ms, 3),
        "duration_ms": round(sum(ms for _, ms in legs), 3),
        "legs": [[name, round(ms, 3)] for name, ms in legs],
        "outcome": "ok",
        "request_id": number,
        "tool": "execute_tool",
        "bytes_in": 180,
        "bytes_out": 2_400,
    } | more


def requests(
    count: int, *, seed: int = 7, start_ms: float = START_MS, payloads: bool = False
) -> Iterator[Json]:
    """So many, in the order of their start."""
    dice = random.Random(seed)
    at = start_ms
    cold = {name for name, *_ in _SERVERS}
    for number in range(1, count + 1):
        at += dice.expovariate(1 / 160) if dice.random() < 0.9 else dice.expovariate(1 / 1_500)
        if dice.random() < 0.12:
            yield _own(number, at, dice)
            continue
        server, tools, usual, failing = dice.choices(_SERVERS, (5, 6, 3, 2))[0]
        made = _call(
            number, at, dice, server, dice.choice(tools), usual, failing, is_cold=server in cold
        )
        cold.discard(server)
        if payloads:
            args = {"path": f"src/file_{number}.py", "limit": number % 50}
            made["arguments"] = json.dumps(
                {"server": server, "tool": made["server_tool"], "args": args}
            )
            made["result"] = json.dumps({"content": [{"type": "text", "text": "line\n" * 20}]})
        yield made


def _own(number: int, at: float, dice: random.Random) -> Json:
    tool = dice.choice(_OWN)
    if tool == "await_activity":
        legs = [("waiting", dice.uniform(200, 4_000)), ("rendering", 0.2)]
    else:
        legs = [("rendering", dice.uniform(0.2, 3))]
    return request(number, at, *legs, tool=tool)


def _call(
    number: int,
    at: float,
    dice: random.Random,
    server: str,
    tool: str,
    usual: float,
    failing: float,
    *,
    is_cold: bool,
) -> Json:
    legs: list[tuple[str, float]] = []
    if is_cold:
        legs.append(("connecting", dice.uniform(150, 900)))
    if dice.random() < 0.15:
        legs.append(("queued", dice.expovariate(1 / 40)))
    more: Json = {"server": server, "server_tool": tool, "progress": dice.choice((0, 0, 0, 4))}
    legs.append(("server", usual * dice.lognormvariate(0, 0.9)))
    chance = dice.random()
    if chance < 0.01:
        legs += [("person", dice.uniform(3_000, 12_000)), ("server", usual)]
        more["questions"] = 1
    elif chance < 0.02:
        legs[-1] = ("server", dice.uniform(8_000, 20_000))
        more |= {"outcome": "promoted", "task_id": _id(at, 1_000_000 + number)}
    elif chance < 0.025:
        more["outcome"] = "cancelled"
    elif dice.random() < failing:
        more |= dice.choice(
            ({"outcome": "tool_error"}, {"outcome": "error", "error_code": "server_unavailable"})
        )
    legs.append(("rendering", dice.uniform(0.1, 0.6)))
    return request(number, at, *legs, **more)


def journal_line(at_ms: float, event: str, *, level: str = "info", **more: Any) -> Json:
    moment = datetime.fromtimestamp(at_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    data = more.pop("data", {})
    return {
        "timestamp": moment.replace("+00:00", "Z"),
        "level": level,
        "event": event,
        "session": SESSION,
        **more,
        "data": data,
    }


def journal_lines(records: Sequence[Json], *, seed: int = 7) -> list[Json]:
    """What the journal has of the same time: starts, log lines, questions, and two crashes."""
    dice = random.Random(seed)
    lines: list[Json] = []
    seen: set[str] = set()
    for record in records:
        server, at = record.get("server"), record["start_ms"]
        if server is None:
            continue
        if server not in seen:
            seen.add(server)
            lines.append(journal_line(at + 140, "server_connected", server=server))
        if dice.random() < 0.2:
            text = {"source": "stderr", "text": f"{record['server_tool']}: cache miss, reading"}
            lines.append(journal_line(at + 2, "server_output", server=server, data=text))
        if record.get("questions"):
            kind = {"kind": "elicitation"}
            lines.append(journal_line(at + 30, "elicitation_received", server=server, data=kind))
        if record["outcome"] == "promoted":
            data = {"tool": record["server_tool"], "reason": "it took too long"}
            lines.append(
                journal_line(at + 8_000, "tool_execution_timeout", server=server, data=data)
            )
        if record.get("error_code") == "server_unavailable":
            data = {
                "reason": "the process exited with code 70",
                "exit_code": 70,
                "stderr": ["out of memory"],
            }
            end = at + record["duration_ms"]
            lines.append(
                journal_line(end, "server_disconnected", level="warning", server=server, data=data)
            )
            lines.append(journal_line(end + 420, "server_connected", server=server))
    return sorted(lines, key=lambda line: line["timestamp"])


def _write(path: Path, lines: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    return path


def write_requests(directory: Path, records: Sequence[Json]) -> Path:
    """As the proxy of one session writes them: each when it has ended."""
    by_end = sorted(records, key=lambda record: record["start_ms"] + record["duration_ms"])
    return _write(directory / "requests-20261117T090000-1.jsonl", by_end)


def write_journal(directory: Path, lines: Sequence[Json]) -> Path:
    return _write(directory / "emceepee-20261117T090000-1.jsonl", lines)


if __name__ == "__main__":
    made = list(requests(int(sys.argv[2]) if len(sys.argv) > 2 else 600, payloads=True))
    write_requests(Path(sys.argv[1]), made)
    write_journal(Path(sys.argv[1]), journal_lines(made))
