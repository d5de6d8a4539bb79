"""Episodes: one proxy each, from its start to its end, under the fire of one seed.

Each raises when something does not hold, and returns what it saw.
"""

import contextlib
import random
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from tests.e2e.client import ENVELOPE, Setting, command, server
from tests.e2e.front_harness import modern_body, modern_headers, running_front, session
from tests.e2e.servers.http_mcp import McpServer
from tests.e2e.servers.http_wire import Exchange
from tests.fuzz.hostile import FROM_CLIENT, FROM_SERVER, RESULTS, Message, bent
from tests.fuzz.mutate import Mutator, load, names_a_number_between
from tests.fuzz.rig import MEGABYTE, ROOT, Wild, memory, peak_memory, running

CALM = "calm"
BABBLER = "babbler"
GROWTH = 128 * MEGABYTE
FLOOD_GROWTH = 6 * MEGABYTE
HOSTILE_BYTES = (200, 20_000, 400_000)
IN_FLIGHT = 12
HANG = 30.0


@dataclass
class Seen:
    """What an episode came to."""

    calls: int = 0
    failed: int = 0
    lines: int = 0
    foreign: int = 0
    growth: int = 0

    def add(self, other: "Seen") -> None:
        self.calls += other.calls
        self.failed += other.failed
        self.lines += other.lines
        self.foreign += other.foreign
        self.growth = max(self.growth, other.growth)


def _seen(client: Wild, before: int, lines: int, *, limit: int = GROWTH) -> Seen:
    growth = peak_memory(client) - before
    assert growth < limit, f"it grew by {growth / MEGABYTE:.0f} MiB"
    return Seen(client.answered, client.failed, lines, client.foreign, growth)


# The client's wire


async def front_episode(seed: int | str, home: Path, steps: int) -> Seen:
    """Garbage on stdin, and between it calls that must be answered."""
    mutator = Mutator(load("client"), seed=f"front {seed}")
    setting = Setting(home=home, servers={CALM: server()})
    lines = 0
    modern = mutator.random.random() < 0.3
    async with running(setting, seed=seed, modern=modern) as client:
        if mutator.random.random() < 0.5:
            await client.greet()
        before = 0
        for step in range(steps):
            burst = [mutator.line() for _ in range(mutator.random.randint(1, 12))]
            lines += sum(data.count(b"\n") for data in burst)
            client.expect(b"".join(burst))
            for piece in mutator.pieces(b"".join(burst)):
                await client.send(piece)
            await client.send(client.asking(CALM))
            await client.settle(leave=IN_FLIGHT)
            if step == IN_FLIGHT:
                await client.settle()
                before = memory(client)
        await client.settle()
        return _seen(client, before, lines)


# The child's wire


def babbler(seed: int | str, *options: str) -> dict[str, object]:
    argv = [sys.executable, "-m", "tests.fuzz.babbler", "--seed", str(seed), *options]
    return command(argv, env={"PYTHONPATH": str(ROOT)})


async def child_episode(seed: int | str, home: Path, steps: int) -> Seen:
    """A server that babbles, and a calm one beside it."""
    mutator = Mutator([b"x"], seed=f"child {seed}")
    damage = mutator.random.random() < 0.3
    era = mutator.random.choice(("legacy", "legacy", "modern"))
    said = home.with_suffix(".said")
    options = ["--era", era, "--record", str(said), *(["--damage"] if damage else [])]
    entry = babbler(seed, *options) | {"era": era}
    setting = Setting(home=home, servers={BABBLER: entry, CALM: server()})
    async with running(setting, seed=seed) as client:
        await client.greet()
        await client.connected(BABBLER, CALM)
        before = memory(client)
        for _ in range(steps):
            for _ in range(mutator.random.randint(1, 4)):
                await client.send(client.asking(BABBLER, may_fail=damage))
            await client.send(client.asking(CALM))
            if mutator.random.random() < 0.1:
                await _look_around(client, mutator.random.randrange(6))
            await client.settle(leave=IN_FLIGHT)
        await client.settle()
        return _seen(client, before, said.read_bytes().count(b"\n"))


async def replay_child(said: Path, home: Path, *, calls: int = 4) -> Seen:
    """A server that says the same thing before every answer."""
    entry = babbler(0, "--noise", "0", "--say", str(said)) | {"era": "legacy"}
    fixed: dict[str, float] = {"server_questions": 1_000, "pending_requests": 1_000}
    setting = Setting(home=home, servers={BABBLER: entry, CALM: server()}, fixed=fixed)
    async with running(setting, seed=0) as client:
        await client.greet()
        await client.connected(BABBLER, CALM)
        before = memory(client)
        for _ in range(calls):
            await client.send(client.asking(BABBLER), client.asking(CALM))
            await client.settle()
        for which in range(6):
            await _look_around(client, which)
        return _seen(client, before, said.read_bytes().count(b"\n"))


