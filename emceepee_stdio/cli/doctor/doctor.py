"""`emceepee doctor`: runs all checks, and says what to do about each finding."""

import os
import shlex
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer

from emceepee_stdio.cli.doctor.bug_report import refuse_existing, write_bug_report
from emceepee_stdio.cli.doctor.checks import (
    CheckedEnvironment,
    checked_environment,
    config_checks,
    environment_checks,
    registration_checks,
)
from emceepee_stdio.cli.doctor.report import COMMAND_INDENT, Check, Report, report_schema
from emceepee_stdio.cli.secret_values import KeyringStorage
from emceepee_stdio.cli.serve_http import is_loopback
from emceepee_stdio.cli.shared_options import (
    ConfigOption,
    JsonOption,
    complete_servers,
    unknown_server,
)
from emceepee_stdio.cli.status import shared_server_checks
from emceepee_stdio.cli.terminal import (
    CREDENTIALS_REFUSED,
    FAILED,
    SERVER_FAILED,
    Terminal,
    interrupts,
)
from emceepee_stdio.config import Config, Policy, ServerConfig, Settings, default_path, load_file
from emceepee_stdio.config.clients import CLIENTS, HTTP_TOKEN
from emceepee_stdio.errors import ConfigInvalid, InvalidArguments, NeedsSignIn
from emceepee_stdio.front.http.access import default_token_file
from emceepee_stdio.session.proxy_status import read_running, status_directory
from emceepee_stdio.storage.private_file import read_regular

# A running HTTP front, as `emceepee doctor --http` reaches it: like any server behind a URL.


FRONT_REMEDY = f"Set {HTTP_TOKEN} to a token of that front; it showed the file when it started."

# Its instructions name its servers, so they differ from one session to the next.
FRONT_SETTINGS = Settings(policy=Policy(pin="off"))


def running_front(url: str, environ: Mapping[str, str]) -> ServerConfig:
    """The front at this address, with the token that is at hand.

    No other machine gets the token of this one's front: an address is easily mistyped. It is
    reached in the handshake era, whose session ends when the check does.
    """
    token = environ.get(HTTP_TOKEN)
    if not token and _is_here(url):
        token = _first_token(default_token_file(environ))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        ServerConfig(name="front", url=url)
    except ConfigInvalid:
        raise _wrong_address(url) from None
    return ServerConfig(name="front", url=url, headers=headers, era="legacy")


def _wrong_address(given: str) -> InvalidArguments:
    place = given.strip().rpartition("://")[2].strip("/").removesuffix("/mcp") or "127.0.0.1:8080"
    return InvalidArguments(
        f"{given!r} is no address of an HTTP front.",
        hint=f"Write it as `emceepee serve --http` shows it when it starts, such as http://{place}/mcp",
    )


def _is_here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:  # no address at all, which is told when it is tried
        return False


def _first_token(path: Path) -> str | None:
    """Of the file that a front on this machine has made."""
    try:
        lines = read_regular(path).decode("utf-8-sig", "replace").splitlines()
    except OSError:
        return None
    named = [line.split() for line in lines if not line.lstrip().startswith("#")]
    return next((words[1] for words in named if len(words) > 1), None)


_TIMEOUT_S = 30.0  # a first start may download the server, but a person waits
_STYLES = {
    "ok": "green",
    "warning": "yellow",
    "disabled": "dim",
    "auth": "red",
    "broken": "bold red",
    "failed": "bold red",
}
_KINDS_OF_FAILURE = ("Failed", "Broken", "Credentials refused", "Sign-in needed")
_INTERRUPTED = 130  # as a shell says it of a program that Ctrl-C ended
_MAX_NAME_COLUMNS = 24  # of a terminal with 80: the rest is for what was found


