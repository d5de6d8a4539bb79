"""What each kind of step does. What must come of it is the model's business."""

import signal
from random import Random
from typing import Any

import anyio

from tests.faults import processes, promises
from tests.faults.attacks import Attacks
from tests.faults.backends import BAD, GOOD, ConfigFile, UrlServer, closed_port
from tests.faults.caller import word
from tests.faults.proxy import WAIT_S, HangError, Pending, Proxy
from tests.faults.steps import LOUD, Step

_ADDED = ("added-1", "added-2", "added-3")
_GARBAGE = (
    b"\xff\xfe\x00\x01\n",
    b"{ this is not JSON }\n",
    b"words for people\n",
    b'"a string"\n',
    b"null\n",
    b"[1]\n",
    b'{"jsonrpc": "2.0"}\n',
    b'{"jsonrpc": "2.0", "id": null, "method": "ping"}\n',
    b"[" * 5000 + b"\n",
)
_NO_FILE = None
_BROKEN_FILES = ("", "{", "[]", '{"mcpServers": 7}', "\x00\x01", _NO_FILE)
_LOOKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("list_servers", {}),
    ("list_tools", {"query": "take long", "limit": 3}),
    ("list_tools", {"detail": "names", "limit": 500}),
    ("list_resources", {}),
    ("list_prompts", {}),
    ("get_logs", {"limit": 20}),
    ("get_notifications", {"limit": 20}),
    ("list_tasks", {}),
    ("list_timers", {}),
    ("get_elicitations", {}),
    ("read_resource", {"server": "emceepee", "uri": "emceepee://status"}),
)