async def misreport_episode(seed: int | str, home: Path, steps: int) -> Seen:
    """A server that tells the progress of its calls in words that are no progress."""
    entry = babbler(seed, "--misreport") | {"era": "legacy"}
    async with running(Setting(home=home, servers={BABBLER: entry}), seed=seed) as client:
        await client.greet()
        await client.connected(BABBLER)
        before = memory(client)
        for _ in range(steps):
            await client.send(client.asking(BABBLER))
            await client.settle()
        return _seen(client, before, steps)


async def replay_front(said: Path, home: Path, *, calls: int = 4) -> Seen:
    """A client that says the same thing before every call, the first time before anything else."""
    setting = Setting(home=home, servers={CALM: server()})
    data = said.read_bytes()
    async with running(setting, seed=0) as client:
        before = memory(client)
        client.expect(data)
        for _ in range(calls):
            await client.send(data, client.asking(CALM))
            await client.settle()
        return _seen(client, before, calls * data.count(b"\n"))


async def _look_around(client: Wild, which: int) -> None:
    """Whatever shows to the client what the server said must be able to."""
    tools = ("get_logs", "get_notifications", "list_servers", "get_elicitations")
    if which < len(tools):
        await client.call(tools[which])
    elif which == len(tools):
        await client.call("await_activity", timeout_ms=0)
    else:
        await client.call("list_tools", server=BABBLER)


# A server behind a URL


class Bent(McpServer):
    """Answers calls as it should, with garbage around; or with garbage alone, to some words."""

    def __init__(self, mutator: Mutator, seeds: list[bytes], *, answers: str) -> None:
        super().__init__(era="legacy", answers=answers)
        self.mutator = mutator
        self.fields = Mutator(seeds, seed=f"fields {mutator.random.random()}")
        self.before = self.bend
        self.done: set[int] = set()
        self.lines = 0

    async def bend(self, exchange: Exchange) -> bool:
        if exchange.method != "POST":
            return False
        message = exchange.message
        if "method" not in message:
            await exchange.reply(202, kind="")
            return True
        if message["method"] != "tools/call":
            return False
        words = message["params"]["arguments"]["message"]
        content = [{"type": "text", "text": words}]
        answer = {"id": message["id"], "result": {"content": content}}
        if self.answers == "json":
            await self.reply_badly(exchange)
        else:
            await exchange.stream()
            for _ in range(self.mutator.random.randint(0, 6)):
                await exchange.chunk(self.garbage(message["id"]))
            await exchange.chunk(b"\n\n")
            await exchange.event(answer)
            for _ in range(self.mutator.random.randint(0, 2)):
                await exchange.chunk(self.garbage(message["id"]))
            await exchange.finish()
        return True

    def garbage(self, live: int) -> bytes:
        """Events that hold what a server must not say, and lines that are no events."""
        self.lines += 1
        if self.mutator.random.random() < 0.5:
            data = self.fields.line()
        else:
            data = b"data: " + self.mutator.line().rstrip(b"\n") + b"\n\n"
        return b": quiet\n\n" if names_a_number_between(data, live - 50, live + 5_000) else data

    async def reply_badly(self, exchange: Exchange) -> None:
        """A body that answers nothing, or not in HTTP: the call must end with an error."""
        self.lines += 1
        kinds = ("application/json", "text/event-stream", "text/html", "")
        body = self.mutator.line()
        if self.mutator.random.random() < 0.1:
            exchange.drop()
        else:
            status = self.mutator.random.choice((200, 200, 200, 202, 204, 400, 500, 302))
            await exchange.reply(status, body, kind=self.mutator.random.choice(kinds))


async def http_episode(seed: int | str, home: Path, steps: int) -> Seen:
    mutator = Mutator(load("server"), seed=f"http {seed}")
    answers = mutator.random.choice(("sse", "sse", "json"))
    bent = Bent(mutator, load("sse"), answers=answers)
    await bent.http.start()
    try:
        entry = {"url": bent.url, "era": "legacy", "restart": {"max_attempts": 10_000}}
        timeouts = {"call_ms": 15_000}
        setting = Setting(home=home, servers={BABBLER: entry, CALM: server()}, timeouts=timeouts)
        async with running(setting, seed=seed) as client:
            await client.greet()
            await client.connected(BABBLER, CALM)
            before = memory(client)
            for _ in range(steps):
                for _ in range(mutator.random.randint(1, 3)):
                    await client.send(client.asking(BABBLER, may_fail=answers == "json"))
                await client.send(client.asking(CALM))
                await client.settle(leave=IN_FLIGHT)
            await client.settle()
            return _seen(client, before, bent.lines)
    finally:
        await bent.http.stop()


# Floods


@dataclass
class Flood:
    """How the calls beside a flood fared."""

    lines: int
    calls: int
    growth: int
    seconds: float


