"""Doctor's check of each server: starts it, measures it, or says why it does not work.

A failure comes with the last lines of the server's stderr and with what to do, as shell commands.
"""

import os
import re
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec

from emceepee_stdio import errors
from emceepee_stdio.auth.bearer import signs_in, store_of
from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.interface import Item, Kind, LogSource
from emceepee_stdio.cli.config import some_of
from emceepee_stdio.cli.doctor.checks import Check, Status
from emceepee_stdio.cli.one_shot import OneShotSession, one_shot_session
from emceepee_stdio.cli.terminal import with_command
from emceepee_stdio.config.server import BrokenServer, Rule, ServerConfig
from emceepee_stdio.config.settings import Config
from emceepee_stdio.config.tool_rules import ToolRules, rules_of
from emceepee_stdio.journal import redact_argv, redact_url
from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.redaction.redact import MARKER
from emceepee_stdio.session.exposed_lists import exposed_as, idle_patterns
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.tools.server_tools import LAST_ERROR
from emceepee_stdio.trust.tool_pins import Changes
from emceepee_stdio.visible_text import shell_line, shell_word
from emceepee_stdio.wire import environment

# What the rules and the exposing of an entry come to, for the tools that its server lists.


_RULES: tuple[Rule, Rule] = ("ask", "off")
_SHOWN_NAMES = 5  # of exposed tools: --json has all


@dataclass(frozen=True, slots=True)
class EntryEffect:
    """A sentence, the facts, and what is perhaps a slip of the pen, with its remedy."""

    sentence: str
    details: Mapping[str, object]
    slip: str
    remedy: str


def entry_effects(
    server: ServerConfig, tools: Sequence[Item], configured: Collection[str]
) -> Iterator[EntryEffect]:
    """`configured` are the names of all servers, on which those of exposed tools depend."""
    quoted = shell_word(server.name)
    if (rules := rules_of({server.name: server.tools})) is not None:
        names = [str(tool.get("name")) for tool in tools]
        found = {rule: [name for name in names if rules.rule(name) == rule] for rule in _RULES}
        ask, off = (len(found[rule]) for rule in _RULES)
        are_off = f"{off}{'' if ask else ' of its tools'} {'is' if off == 1 else 'are'} off"
        parts = [f"you are asked for {ask} of its tools"] if ask else []
        ruled = ", and ".join([*parts, are_off] if off else parts)
        each = {pattern: ToolRules({pattern: "off"}) for pattern in server.tools}
        idle = [one for one, rule in each.items() if not any(map(rule.hides, names))]
        yield EntryEffect(
            f" By your rules {ruled}." if ruled else "",
            {"rules": {"written": server.tools, **found}},
            f" No tool matches {', '.join(map(repr, idle))} of your rules." if idle else "",
            with_command(
                "Look whether the rules say what you mean", f"emceepee config rules {quoted}"
            ),
        )
    exposed = list(exposed_as(server, tools, configured).values())
    idle = idle_patterns(server, tools)
    yield EntryEffect(
        f" Exposed as: {some_of(exposed, _SHOWN_NAMES)}." if exposed else "",
        {"exposed_as": exposed} if server.expose else {},
        f" No tool matches {', '.join(map(repr, idle))} of expose." if idle else "",
        with_command(
            "Look whether the patterns say what you mean", f"emceepee config expose {quoted}"
        ),
    )


# The servers behind a running HTTP front, as a session of it has them.
#
# Doctor tries the front itself like any server. This asks the same session for its servers, waits
# until none of them is still connecting, and makes a check of each that cannot be used.


_WELL = ("connected", "idle")
_THERE = "on the machine of the front"


async def check_front_servers(here: OneShotSession, front: Backend, within: float) -> list[Check]:
    """A check for each server that failed, is broken or needs a sign-in."""
    try:
        servers = await _settled(here, front, within)
        found = [
            await _listed(front, {"name": one.get("name")}, within)
            for one in servers
            if one.get("phase") not in _WELL and not one.get("switched_off")
        ]
        return [_check(here, one, within) for named in found for one in named]
    except errors.ProxyError as error:
        fact = f"Its servers are not known: {here.shown(error.fact)}"
        remedy = "Check that the address is that of `emceepee serve --http`."
        return [Check.of(f"backend.{front.name}/servers", "warning", fact, remedy)]