def doctor(  # noqa: PLR0913 - one for each option
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Only these servers.", autocompletion=complete_servers
        ),
    ] = None,
    *,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            max=3600,
            help="How long each server may take; all are tried at once.",
        ),
    ] = _TIMEOUT_S,
    desktop_env: Annotated[
        bool,
        typer.Option("--desktop-env", help="As a desktop starts it: bare PATH, no profile."),
    ] = False,
    shell_env: Annotated[
        bool, typer.Option("--shell-env", help="With the variables of your shell.")
    ] = False,
    config: ConfigOption = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="URL", help="Only a running `emceepee serve --http` and its servers."
        ),
    ] = None,
    bug_report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="FILE", help="Write all of it into a new file, for a bug report."
        ),
    ] = None,
    as_json: JsonOption = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of --json, and do nothing else.")
    ] = False,
) -> None:
    """Check the setup and try every server.

    Says what to do about what is wrong. Servers are tried with the environment of the client in
    which emceepee is registered: a desktop application does not have the variables of your shell.
    Results are shown as they come; Ctrl-C ends it and shows what is known.

    Exit code 0: all is well; 1: the configuration cannot be read, or a client would start a program
    that is gone; 3: a server refuses the credentials; 4: a server failed; 130: stopped by Ctrl-C.

    A report has versions, the configuration with secrets hidden, these results and the last
    requests without their arguments. Nothing is sent; read it before you send it.

    Example: emceepee doctor github --timeout 120

    Example: emceepee doctor --report report.json
    """
    terminal = Terminal()
    if bug_report is not None:
        refuse_existing(bug_report)
    if schema:
        terminal.data(report_schema())
        return
    if http is not None:
        if bug_report is not None:
            raise typer.BadParameter("is not for --http.", param_hint="--report")
        checked = checked_environment(os.environ, desktop=False, of_shell=True)
        front = Config(servers=(running_front(http, os.environ),), settings=FRONT_SETTINGS)
        examination = _Examination(
            front, checked, terminal, as_json=as_json, credentials=FRONT_REMEDY, is_front=True
        )
        examination.try_servers([], timeout=timeout)
        raise typer.Exit(examination.tell())
    checked = checked_environment(os.environ, desktop=desktop_env, of_shell=shell_env)
    file = checked.config or default_path(os.environ) if config is None else config.expanduser()
    try:
        loaded, unread = load_file(file, environ=checked.variables), None
    except ConfigInvalid as error:
        loaded, unread = Config(), error
    examination = _Examination(loaded, checked, terminal, as_json=as_json)
    if unread is None:
        examination.require(names or [])
    for check in _surroundings(loaded, file, unread) if not names or unread else ():
        examination.add(check)
    if unread is None:
        examination.try_servers(names or [], timeout=timeout)
    code = examination.tell()
    if bug_report is not None:
        write_bug_report(bug_report, examination.report(), file, terminal)
    raise typer.Exit(code)


class _Examination:
    """The checks of one run: each is shown when it is known, the whole at the end."""

    def __init__(
        self,
        config: Config,
        checked: CheckedEnvironment,
        terminal: Terminal,
        *,
        as_json: bool,
        credentials: str | None = None,
        is_front: bool = False,
    ) -> None:
        self._config = config
        self._checked = checked
        self._terminal = terminal
        self._as_json = as_json
        self._credentials = credentials  # what to do about those of what no file configures
        self._is_front = is_front
        self._known = [server.name for server in (*config.servers, *config.disabled)]
        self._found: list[Check] = []
        self._unfinished: list[str] = []
        widest = max(map(len, (*self._known, *CLIENTS, "configuration")))
        # What the servers of a front are called is not known yet.
        widest = _MAX_NAME_COLUMNS if is_front else min(widest, _MAX_NAME_COLUMNS)
        widths = (widest, max(map(len, _STYLES)))
        self._show_row = terminal.growing_table(("WHAT", "STATE", "FOUND"), widths, styles=_STYLES)

    def __repr__(self) -> str:
        return f"<_Examination {len(self._found)} checks>"

    def require(self, names: list[str]) -> None:
        """Refuse a name that no server has."""
        for name in names:
            if name not in self._known:
                raise _not_in_file(name) or unknown_server(
                    name, self._config.marked_names, argument="NAME"
                )

    def add(self, check: Check) -> None:
        is_known = check.subject in self._known
        if check.status == "auth" and is_known and self._credentials is not None:
            check = msgspec.structs.replace(check, remediation=self._credentials)
        self._found.append(check)
        if not self._as_json:
            self._show_row((check.subject, check.state, check.found))

    def try_servers(self, names: list[str], *, timeout: float) -> None:
        """Try those; of a front, also the servers that it has."""
        # The HTTP client and the proxy itself: not for those who only want to see the help.
        from emceepee_stdio.cli.doctor.backend_checks import (  # noqa: PLC0415
            broken_check,
            check_backends,
            check_front_servers,
        )

        remedy, keyring = self._checked.unset_remedy, cache(_has_keyring)
        for broken in self._config.disabled:
            if not names or broken.name in names:
                self.add(broken_check(broken, remedy, has_keyring=keyring))
        servers = [one for one in self._config.servers if not names or one.name in names]
        if not servers:
            return
        waiting = f"Trying {len(servers)} server{'' if len(servers) == 1 else 's'}"
        try:
            with self._terminal.waiting(f"{waiting}, {timeout:g} s at most …"):
                interrupts.run(
                    partial(
                        check_backends,
                        servers,
                        self._config,
                        environ=self._checked.variables,
                        shell_path=os.environ.get("PATH", os.defpath),
                        within=timeout,
                        on_check=self.add,
                        behind=check_front_servers if self._is_front else None,
                    )
                )
        except KeyboardInterrupt:
            done = {check.id for check in self._found}
            self._unfinished = [one.name for one in servers if f"backend.{one.name}" not in done]

    def report(self) -> Report:
        """All that is known, servers in the order of the configuration."""
        order = {name: index for index, name in enumerate(self._known)}
        backends = [check for check in self._found if check.category == "backend"]
        others = [check for check in self._found if check.category != "backend"]
        return Report.of(
            (*others, *sorted(backends, key=lambda check: order.get(check.subject, len(order)))),
            environment=self._checked.key,
            interrupted=bool(self._unfinished),
        )

    def tell(self) -> int:
        """Show the whole; the exit code."""
        report = self.report()
        if self._as_json:
            self._terminal.document(msgspec.to_builtins(report))
        else:
            _show_remedies(report, self._terminal)
            if self._known:
                self._terminal.line(self._checked.summary)
            if self._unfinished:
                self._terminal.line(f"Interrupted. Not finished: {', '.join(self._unfinished)}.")
            self._terminal.line(_verdict(report))
        return _INTERRUPTED if self._unfinished else _exit_code(report)