FLOOD = (
    b"\n",
    b"words for people\n",
    b'{"jsonrpc":"2.0","method":"notifications/no/such","params":{"n":1}}\n',
    b'{"jsonrpc":"2.0","id":4000000000,"result":{}}\n',
)
BLOCK = 500


async def front_flood(lines: int, home: Path) -> Flood:
    """So many lines that mean nothing, from a client that goes on calling."""
    setting = Setting(home=home, servers={CALM: server()})
    async with running(setting, seed="flood") as client:
        await client.greet()
        await client.send(client.asking(CALM))
        await client.settle()
        before, began = memory(client), anyio.current_time()
        block = b"".join(FLOOD) * (BLOCK // len(FLOOD))
        for _ in range(0, lines, BLOCK):
            await client.send(block, client.asking(CALM))
            await client.settle(leave=4)
        await client.settle()
        seen = _seen(client, before, lines, limit=FLOOD_GROWTH)
        return Flood(lines, seen.calls, seen.growth, anyio.current_time() - began)


async def child_flood(lines: int, home: Path) -> Flood:
    """So many notifications and as many lines on stderr, beside a server that is called."""
    servers = {BABBLER: babbler(0, "--noise", "0"), CALM: server()}
    async with running(Setting(home=home, servers=servers), seed="flood") as client:
        await client.greet()
        await client.connected(BABBLER, CALM)
        before, began = memory(client), anyio.current_time()
        arguments = {"server": BABBLER, "tool": "flood", "args": {"count": lines}}
        flood = await client.begin_call("execute_tool", **arguments)
        over = anyio.Event()

        async def wait_for_its_end() -> None:
            await flood.done.wait()
            answer = await client.final(await flood.answer(), timeout_ms=10_000)
            assert answer.blocks[0]["text"] == "done", answer
            over.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_its_end)
            while not over.is_set():
                await client.send(client.asking(CALM))
                await client.settle()
        calls = client.answered
        await client.send(client.asking(BABBLER), client.asking(CALM))
        await client.settle()
        seen = _seen(client, before, lines, limit=FLOOD_GROWTH)
        return Flood(2 * lines, calls, seen.growth, anyio.current_time() - began)


async def endless_line(megabytes: int, home: Path, *, greet: bool) -> Seen:
    """A line longer than any may be, as the first thing that is said or later."""
    setting = Setting(home=home, servers={CALM: server()})
    async with running(setting, seed="endless") as client:
        if greet:
            await client.greet()
            await client.send(client.asking(CALM))
            await client.settle()
        before = memory(client)
        with anyio.fail_after(HANG):
            for _ in range(megabytes):
                await client.send(b"x" * MEGABYTE)
            await client.send(b"\n", client.asking(CALM))
            await client.settle()
        return _seen(client, before, 1)


# JSON that is valid, and costly or odd to read


def hostile(seed: int | str, size: int) -> dict[str, object]:
    argv = [sys.executable, "-m", "tests.fuzz.hostile", "--seed", str(seed), "--size", str(size)]
    return command(argv, env={"PYTHONPATH": str(ROOT)}) | {"era": "legacy"}


async def hostile_server_episode(seed: int | str, home: Path, steps: int) -> Seen:
    """All that a server says and answers has such a value in it; another is called beside."""
    chance = random.Random(f"sizes {seed}")
    return await _call_oddly(hostile(seed, chance.choice(HOSTILE_BYTES)), seed, home, steps)


async def hostile_url_episode(seed: int | str, home: Path, steps: int) -> Seen:
    """The same of a server behind a URL, in bodies and in events."""
    odd = Odd(seed)
    await odd.http.start()
    try:
        entry: dict[str, object] = {
            "url": odd.url,
            "era": "legacy",
            "restart": {"max_attempts": 10_000},
        }
        return await _call_oddly(entry, seed, home, steps)
    finally:
        await odd.http.stop()


class Odd(McpServer):
    """Answers what is asked of its lists and tools with one member replaced."""

    def __init__(self, seed: int | str) -> None:
        super().__init__(era="legacy")
        self.chance = random.Random(f"odd {seed}")
        self.before = self.answer_oddly

    async def answer_oddly(self, exchange: Exchange) -> bool:
        if exchange.method == "POST" and "method" not in exchange.message:
            await exchange.reply(202, kind="")
            return True
        if exchange.method != "POST" or exchange.message["method"] not in RESULTS:
            return False
        chance, size = self.chance, self.chance.choice(HOSTILE_BYTES)
        result = RESULTS[exchange.message["method"]]
        line = bent(chance, {"id": exchange.message["id"], "result": result}, size, keep=("id",))
        if chance.random() < 0.5:
            await exchange.reply(200, line, kind="application/json")
            return True
        await exchange.stream()
        said = [bent(chance, chance.choice(FROM_SERVER), size), line]
        await exchange.chunk(b"".join(b"data: %b\n" % each for each in said))
        await exchange.finish()
        return True