async def _settled(
    here: OneShotSession, front: Backend, within: float
) -> list[Mapping[str, object]]:
    """All servers, once they are connected or not, or the time is over."""
    clock = here.runtime.clock
    until = clock.now() + within
    while True:
        servers = await _listed(front, {}, within)
        left_ms = round((until - clock.now()) * 1000)
        if left_ms <= 0 or all(one.get("phase") != "connecting" for one in servers):
            return servers
        await front.call_tool("await_activity", {"timeout_ms": left_ms}, within=within + 1.0)


async def _listed(
    front: Backend, arguments: Mapping[str, object], within: float
) -> list[Mapping[str, object]]:
    answer = msgspec.json.decode(
        await front.call_tool("list_servers", arguments, within=within), type=dict[str, object]
    )
    for block in elements(answer.get("content")):
        try:
            said = msgspec.json.decode(str(mapping(block).get("text")))
        except msgspec.DecodeError:
            continue
        if "servers" in mapping(said):
            parts = mapping(answer.get("_meta")).get(LAST_ERROR)
            servers = map(mapping, elements(mapping(said).get("servers")))
            return [{**one, LAST_ERROR: parts} for one in servers]
    raise errors.CallFailed("it does not list servers.")


def _check(here: OneShotSession, server: Mapping[str, object], within: float) -> Check:
    name, phase = str(server.get("name")), server.get("phase")
    error = mapping(server.get(LAST_ERROR))
    fact = str(error.get("fact") or server.get("last_error") or "")
    lines = [here.shown(str(line)) for line in elements(error.get("stderr")) if line]
    status: Status = "failed"
    log = f"emceepee tail-logs --server {shell_word(name)}"
    remedy = with_command(f"See its log, {_THERE}", log)
    state: dict[str, object] = {}
    match phase:
        case "needs_sign_in":
            status, fact = "auth", fact or "A person has to sign in."
            line = mapping(server.get("sign_in")).get("command")
            line = line or f"emceepee login {shell_word(name)}"
            remedy = with_command(f"Sign in, {_THERE}", str(line))
        case "disabled":
            state = {"state": "broken"}
            fact = f"Its entry is broken: {fact}"
            wanted = f"Fix its entry, {_THERE}; this tells when it is right"
            remedy = with_command(wanted, "emceepee config check")
        case "connecting":
            fact = fact or f"It has not connected within {within:g} s."
        case _:
            fact = fact or f"It is {phase}."
    details = {"phase": phase, **state, **({"stderr": lines} if lines else {})}
    return Check.of(f"backend.front/{name}", status, here.shown(fact), remedy, details=details)


_KINDS = ("tools", "resources", "resource_templates", "prompts")
_SHOWN_LINES = 5  # of stderr: a program mostly ends with its error
_SHOWN_LINE_CHARS = 300  # a few lines of a terminal
# A server that was written for mcp 1 misses something in mcp 2; `Server` is a class of both.
_WRONG_MCP = re.compile(
    r"No module named 'mcp[.']|cannot import name .* from 'mcp[.']"
    r"|(?:module 'mcp(?:\.[\w.]+)?'|'Server' object) has no attribute"
)
# What a failed import, and a package that is not there, look like on stderr.
_BROKEN_IMPORT = re.compile(r"(?:ModuleNotFound|Import)Error\b|Cannot find module")
# A script that is not there, as Node.js and Python say it.
_NO_SCRIPT = re.compile(r"(?:Cannot find module|can't open file) '([^'\n]+)'")
_NO_PACKAGE = re.compile(
    r"npm (?:error|ERR!) (?:code )?E?404|No solution found|was not found in the"
)
_INSTALLERS = {
    "npx": "Install Node.js, which brings npx",
    "node": "Install Node.js",
    "npm": "Install Node.js, which brings npm",
    "uvx": "Install uv, which brings uvx",
    "uv": "Install uv",
    "docker": "Install Docker",
    "bunx": "Install Bun, which brings bunx",
    "deno": "Install Deno",
}

Behind = Callable[[OneShotSession, Backend, float], Awaitable[list[Check]]]


