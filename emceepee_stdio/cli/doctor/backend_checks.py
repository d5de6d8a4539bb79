"""Doctor's check of each server: starts it, measures it, or says why it does not work.

A failure comes with the last lines of the server's stderr and with what to do, as shell commands.
"""

import os
import re
import shlex
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec

from emceepee_stdio.auth.bearer import signs_in, store_of
from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.backend_events import LogSource
from emceepee_stdio.backends.lists import Item, Kind
from emceepee_stdio.cli.config import some_of
from emceepee_stdio.cli.doctor.report import Check, Status, with_command
from emceepee_stdio.cli.one_shot import OneShotSession, one_shot_session
from emceepee_stdio.config import BrokenServer, Config, ServerConfig
from emceepee_stdio.config.server import Rule
from emceepee_stdio.config.tool_rules import ToolRules, rules_of
from emceepee_stdio.errors import (
    CallFailed,
    CannotConnect,
    CommandNotFound,
    NeedsSignIn,
    ProxyError,
    SecretUnavailable,
    WrongCredentials,
    error_types,
)
from emceepee_stdio.journal import redact_argv, redact_url
from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.redaction.redact import MARKER
from emceepee_stdio.session.exposed_lists import exposed_as, idle_patterns
from emceepee_stdio.trust.tool_pins import Changes
from emceepee_stdio.wire.environment import (
    ARGS_APART,
    child_directory,
    child_environment,
    first_word,
    resolve_command,
)

# What the rules and the exposing of an entry come to, for the tools that its server lists.


_RULES: tuple[Rule, Rule] = ("ask", "off")
_SHOWN_NAMES = 5  # of exposed tools: --json has all


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryEffect:
    """A sentence, the facts, and what is perhaps a slip of the pen, with its remedy."""

    sentence: str = ""
    details: Mapping[str, object] = field(default_factory=dict[str, object])
    slip: str = ""
    remedy: str = ""


def ruling(server: ServerConfig, tools: Sequence[Item]) -> EntryEffect:
    rules = rules_of({server.name: server.tools})
    if rules is None:
        return EntryEffect()
    names = [str(tool.get("name")) for tool in tools]
    found = {rule: [name for name in names if rules.rule(name) == rule] for rule in _RULES}
    ask, off = (len(found[rule]) for rule in _RULES)
    each = {pattern: ToolRules({pattern: "off"}) for pattern in server.tools}
    idle = [one for one, rule in each.items() if not any(map(rule.hides, names))]
    look = f"emceepee config rules {shlex.quote(server.name)}"
    return EntryEffect(
        sentence=_ruled(ask, off),
        details={"rules": {"written": server.tools, **found}},
        slip=f" No tool matches {', '.join(map(repr, idle))} of your rules." if idle else "",
        remedy=with_command("Look whether the rules say what you mean", look),
    )


def _ruled(ask: int, off: int) -> str:
    are_off = f"{off} {'is' if off == 1 else 'are'} off"
    if ask and off:
        return f" By your rules you are asked for {ask} of its tools, and {are_off}."
    if ask:
        return f" By your rules you are asked for {ask} of its tools."
    return f" By your rules {are_off.replace(' ', ' of its tools ', 1)}." if off else ""


def exposing(
    server: ServerConfig, tools: Sequence[Item], configured: Collection[str]
) -> EntryEffect:
    """`configured` are the names of all servers, on which those of exposed tools depend."""
    names = list(exposed_as(server, tools, configured).values())
    idle = idle_patterns(server, tools)
    look = f"emceepee config expose {shlex.quote(server.name)}"
    return EntryEffect(
        sentence=f" Exposed as: {some_of(names, _SHOWN_NAMES)}." if names else "",
        details={"exposed_as": names} if server.expose else {},
        slip=f" No tool matches {', '.join(map(repr, idle))} of expose." if idle else "",
        remedy=with_command("Look whether the patterns say what you mean", look),
    )


# The servers behind a running HTTP front, as a session of it has them.
#
# Doctor tries the front itself like any server. This asks the same session for its servers, waits
# until none of them is still connecting, and makes a check of each that cannot be used.