async def _call_oddly(entry: Mapping[str, object], seed: int | str, home: Path, steps: int) -> Seen:
    chance = random.Random(f"asks {seed}")
    asked: tuple[tuple[str, dict[str, object]], ...] = (
        ("execute_tool", {"tool": "attack", "args": {"count": 3}}),
        ("execute_tool", {"tool": "odd"}),
        *((name, {}) for name in ("list_tools", "list_prompts", "list_resources")),
        ("get_prompt", {"name": "odd"}),
        ("read_resource", {"uri": "x://y"}),
        ("complete_argument", {"prompt": "odd", "argument": "a", "value": "x"}),
    )
    setting = Setting(home=home, servers={BABBLER: entry, CALM: server()})
    async with running(setting, seed=seed) as client:
        await client.greet()
        await client.connected(BABBLER, CALM)
        client.lenient = True
        before = memory(client)
        for _ in range(steps):
            tool, arguments = chance.choice(asked)
            odd = await client.begin_call(tool, server=BABBLER, **arguments)
            await client.send(client.asking(CALM))
            await client.settle()
            await client.final(await odd.answer())
            await _look_around(client, chance.randrange(6))
        return _seen(client, before, steps)


async def hostile_http_episode(seed: int | str, home: Path, steps: int) -> Seen:
    """Bodies of a client over HTTP in either era, while another client makes its calls."""
    chance, answered = random.Random(f"posts {seed}"), 0
    home.mkdir()
    with running_front(home) as front:
        async with session(front) as calm, session(front) as odd:
            for step in range(steps):
                message: Message = {"id": f"odd-{step}", **chance.choice(FROM_CLIENT)}
                headers = odd.headers(content_type="application/json")
                if chance.random() < 0.5:
                    params = {"_meta": ENVELOPE, **message["params"]}
                    message = modern_body(0, message["method"], **params) | {"id": step}
                    headers |= modern_headers(front, message)
                    del headers["mcp-session-id"]
                line = bent(chance, message, chance.choice(HOSTILE_BYTES), keep=("method",))
                async with odd.http.stream("POST", odd.url, content=line, headers=headers) as said:
                    assert said.status_code in (200, 202, 400, 404, 413, 422), said
                    with anyio.move_on_after(1.0):  # what names no request has no last event
                        await said.aread()
                assert not (await calm.call("list_servers")).get("isError")
                answered += 1
    return Seen(calls=answered, lines=steps)


async def hostile_client_episode(seed: int | str, home: Path, steps: int) -> Seen:
    """Each request of a client is answered, with such a value in the place of any member."""
    chance = random.Random(f"client {seed}")
    async with running(Setting(home=home, servers={CALM: server()}), seed=seed) as client:
        await client.greet()
        await client.connected(CALM)
        before = memory(client)
        for step in range(steps):
            message = {"id": f"odd-{step}", **chance.choice(FROM_CLIENT)}
            pending, _ = client.prepare(str(message["method"]), id=f"odd-{step}", modern=False)
            line = bent(chance, message, chance.choice(HOSTILE_BYTES), keep=("id", "method"))
            await client.send(line, client.asking(CALM))
            await pending.response()
            await client.settle()
        return _seen(client, before, steps)


KINDS = {
    "front": front_episode,
    "child": child_episode,
    "http": http_episode,
    "hostile-server": hostile_server_episode,
    "hostile-url": hostile_url_episode,
    "hostile-client": hostile_client_episode,
    "hostile-http": hostile_http_episode,
}
FLOODS = {"front": front_flood, "child": child_flood}


async def run_episode(kind: str, seed: int | str, *, steps: int, keep: Path) -> Seen:
    """One episode in a place of its own; when it fails, what was said is kept and named."""
    async with _home() as home:
        try:
            return await KINDS[kind](seed, home, steps)
        except BaseException as error:
            kept = keep / f"{kind}-{seed}"
            kept.mkdir(parents=True, exist_ok=True)
            for name in ("said", "sent"):
                with contextlib.suppress(OSError):
                    shutil.copy(home.with_suffix(f".{name}"), kept / f"{kind}-{seed}.{name}")
            if (home / "logs").exists():
                shutil.copytree(home / "logs", kept / "logs", dirs_exist_ok=True)
            error.add_note(
                f"Make it again: python -m tests.fuzz {kind} --seed {seed} --steps {steps} "
                f"--episodes 1. What was said is in {kept}."
            )
            raise


@contextlib.asynccontextmanager
async def _home() -> AsyncIterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        yield made / "home"
    finally:
        await anyio.to_thread.run_sync(shutil.rmtree, made, True)  # noqa: FBT003