async def check_backends(
    servers: Sequence[ServerConfig],
    config: Config,
    *,
    environ: Mapping[str, str],
    shell_path: str,
    within: float,
    on_check: Callable[[Check], object],
    behind: Behind | None = None,
) -> None:
    """One check for each of these servers, as it comes.

    `shell_path` is the PATH of the person's shell; `behind` looks further, at one that works.
    """
    async with one_shot_session(
        config.settings, environ=environ, within=within, configured=config.names
    ) as here:

        async def look(server: ServerConfig) -> None:
            patient = _Patient(here, server, environ, shell_path, within)
            check = await patient.check()
            on_check(check)
            if behind is not None and check.status in ("ok", "warning"):
                for found in await behind(here, here.runtime.servers.get(server.name), within):
                    on_check(found)

        async with anyio.create_task_group() as tasks:
            for server in servers:
                tasks.start_soon(look, server)


def broken_check(
    broken: BrokenServer, unset_remedy: str, *, has_keyring: Callable[[], bool]
) -> Check:
    """An entry that is not even tried; `unset_remedy` says where to set a variable."""
    check_id, details = f"backend.{broken.name}", {"state": broken.state}
    if broken.switched_off:
        return Check.of(check_id, "off", "Disabled in the configuration.", details=details)
    reason = broken.why
    remedy = with_command("Fix its entry; this tells when it is right", "emceepee config check")
    if broken.unset is not None:
        place, variable = broken.unset
        reason = f"{place} needs the environment variable {variable}, which is not set."
        remedy = unset_remedy.replace("{}", variable)
        remedy += f"\nWhere it is no secret, you can also write a default: ${{{variable}:-…}}."
        if has_keyring():
            wanted = f"A secret can be in the keyring: write ${{keyring:{variable}}}, and store it"
            remedy += f"\n{with_command(wanted, f'emceepee secrets set {variable}')}"
    return Check.of(check_id, "failed", f"Its entry is broken: {reason}", remedy, details=details)