_STDERR = " The last lines of its stderr:\n"
# What follows the fact in an error is for the model of that session.
_NEXT_STEP = re.compile(
    rf" \[(?:{'|'.join(kind.code for kind in error_types())})\] .*\Z", re.DOTALL
)
_SIGN_IN = re.compile(r"`(emceepee login [^`]+)`")  # an address where no file has the server
_WELL = ("connected", "idle")
_THERE = "on the machine of the front"


async def check_front_servers(here: OneShotSession, front: Backend, within: float) -> list[Check]:
    """A check for each server that failed, is broken or needs a sign-in."""
    try:
        servers = await _settled(here, front, within)
        unwell = [one for one in servers if one.get("phase") not in _WELL and not _is_off(one)]
        return [_check(here, await _whole(front, one, within), within) for one in unwell]
    except ProxyError as error:
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


async def _whole(
    front: Backend, server: Mapping[str, object], within: float
) -> Mapping[str, object]:
    """With all of its error, which a line of the list has only in part."""
    found = await _listed(front, {"name": server.get("name")}, within)
    return found[0] if found else server


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
            return [mapping(one) for one in elements(mapping(said).get("servers"))]
    raise CallFailed("it does not list servers.")


def _is_off(server: Mapping[str, object]) -> bool:
    return server.get("switched_off") is True


def _check(here: OneShotSession, server: Mapping[str, object], within: float) -> Check:
    name, phase = str(server.get("name")), server.get("phase")
    said = str(server.get("last_error") or "")
    fact, _, tail = _NEXT_STEP.sub("", said).partition(_STDERR)
    lines = [here.shown(line) for line in tail.split("\n") if line]
    status: Status = "failed"
    log = f"emceepee tail-logs --server {shlex.quote(name)}"
    remedy = with_command(f"See its log, {_THERE}", log)
    state: dict[str, object] = {}
    match phase:
        case "needs_sign_in":
            status, fact = "auth", fact or "A person has to sign in."
            sign_in = _SIGN_IN.search(said)
            line = sign_in[1] if sign_in else f"emceepee login {shlex.quote(name)}"
            remedy = with_command(f"Sign in, {_THERE}", line)
        case "disabled":
            state = {"state": "broken"}
            fact = f"Its entry is broken: {fact}"
            remedy = with_command(
                f"Fix its entry, {_THERE}; this tells when it is right", "emceepee config check"
            )
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
_UNSET = re.compile(
    r"(?P<fact>.* needs the environment variable (?P<variable>\w+), which is not set);.*", re.DOTALL
)
_TOOL_TALK = re.compile(r"\b(?:re)?connect_server\b|\bcall \w+_\w+|\bget_logs\b|\badd_server\b")
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
            patient = _Patient(here, server, environ=environ, shell_path=shell_path, within=within)
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
    if unset := _UNSET.fullmatch(reason.rstrip(".")):
        reason, variable = f"{unset['fact']}.", unset["variable"]
        remedy = unset_remedy.replace("{}", variable)
        remedy += f"\nWhere it is no secret, you can also write a default: ${{{variable}:-…}}."
        if has_keyring():
            in_place = f"A secret can be in the keyring: write ${{keyring:{variable}}}"
            store = with_command(f"{in_place}, and store it", f"emceepee secrets set {variable}")
            remedy += f"\n{store}"
    return Check.of(check_id, "failed", f"Its entry is broken: {reason}", remedy, details=details)