def _has_keyring() -> bool:
    return not KeyringStorage().is_absent()


def _surroundings(config: Config, file: Path, unread: ConfigInvalid | None) -> Iterator[Check]:
    yield from environment_checks(config)
    yield from shared_server_checks()
    if unread is None:
        yield from config_checks(config, file)
    else:
        details = {"path": str(file)}
        yield Check.of("config.file", "failed", unread.fact, unread.next_step, details=details)
    yield from registration_checks(config)


def _not_in_file(name: str) -> typer.BadParameter | None:
    """Why a server that runs cannot be tried; None where no proxy has it."""
    running = read_running(status_directory(os.environ))
    if not any(server.name == name for proxy in running for server in proxy.servers):
        return None
    log = f"emceepee tail-logs --server {shlex.quote(name)}"
    fact = f"there is no server {name!r} in the configuration. A running proxy has it; see its log:"
    return typer.BadParameter(f"{fact} {log}", param_hint="NAME")


def _show_remedies(report: Report, terminal: Terminal) -> None:
    wrong = [check for check in report.checks if check.status in {"warning", "auth", "failed"}]
    for check in wrong:
        lines = [str(line) for line in _list(check.details.get("stderr"))]
        noise = [str(line) for line in _list(check.details.get("stdout_noise"))]
        words = [check.found] if lines else []
        if lines:
            words += ["The last lines of its stderr:", *(f"  {line}" for line in lines)]
        if noise and check.status == "failed":
            words += ["On stdout, where only MCP belongs:", *(f"  {line}" for line in noise)]
        terminal.rule(f"{check.subject}: {check.state}")
        for line in "\n".join(words).splitlines():
            terminal.paragraph(line)
        if check.remediation:
            _show_remedy(check.remediation, terminal)
    if wrong:
        terminal.rule()


def _show_remedy(remedy: str, terminal: Terminal) -> None:
    for line in f"→ {remedy}".split("\n"):
        if line.startswith(COMMAND_INDENT):
            terminal.command(line.removeprefix(COMMAND_INDENT))
        else:
            terminal.paragraph(line)


def _verdict(report: Report) -> str:
    bad = [check for check in report.checks if check.status in {"auth", "failed"}]
    odd = [check.subject for check in report.checks if check.status == "warning"]
    if bad:
        found = {
            kind: [check.subject for check in bad if _kind_of_failure(check) == kind]
            for kind in _KINDS_OF_FAILURE
        }
        return " ".join(f"{kind}: {', '.join(names)}." for kind, names in found.items() if names)
    if odd:
        return f"Nothing failed. Warnings: {', '.join(odd)}."
    return "Nothing else failed." if report.interrupted else "All is well."


def _kind_of_failure(check: Check) -> str:
    if check.state == "broken":
        return "Broken"
    if check.status != "auth":
        return "Failed"
    said = (check.details.get("code"), check.details.get("phase"))
    return "Sign-in needed" if NeedsSignIn.code in said else "Credentials refused"


def _exit_code(report: Report) -> int:
    failed = {check.category for check in report.checks if check.status == "failed"}
    if "backend" in failed:
        return SERVER_FAILED
    if failed:
        return FAILED
    return CREDENTIALS_REFUSED if any(check.status == "auth" for check in report.checks) else 0


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []  # pyright: ignore[reportUnknownArgumentType]