class Deeds(Attacks):
    """Carries out steps on one proxy; several at the same time."""

    def __init__(self, proxy: Proxy, urls: dict[str, UrlServer], config: ConfigFile) -> None:
        super().__init__(proxy)
        self._urls = urls
        self._config = config
        self._claimed: set[str] = set()

    async def carry_out(self, step: Step) -> None:
        self._proxy.doing.set(step.number)
        await getattr(self, f"_{step.kind}")(step, step.random())

    # Ordinary calls

    async def _call(self, step: Step, _random: Random) -> None:
        await self._follow(await self._execute(step.server, "echo", message=word(step)))

    async def _burst(self, step: Step, random: Random) -> None:
        calls = [
            self._executing(step.server, "echo", message=word(step, number))
            for number in range(random.randint(5, 30))
        ]
        await self._proxy.send(*calls)
        for call in calls:
            await self._follow(await call.answer())

    async def _slow(self, step: Step, random: Random) -> None:
        seconds = random.randint(0, 300) / 1000 + step.number / 1e6
        wait = random.choice((20, 100, 500))
        await self._follow(
            await self._execute(step.server, "slow", timeout_ms=wait, seconds=seconds)
        )

    async def _task_at_once(self, step: Step, _random: Random) -> None:
        answer = await self._execute(step.server, "echo", timeout_ms=0, message=word(step))
        await self._follow(answer)

    async def _large(self, step: Step, random: Random) -> None:
        """A result that is stored, and read page by page."""
        size = random.randint(30_000, 300_000) + step.number
        answer = await self._follow(await self._execute(step.server, "big", bytes=size))
        if answer is None or answer.is_error:
            return
        uri, offset = answer.json["stored_result"]["uri"], 0
        while offset is not None:
            page = await self._proxy.call(
                "read_resource", server="emceepee", uri=uri, offset=offset, limit=100_000
            )
            if page is None or page.is_error:
                return
            if len(page.blocks[0]["text"]) + offset != page.json.get("next_offset", size):
                self._proxy.model.blame("a page of the wrong size", f"{uri} at {offset}")
            offset = page.json.get("next_offset")

    async def _look(self, _step: Step, random: Random) -> None:
        for tool, arguments in random.sample(_LOOKS, 3):
            await self._proxy.call(tool, **arguments)

    async def _tool_error(self, step: Step, random: Random) -> None:
        tool = random.choice(("fail", "rpc_error", "no_such_tool", "echo"))
        args = {"code": -32000} if tool == "rpc_error" else {}
        await self._follow(await self._execute(step.server, tool, **args))

    async def _timer(self, step: Step, random: Random) -> None:
        made = await self._proxy.call(
            "set_timer", duration_ms=random.randint(1, 800), message=f"timer of {step.number}"
        )
        if made is not None and not made.is_error and random.random() < 0.3:
            await self._proxy.call("delete_timer", timer_id=made.json["timer"]["timer_id"])

    async def _wait(self, _step: Step, random: Random) -> None:
        await self._proxy.call("await_activity", timeout_ms=random.randint(0, 500))

    # Questions

    async def _answer(self, step: Step, _random: Random) -> None:
        await self._ask(step, "ask", action="accept", content={"name": word(step)})

    async def _decline(self, step: Step, random: Random) -> None:
        await self._ask(step, "ask", action=random.choice(("decline", "cancel")))

    async def _ignore(self, step: Step, _random: Random) -> None:
        await self._ask(step, "ask")

    async def _sample(self, step: Step, random: Random) -> None:
        said = {"content": "Something."} if random.random() < 0.7 else {"action": "decline"}
        await self._ask(step, "sample", **said)

    async def _ask(self, step: Step, tool: str, **response: Any) -> None:
        """Call, and respond to one question of that server that nobody else takes care of."""
        answer = await self._execute(step.server, tool)
        if answer is None or promises.promoted(answer) is None:
            return
        kind = "sampling" if tool == "sample" else "elicitation"
        plural = "sampling_requests" if tool == "sample" else "elicitations"
        shown = await self._proxy.call(f"get_{plural}", server=step.server)
        questions = [] if shown is None else [asked["request_id"] for asked in shown.json[plural]]
        ours = next((asked for asked in questions if asked not in self._claimed), None)
        if ours is not None:
            self._claimed.add(ours)
            if response:
                await self._proxy.call(f"respond_to_{kind}", request_id=ours, **response)
        await self._follow(answer)

    # Cancels and timeouts

    async def _cancel(self, step: Step, random: Random) -> None:
        """At once, or after the proxy has certainly begun; a ping says when it was read."""
        call = random.choice(
            (
                lambda: self._executing(step.server, "echo", message=word(step)),
                lambda: self._executing(step.server, "slow", seconds=30 + step.number / 1e6),
                lambda: self._executing(step.server, "hang"),
                lambda: self._proxy.calling("await_activity", timeout_ms=5000),
                lambda: self._proxy.calling("list_tools", query="anything"),
                lambda: self._proxy.calling("reconnect_server", name=step.server),
            )
        )()
        ping, cancel = self._proxy.prepare("ping"), self._proxy.cancelling(call)
        if random.random() < 0.5:
            await self._proxy.send(call, cancel, ping)
        else:
            await self._proxy.send(call)
            await (await self._proxy.begin("ping")).response()
            await self._proxy.send(cancel, ping)
        await ping.response()
        self._proxy.forget(call)

    async def _cancel_task(self, step: Step, random: Random) -> None:
        tool = random.choice(("slow", "hang", "ask"))
        args = {"seconds": 0.2 + step.number / 1e6} if tool == "slow" else {}
        answer = await self._execute(step.server, tool, timeout_ms=0, **args)
        if answer is not None and (task_id := promises.promoted(answer)):
            await self._proxy.call("cancel_task", task_id=task_id)
            await self._proxy.call("get_task", task_id=task_id)

    async def _hang(self, step: Step, random: Random) -> None:
        """A call that is never answered: its task expires."""
        call = self._proxy.calling(
            "execute_tool",
            server=step.server,
            tool="hang",
            timeout_ms=random.choice((0, 50)),
            task_ttl_ms=random.randint(100, 800),
        )
        await self._proxy.send(call)
        await self._follow(await call.answer())

    # A client that does not read

    async def _stall(self, step: Step, random: Random) -> None:
        """The client does not read while its answers come."""
        calls = [
            self._executing(step.server, "big", bytes=15_000 + number)
            for number in range(random.randint(5, 20))
        ]
        await self._proxy.stall(calls)
        for call in calls:
            await self._follow(await call.answer())

    # Servers that die

    async def _kill(self, step: Step, random: Random) -> None:
        """In the middle of a call, or between two."""
        call: Pending | None = None
        if random.random() < 0.5 and step.server != LOUD:
            call = self._executing(step.server, "slow", seconds=0.5 + step.number / 1e6)
            await self._proxy.send(call)
        await self._signal(step.server, signal.SIGKILL)
        if call is not None:
            await self._follow(await call.answer())
        await self._follow(await self._execute(step.server, "echo", message=word(step)))

    async def _freeze(self, step: Step, random: Random) -> None:
        """It stops answering, and goes on, is killed, or is connected anew."""
        what_then = random.choice(("go on", "kill", "reconnect"))
        pid = await self._signal(step.server, signal.SIGSTOP)
        try:
            answers = [
                await self._execute(step.server, "echo", timeout_ms=50, message=word(step, number))
                for number in range(random.randint(1, 4))
            ]
            if what_then == "kill":
                await self._signal(step.server, signal.SIGKILL)
            elif what_then == "reconnect":
                await self._proxy.call("reconnect_server", name=step.server)
        finally:
            if pid is not None:
                processes.send_signal(pid, signal.SIGCONT, self._proxy.home)
        for answer in answers:
            await self._follow(answer)

    async def _exit(self, step: Step, random: Random) -> None:
        tool, args = random.choice(
            (
                ("crash", {"code": random.randint(0, 255)}),
                ("crash_signal", {"sig": int(signal.SIGSEGV)}),
            )
        )
        await self._follow(await self._execute(step.server, tool, **args))

    async def _outage(self, step: Step, random: Random) -> None:
        """The server behind a URL goes, is called in vain, and comes back."""
        behind = self._urls[step.server]
        async with behind.lock:
            call = self._executing(step.server, "slow", seconds=0.5 + step.number / 1e6)
            if random.random() < 0.5:
                await self._proxy.send(call)
            else:
                self._proxy.forget(call)
            behind.kill()
            await self._follow(
                await self._execute(step.server, "echo", timeout_ms=200, message=word(step))
            )
            await behind.start()
        await self._follow(await call.answer())

    async def _misbehave(self, step: Step, _random: Random) -> None:
        await self._follow(await self._execute(step.server, "misbehave", timeout_ms=1000))

    # Servers that come and go

    async def _add(self, step: Step, random: Random) -> None:
        name, entry = random.choice(_ADDED), random.choice(GOOD)
        await self._proxy.call("add_server", name=name, replace=random.random() < 0.5, **entry)
        await self._follow(await self._execute(name, "echo", message=word(step)))

    async def _add_bad(self, step: Step, random: Random) -> None:
        name, entry = random.choice(_ADDED), random.choice((*BAD, closed_port()))
        await self._proxy.call("add_server", name=name, replace=True, **entry)
        await self._follow(await self._execute(name, "echo", timeout_ms=500, message=word(step)))

    async def _remove(self, _step: Step, random: Random) -> None:
        await self._proxy.call("remove_server", name=random.choice(_ADDED))

    async def _reconnect(self, step: Step, _random: Random) -> None:
        await self._proxy.call("reconnect_server", name=step.server)

    async def _edit_config(self, step: Step, random: Random) -> None:
        """Add and remove entries, and call a server that may be one of them."""
        names = {name for name in self._config.NAMES if random.random() < 0.5}
        target = random.choice(self._config.NAMES)
        self._config.set_late(names)
        await self.until_config_counts()
        await self._follow(await self._execute(target, "echo", message=word(step)))

    async def _break_config(self, _step: Step, random: Random) -> None:
        if self._config.break_it(random.choice(_BROKEN_FILES)):
            await self._until_rejected()

    async def until_config_counts(self) -> None:
        """Until the servers of the file are those in use, or somebody has edited it again."""
        edition, wanted = self._config.edition, self._config.late
        deadline = anyio.current_time() + WAIT_S
        while self._config.edition == edition:
            in_use = {server["name"] for server in await self.servers()}
            if in_use & set(self._config.NAMES) == wanted:
                return
            if anyio.current_time() > deadline:
                raise HangError(f"the servers of the file are not in use: {sorted(wanted)}")
            await self._proxy.call("await_activity", timeout_ms=100)

    async def _until_rejected(self) -> None:
        """Until it is told, may have been dropped, or the file is another; then look around."""
        edition, model = self._config.edition, self._proxy.model
        before = (model.events["config_rejected"], model.dropped)
        deadline = anyio.current_time() + WAIT_S
        while self._config.edition == edition:
            if (model.events["config_rejected"], model.dropped) != before:
                break
            if anyio.current_time() > deadline:
                raise HangError("a broken file is not rejected")
            await self._proxy.call("await_activity", timeout_ms=100)
        await self.servers()

    # A client that talks nonsense

    async def _garbage(self, _step: Step, random: Random) -> None:
        await self._proxy.send(*random.sample(_GARBAGE, 3))
        unknown = self._proxy.prepare("no/such/method")
        bad_call = self._proxy.prepare("tools/call", {"name": "no_such_tool", "arguments": {}})
        wrong = self._proxy.calling("execute_tool", tool=7)
        old = self._proxy.prepare("ping")
        old.request["jsonrpc"] = "1.0"
        await self._proxy.send(unknown, bad_call, wrong, old)
        for pending in (unknown, bad_call, wrong, old):
            await pending.response()
