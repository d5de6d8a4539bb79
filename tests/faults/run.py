"""One run: a proxy, a seed, and its steps, until there were enough or a rule is broken."""

import tempfile
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from random import Random

import anyio
from anyio.abc import TaskGroup

from tests.faults import processes
from tests.faults.attacks import EVERY_WAY
from tests.faults.backends import ConfigFile, UrlServer, setting
from tests.faults.deeds import Deeds
from tests.faults.model import Entry, Model
from tests.faults.proxy import HangError, Proxy
from tests.faults.records import record_faults
from tests.faults.rest import Rest
from tests.faults.steps import REST, Step
from tests.faults.steps import steps as made

_AT_ONCE = 12


@dataclass(kw_only=True)
class Outcome:
    """What came of a run."""

    seed: int
    steps: int
    seconds: float
    model: Model
    kinds: Counter[str]
    entries: list[Entry] | None


@dataclass(kw_only=True)
class _Plan:
    seed: int
    steps: int | None
    minutes: float | None
    story: Iterable[Step]
    on_step: Callable[[Step], None]
    proxy_type: type[Proxy]
    model_type: type[Model]


def run(
    seed: int,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    story: Iterable[Step] | None = None,
    keep: bool = False,
    on_step: Callable[[Step], None] = lambda _: None,
    proxy_type: type[Proxy] = Proxy,
    model_type: type[Model] = Model,
) -> Outcome:
    """Ends after that many steps or minutes, with a rest, or as soon as a rule is broken.

    A `story` takes the place of the steps of the seed; `keep` keeps what the model was told.
    """
    plan = _Plan(
        seed=seed,
        steps=steps,
        minutes=minutes,
        story=made(seed) if story is None else story,
        on_step=on_step,
        proxy_type=proxy_type,
        model_type=model_type,
    )
    with ExitStack() as stack:
        home = Path(stack.enter_context(_home()))
        urls = {
            "web": stack.enter_context(UrlServer("legacy")),
            "net": stack.enter_context(UrlServer("modern")),
        }
        return anyio.run(_Run(plan, home, urls, keep=keep).perform)


def _home() -> tempfile.TemporaryDirectory[str]:
    """A survivor may still write there: that it is one has been told by then."""
    return tempfile.TemporaryDirectory(prefix="emceepee-faults-", ignore_cleanup_errors=True)


class _Run:
    def __init__(self, plan: _Plan, home: Path, urls: dict[str, UrlServer], *, keep: bool) -> None:
        self._plan = plan
        self._urls = urls
        self._setting = setting(home, Random(f"{plan.seed}/setting"), urls)
        self._model = plan.model_type()
        self._kept: list[Entry] | None = [] if keep else None
        self._kinds: Counter[str] = Counter()
        self._at_work: set[Step] = set()
        self._ended = anyio.Event()

    async def perform(self) -> Outcome:
        began = anyio.current_time()
        self._setting.write()
        config = ConfigFile(self._setting)
        proxy = self._plan.proxy_type(self._setting, self._model, modern=self._plan.seed % 2 == 1)
        proxy.entries = self._kept
        deeds = Deeds(proxy, self._urls, config)
        rest = Rest(proxy, deeds, self._urls, config)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(proxy.listen)
                tasks.start_soon(proxy.listen_to_stderr)
                greeting = Step(seed=self._plan.seed, number=0, kind="greeting")
                await self._guarded(greeting, proxy.greet)
                await self._go(proxy, deeds, rest, began, tasks)
                await self._leave(proxy, rest)
                tasks.cancel_scope.cancel()
        finally:
            proxy.close()
        for fault in record_faults(proxy.home / "logs", proxy.calls_sent):
            self._model.blame("the records of requests are wrong", fault)
        return Outcome(
            seed=self._plan.seed,
            steps=proxy.step,
            seconds=anyio.current_time() - began,
            model=self._model,
            kinds=self._kinds,
            entries=self._kept,
        )

    async def _go(
        self, proxy: Proxy, deeds: Deeds, rest: Rest, began: float, tasks: TaskGroup
    ) -> None:
        def goes_on(step: Step) -> bool:
            plan = self._plan
            in_time = plan.minutes is None or anyio.current_time() < began + plan.minutes * 60
            return in_time and (plan.steps is None or step.number <= plan.steps)

        for step in takewhile(goes_on, self._plan.story):
            if self._model.violations:
                return
            proxy.step = step.number
            self._plan.on_step(step)
            self._kinds[step.kind] += 1
            if step.kind == REST:
                await self._until_at_work(0)
                await self._guarded(step, rest.take)
            else:
                self._at_work.add(step)
                tasks.start_soon(self._do, step, deeds)
                await self._until_at_work(0 if step.alone else _AT_ONCE)

    async def _do(self, step: Step, deeds: Deeds) -> None:
        try:
            await self._guarded(step, lambda: deeds.carry_out(step))
        finally:
            self._at_work.discard(step)
            ended, self._ended = self._ended, anyio.Event()
            ended.set()

    async def _guarded(self, step: Step, deed: Callable[[], Awaitable[None]]) -> None:
        try:
            await deed()
        except HangError as hang:
            self._model.blame("something hangs", f"{step}: {hang}")
        except Exception as error:  # noqa: BLE001 - it too must be told with its seed
            where = "".join(traceback.format_tb(error.__traceback__, -3))
            self._model.blame("a step could not be done", f"{step}: {error!r}\n{where}")

    async def _until_at_work(self, number: int) -> None:
        while len(self._at_work) > number:
            await self._ended.wait()

    async def _leave(self, proxy: Proxy, rest: Rest) -> None:
        """From rest, but in the middle of things: calls in flight, a task, an open question."""
        await self._until_at_work(0)
        farewell = Step(seed=self._plan.seed, number=proxy.step, kind=REST)
        if not self._model.violations:
            await self._guarded(farewell, rest.take)
        where = str(proxy.home / f"{processes.HIDDEN}{proxy.step}")
        hide = {"where": where, "how": list(EVERY_WAY)}
        with suppress(HangError):
            await proxy.call("execute_tool", server="calm", tool="hide", args=hide)
        busy = [
            proxy.calling("execute_tool", server=server, tool=tool, args={}, timeout_ms=wait)
            for server in ("calm", "keen", "web", "net")
            for tool, wait in (("hang", 0), ("ask", 9000), ("hang", 9000))
        ]
        with suppress(HangError):
            await proxy.send(*busy)
        await proxy.hang_up()