@dataclass(repr=False)
class _Patient:
    """One server under examination."""

    _here: OneShotSession
    _server: ServerConfig
    _environ: Mapping[str, str]
    _shell_path: str
    _within: float
    _details: dict[str, object] = field(default_factory=dict[str, object])

    @property
    def _runtime(self) -> Runtime:
        return self._here.runtime

    async def check(self) -> Check:
        clock = self._runtime.clock
        begun = clock.now()
        self._link = await self._here.open(self._server)
        self._details |= {
            "transport": self._link.snapshot().transport,
            "target": self._shown(self._link.snapshot().target),
        }
        if program := self._program():
            self._details["program"] = program
        failure: errors.ProxyError | None = None
        try:
            await self._examine(begun)
        except errors.ProxyError as error:
            failure = self._link.snapshot().error or error
        spent = round((clock.now() - begun) * 1000)
        return await self._well(spent) if failure is None else self._failed(failure, spent)

    async def _examine(self, begun: float) -> None:
        clock = self._runtime.clock
        # A little longer than the attempt itself, which can say more about why it failed.
        await self._link.connect(within=self._within + 1.0)
        self._details["start_ms"] = round((clock.now() - begun) * 1000)
        for kind in _KINDS:
            await self._link.list_all(kind, within=self._within)
        asked = clock.now()
        await self._link.ping(within=self._within)
        self._details["round_trip_ms"] = round((clock.now() - asked) * 1000, 1)

    async def _well(self, spent: int) -> Check:
        snapshot = self._link.snapshot()
        if hello := snapshot.hello:
            self._details |= {
                "era": hello.era.value,
                "protocol_version": hello.protocol_version,
                "server_info": hello.server_info,
            }
        self._details["counts"] = dict(snapshot.counts)
        if signs_in(self._server):
            record = store_of(self._server, self._runtime.sign_ins.context.directory).read()
            if record is not None and record.access_token:
                self._details["signed_in"] = record.validity()
        changes, pending = await self._runtime.pins.changes(self._server.name)
        if changes:
            self._details["tools_changed"] = msgspec.to_builtins(changes)
            return self._result(
                "warning",
                f"Its tools are not what they were: {self._shown(_changed(changes))}.",
                spent,
                remedy=with_command(
                    "See the difference, and agree to it or not", f"emceepee approve {pending}"
                ),
            )
        noise = self._lines(LogSource.STDOUT)
        if noise:
            self._details["stdout_noise"] = noise
            return self._result(
                "warning",
                f"Works, but prints to stdout, where only MCP belongs: {noise[0]!r}.",
                spent,
                remedy="Behind emceepee it works; other clients may break. Have it log to stderr.",
            )
        summary = self._summary(snapshot.counts)
        tools = self._link.lists.known(Kind.TOOLS) or ()
        configured = self._runtime.servers.configured_names
        effects = list(entry_effects(self._server, tools, configured))
        for effect in effects:
            summary += effect.sentence
            self._details |= effect.details
        summary += await self._here.not_remembered(self._server)
        if self._server.oauth.is_unbound_secret:
            fact = f"{summary} Without oauth.issuer its client_secret is sent to nobody."
            return self._result("warning", fact, spent, remedy=self._sign_in())
        if slip := next((effect for effect in effects if effect.slip), None):
            return self._result("warning", f"{summary}{slip.slip}", spent, remedy=slip.remedy)
        return self._result("ok", summary, spent)

    def _summary(self, counts: Mapping[str, int]) -> str:
        offered = [
            f"{count} {kind.replace('_', ' ') if count != 1 else kind.replace('_', ' ')[:-1]}"
            for kind, count in counts.items()
            if count
        ]
        facts = self._details
        protocol = f"MCP {facts.get('protocol_version')}"
        times = f"start {facts['start_ms']} ms, round trip {facts['round_trip_ms']} ms"
        signed_in = facts.get("signed_in")
        times += f"; signed in {signed_in}" if signed_in else ""
        return f"{', '.join(offered) or 'nothing offered'}; {protocol}; {times}."

    def _failed(self, error: errors.ProxyError, spent: int) -> Check:
        fact = error.fact
        lines = [line for line in error.stderr if line] or self._lines(LogSource.STDERR)
        self._details["code"] = error.code
        if lines:
            self._details["stderr"] = [self._shown(line) for line in lines]
        if noise := self._lines(LogSource.STDOUT):
            self._details["stdout_noise"] = noise
        if isinstance(error, errors.CommandNotFound):
            fact = f"The command {self._server.command!r} was not found."
            self._details["path"] = self._child_path()
        status = (
            "auth" if isinstance(error, errors.WrongCredentials | errors.NeedsSignIn) else "failed"
        )
        remedy = self._remedy(error, "\n".join(lines))
        return self._result(status, self._shown(fact), spent, remedy=remedy)

    def _result(
        self, status: Status, summary: str, spent: int, *, remedy: str | None = None
    ) -> Check:
        name = f"backend.{self._server.name}"
        return Check.of(name, status, summary, remedy, details=self._details, duration_ms=spent)

    def _remedy(self, error: errors.ProxyError, words: str) -> str:
        url = self._server.url
        if isinstance(error, errors.SecretUnavailable):
            store = error.command
            return with_command("Store it", store) if store else error.for_person
        if url is None:
            return self._shown(self._remedy_of_command(error, words))
        if isinstance(error, errors.NeedsSignIn):
            return self._sign_in()
        if isinstance(error, errors.WrongCredentials):
            return self._credentials(url)
        return self._shown(error.for_person or "Check the URL, and whether the server runs.")

    def _remedy_of_command(self, error: errors.ProxyError, words: str) -> str:
        server = self._server
        command = server.command or ""
        if isinstance(error, errors.CommandNotFound):
            return self._find(command)
        missing = {Path(found[1]).name for found in _NO_SCRIPT.finditer(words)}
        named = [self._directory() / arg for arg in server.args if Path(arg).name in missing]
        if script := next((path for path in named if not os.access(path, os.F_OK)), None):
            # A file that its arguments name, where its interpreter does not find it.
            return with_command(
                f"There is no file {script}: correct it in `args` of {server.name}",
                "emceepee config edit",
            )
        is_mcp = _WRONG_MCP.search(words) is not None
        if is_mcp or _BROKEN_IMPORT.search(words):
            return self._packages(command, is_mcp=is_mcp)
        if _NO_PACKAGE.search(words):
            return "Check the name and the version of the package in its arguments."
        if isinstance(error, errors.OpeningTimeout | errors.CallTimeout):
            again = shell_line(["emceepee", "doctor", server.name, "--timeout", "120"])
            by_hand = "Otherwise run it by hand; it must speak MCP on stdin and stdout"
            return with_command(
                "A first start may have to download it", again, self._by_hand(by_hand)
            )
        return error.for_person or self._by_hand("Run it by hand to see why")

    def _sign_in(self) -> str:
        command = shell_line(["emceepee", "login", self._server.name])
        if self._server.oauth.is_unbound_secret:
            wanted = "Configure oauth.issuer, which client_secret needs; this names the line"
            return with_command(wanted, command)
        return with_command("Sign in", command)

    def _credentials(self, url: str) -> str:
        """A line for the shell, where it would lose nothing of the entry."""
        shown = self._shown(redact_url(url))
        if self._server.headers or shown != url:
            return with_command(
                "Give valid credentials in its url or headers", "emceepee config edit"
            )
        add = shell_line(
            ["emceepee", "config", "add", self._server.name, "--replace", "--url", url]
        )
        return with_command(
            "Give valid credentials, for example from a variable",
            f"{add} --header 'Authorization: Bearer ${{TOKEN}}'",
        )

    def _find(self, command: str) -> str:
        if first := environment.first_word(
            command, path=self._child_path(), directory=self._directory()
        ):
            return with_command(environment.ARGS_APART.format(first), "emceepee config edit")
        elsewhere = shutil.which(command, path=self._shell_path)
        if elsewhere is not None:
            return with_command(
                f"Your shell finds it at {elsewhere}: write that path into the configuration, or "
                "register emceepee again, which records the PATH of your shell",
                "emceepee install CLIENT",
            )
        name = Path(command).name
        path = "its absolute path" if name == command else "the path where it is now"
        step = f"{_INSTALLERS.get(name, 'Install it')}, or write {path} as `command` of "
        return with_command(f"{step}{self._server.name}", "emceepee config edit")

    def _packages(self, command: str, *, is_mcp: bool) -> str:
        runner = Path(command).stem
        if runner in {"npx", "node", "bunx"}:
            return "Its modules are incomplete: install the package again, or pin its version."
        is_uv = runner in {"uvx", "uv"}
        wrong = f"Its Python packages {'do not fit together' if is_mcp else 'are incomplete'}"
        if is_uv:
            wanted = (
                "pin one that does, for example with the arguments --with 'mcp<2'"
                if is_mcp
                else "add the missing one with the arguments --with NAME"
            )
            return f"{wrong}: {wanted} before the package, or pin an other version of it."
        by_hand = self._by_hand("By hand")
        if not is_mcp:
            return f"{wrong}: install the missing one in its environment.\n{by_hand}"
        return with_command(
            f"{wrong}: in its environment, install the missing module or an older `mcp`",
            "pip install 'mcp<2'",
            by_hand,
        )

    def _by_hand(self, why: str) -> str:
        variables = [f"{name}=…" for name in self._server.env]
        argv = redact_argv([self._server.command or "", *self._server.args])
        place = f"cd {shell_word(self._server.cwd)} && " if self._server.cwd else ""
        line = place + " ".join([*variables, shell_line(argv)])
        hidden = ", with what is not shown here put in" if variables or MARKER in line else ""
        return with_command(f"{why}{hidden}", line)

    def _child_path(self) -> str:
        env, passed = self._server.env, self._server.pass_env
        return environment.child_environment(self._environ, env=env, pass_env=passed, owner="").get(
            "PATH", ""
        )

    def _directory(self) -> Path:
        return environment.child_directory(self._server.cwd, ours=Path.cwd(), home=Path.home())

    def _program(self) -> str | None:
        """The file that the command resolves to."""
        if self._server.command is None:
            return None
        try:
            return environment.resolve_command(
                self._server.command, path=self._child_path(), directory=self._directory()
            )
        except (errors.CannotConnect, OSError, RuntimeError):
            return None

    def _lines(self, source: LogSource) -> list[str]:
        ring = self._runtime.session.state.logs.get(self._server.name)
        if ring is None:
            return []
        last = ring.last(_SHOWN_LINES, lambda logged: logged.line.source is source)
        return [self._shown(logged.line.text)[:_SHOWN_LINE_CHARS] for logged in last]

    def _shown(self, text: str) -> str:
        return self._here.shown(text)


def _changed(changes: Changes) -> str:
    parts = (
        ("changed", tuple(changes.changed)),
        ("added", changes.added),
        ("removed", changes.removed),
        ("changed", ("its instructions",) if changes.instructions else ()),
    )
    return "; ".join(f"{what} {', '.join(tools)}" for what, tools in parts if tools)