class _Patient:
    """One server under examination."""

    def __init__(
        self,
        here: OneShotSession,
        server: ServerConfig,
        *,
        environ: Mapping[str, str],
        shell_path: str,
        within: float,
    ) -> None:
        self._here = here
        self._runtime = here.runtime
        self._server = server
        self._environ = environ
        self._shell_path = shell_path
        self._within = within
        self._details: dict[str, object] = {}

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
        failure: ProxyError | None = None
        try:
            await self._examine(begun)
        except ProxyError as error:
            failure = self._link.snapshot().error or error
        spent = round((clock.now() - begun) * 1000)
        if failure is not None:
            return self._failed(failure, spent)
        return await self._well(spent)

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
        if signed_in := self._signed_in():
            self._details["signed_in"] = signed_in
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
        summary, effects = self._summary(snapshot.counts), self._effects()
        for effect in effects:
            summary += effect.sentence
            self._details |= effect.details
        summary += await self._here.not_remembered(self._server)
        if self._server.oauth.is_unbound_secret:
            fact = f"{summary} Without oauth.issuer its client_secret is sent to nobody."
            return self._result("warning", fact, spent, remedy=self._sign_in())
        for effect in effects:
            if effect.slip:
                slip = f"{summary}{effect.slip}"
                return self._result("warning", slip, spent, remedy=effect.remedy)
        return self._result("ok", summary, spent)

    def _effects(self) -> list[EntryEffect]:
        tools = self._link.lists.known(Kind.TOOLS) or ()
        configured = self._runtime.servers.configured_names
        return [ruling(self._server, tools), exposing(self._server, tools, configured)]

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

    def _signed_in(self) -> str | None:
        """Until when, and with which scopes; None where nobody is signed in."""
        if not signs_in(self._server):
            return None
        record = store_of(self._server, self._runtime.sign_ins.context.directory).read()
        return None if record is None or not record.access_token else record.validity()

    def _failed(self, error: ProxyError, spent: int) -> Check:
        fact, _, tail = error.fact.partition(" The last lines of its stderr:\n")
        lines = [line for line in tail.split("\n") if line] or self._lines(LogSource.STDERR)
        self._details["code"] = error.code
        if lines:
            self._details["stderr"] = [self._shown(line) for line in lines]
        if noise := self._lines(LogSource.STDOUT):
            self._details["stdout_noise"] = noise
        if isinstance(error, CommandNotFound):
            fact = f"The command {self._server.command!r} was not found."
            self._details["path"] = self._child_path()
        auth = isinstance(error, WrongCredentials | NeedsSignIn)
        return self._result(
            "auth" if auth else "failed",
            self._shown(fact),
            spent,
            remedy=self._remedy(error, "\n".join(lines)),
        )

    def _result(
        self, status: Status, summary: str, spent: int, *, remedy: str | None = None
    ) -> Check:
        return Check(
            id=f"backend.{self._server.name}",
            category="backend",
            status=status,
            summary=summary,
            details=self._details,
            remediation=remedy,
            duration_ms=spent,
        )

    def _remedy(self, error: ProxyError, words: str) -> str:
        url = self._server.url
        if isinstance(error, SecretUnavailable):
            store = error.command
            return with_command("Store it", store) if store else error.next_step
        if url is None:
            return self._shown(self._remedy_of_command(error, words))
        if isinstance(error, NeedsSignIn):
            return self._sign_in()
        if isinstance(error, WrongCredentials):
            return self._credentials(url)
        return self._shown(self._plain(error, "Check the URL, and whether the server runs."))

    def _remedy_of_command(self, error: ProxyError, words: str) -> str:
        server = self._server
        command = server.command or ""
        if isinstance(error, CommandNotFound):
            return self._find(command)
        if script := self._missing_script(words):
            return with_command(
                f"There is no file {script}: correct it in `args` of {server.name}",
                "emceepee config edit",
            )
        is_mcp = _WRONG_MCP.search(words) is not None
        if is_mcp or _BROKEN_IMPORT.search(words):
            return self._packages(command, is_mcp=is_mcp)
        if _NO_PACKAGE.search(words):
            return "Check the name and the version of the package in its arguments."
        if "did not answer" in error.fact:
            again = shlex.join(["emceepee", "doctor", server.name, "--timeout", "120"])
            return "\n".join(
                [
                    with_command("A first start may have to download it", again),
                    self._by_hand(
                        "Otherwise run it by hand; it must speak MCP on stdin and stdout"
                    ),
                ]
            )
        return self._plain(error, self._by_hand("Run it by hand to see why"))

    def _sign_in(self) -> str:
        command = shlex.join(["emceepee", "login", self._server.name])
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
        words = ["emceepee", "config", "add", self._server.name, "--replace", "--url", url]
        words += ["--header", "Authorization: Bearer ${TOKEN}"]
        wanted = "Give valid credentials, for example from a variable"
        return with_command(wanted, shlex.join(words))

    def _plain(self, error: ProxyError, otherwise: str) -> str:
        """The next step of the error, unless that is for a model to take."""
        return otherwise if _TOOL_TALK.search(error.next_step) else error.next_step

    def _missing_script(self, words: str) -> Path | None:
        """The file that its arguments name, where its interpreter does not find it."""
        missing = {Path(found[1]).name for found in _NO_SCRIPT.finditer(words)}
        named = [self._directory() / arg for arg in self._server.args if Path(arg).name in missing]
        return next((path for path in named if not os.access(path, os.F_OK)), None)

    def _find(self, command: str) -> str:
        if first := first_word(command, path=self._child_path(), directory=self._directory()):
            return with_command(ARGS_APART.format(first), "emceepee config edit")
        elsewhere = shutil.which(command, path=self._shell_path)
        if elsewhere is not None:
            return with_command(
                f"Your shell finds it at {elsewhere}: write that path into the configuration, or "
                "register emceepee again, which records the PATH of your shell",
                "emceepee install CLIENT",
            )
        install = _INSTALLERS.get(Path(command).name, "Install it")
        path = "the path where it is now" if _names_a_path(command) else "its absolute path"
        return with_command(
            f"{install}, or write {path} as `command` of {self._server.name}",
            "emceepee config edit",
        )

    def _packages(self, command: str, *, is_mcp: bool) -> str:
        runner = Path(command).stem
        if runner in {"npx", "node", "bunx"}:
            return "Its modules are incomplete: install the package again, or pin its version."
        if runner in {"uvx", "uv"}:
            wanted = (
                "do not fit together: pin one that does, for example with the arguments "
                "--with 'mcp<2' before the package"
                if is_mcp
                else "are incomplete: add the missing one with the arguments --with NAME before "
                "the package"
            )
            return f"Its Python packages {wanted}, or pin an other version of it."
        fitting = "Its Python packages are incomplete: install the missing one in its environment."
        if is_mcp:
            fitting = with_command(
                "Its Python packages do not fit together: in its environment, install the missing "
                "module or an older `mcp`",
                "pip install 'mcp<2'",
            )
        return f"{fitting}\n{self._by_hand('By hand')}"

    def _by_hand(self, why: str) -> str:
        variables = [f"{name}=…" for name in self._server.env]
        argv = redact_argv([self._server.command or "", *self._server.args])
        place = f"cd {shlex.quote(self._server.cwd)} && " if self._server.cwd else ""
        line = place + " ".join([*variables, shlex.join(argv)])
        hidden = ", with what is not shown here put in" if variables or MARKER in line else ""
        return with_command(f"{why}{hidden}", line)

    def _child_path(self) -> str:
        env = child_environment(
            self._environ, env=self._server.env, pass_env=self._server.pass_env, owner=""
        )
        return env.get("PATH", "")

    def _directory(self) -> Path:
        return child_directory(self._server.cwd, ours=Path.cwd(), home=Path.home())

    def _program(self) -> str | None:
        """The file that the command resolves to."""
        if self._server.command is None:
            return None
        try:
            return resolve_command(
                self._server.command, path=self._child_path(), directory=self._directory()
            )
        except (CannotConnect, OSError, RuntimeError):
            return None

    def _lines(self, source: LogSource) -> list[str]:
        ring = self._runtime.session.state.logs.get(self._server.name)
        if ring is None:
            return []
        last = ring.last(_SHOWN_LINES, lambda logged: logged.line.source is source)
        return [self._shown(logged.line.text)[:_SHOWN_LINE_CHARS] for logged in last]

    def _shown(self, text: str) -> str:
        return self._here.shown(text)


def _names_a_path(command: str) -> bool:
    return Path(command).name != command


def _changed(changes: Changes) -> str:
    parts = [("changed", tuple(changes.changed)), ("added", changes.added)]
    parts.append(("removed", changes.removed))
    parts.append(("changed", ("its instructions",) if changes.instructions else ()))
    return "; ".join(f"{what} {', '.join(tools)}" for what, tools in parts if tools)
