"""`emceepee doctor`: runs all checks, and says what to do about each finding."""

import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from functools import cache, partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer

from emceepee_stdio import __version__
from emceepee_stdio.cli import shared_options
from emceepee_stdio.cli.command_line import argument, flag, option
from emceepee_stdio.cli.doctor import checks
from emceepee_stdio.cli.secret_values import KeyringStorage, entry_secrets, shown_entry
from emceepee_stdio.cli.serve_http import is_loopback
from emceepee_stdio.cli.terminal import COMMAND_INDENT, JSON_VERSION, ExitCode, interrupts, terminal
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.clients import CLIENTS, HTTP_TOKEN
from emceepee_stdio.config.edit import EditRefused, read_file
from emceepee_stdio.config.jsonc import Unreadable
from emceepee_stdio.config.jsonc import read as read_json
from emceepee_stdio.config.load import default_path, load_file
from emceepee_stdio.config.own_file import places
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Config, Policy, Settings
from emceepee_stdio.errors import ConfigInvalid, InvalidArguments, NeedsSignIn
from emceepee_stdio.front.http.access import default_token_file
from emceepee_stdio.journal import Secrets, default_directory, given_secrets, redact
from emceepee_stdio.json_values import elements, mapping, with_texts
from emceepee_stdio.session.proxy_status import read_running, status_directory
from emceepee_stdio.storage.private_file import read_regular, write_new
from emceepee_stdio.trace.request import RequestRecord
from emceepee_stdio.trace.trace_reader import RequestReader, without_payloads
from emceepee_stdio.visible_text import shell_word

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
    with suppress(ValueError, OSError):  # no address at all, or no file: told when it is tried
        if not token and is_loopback(urlsplit(url).hostname or ""):
            token = _first_token(default_token_file(environ))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        return ServerConfig(name="front", url=url, headers=headers, era="legacy")
    except ConfigInvalid:
        place = url.strip().rpartition("://")[2].strip("/").removesuffix("/mcp")
        shown = f"http://{place or '127.0.0.1:8080'}/mcp"
        raise InvalidArguments(
            f"{url!r} is no address of an HTTP front.",
            hint=f"Write it as `emceepee serve --http` shows it when it starts, such as {shown}",
        ) from None


def _first_token(path: Path) -> str | None:
    """Of the file that a front on this machine has made."""
    lines = read_regular(path).decode("utf-8-sig", "replace").splitlines()
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
        list[str] | None, argument("[NAME]...", autocompletion=shared_options.complete_servers)
    ] = None,
    *,
    timeout: Annotated[float, option("SECONDS", min=0.1, max=3600)] = _TIMEOUT_S,
    desktop_env: Annotated[bool, flag("--desktop-env")] = False,
    shell_env: Annotated[bool, flag("--shell-env")] = False,
    config: shared_options.ConfigOption = None,
    http: Annotated[str | None, option("URL", "--http")] = None,
    bug_report: Annotated[Path | None, option("FILE", "--report")] = None,
    as_json: shared_options.JsonOption = False,
    schema: Annotated[bool, flag("--schema")] = False,
) -> None:
    """Check the setup and try every server.

    Says what to do about what is wrong. Servers are tried with the environment of the client in
    which emceepee is registered: a desktop application does not have the variables of your shell.
    Results are shown as they come; Ctrl-C ends it and shows what is known.

    Exit code 0: all is well; 1: the configuration cannot be read, or a client would start a program
    that is gone; 3: a server refuses the credentials; 4: a server failed; 130: stopped by Ctrl-C.

    A report has versions, the configuration with secrets hidden, these results and the last
    requests without their arguments. Nothing is sent; read it before you send it.

    Takes:
      names: Only these servers.
      timeout: How long each server may take; all are tried at once.
      desktop_env: As a desktop starts it: bare PATH, no profile.
      shell_env: With the variables of your shell.
      http: Only a running `emceepee serve --http` and its servers.
      bug_report: Write all of it into a new file, for a bug report.
      schema: Print the JSON Schema of --json, and do nothing else.

    Example: emceepee doctor github --timeout 120

    Example: emceepee doctor --report report.json
    """
    if bug_report is not None:
        refuse_existing(bug_report)
    if schema:
        terminal.data(checks.report_schema())
        return
    if http is not None:
        if bug_report is not None:
            raise typer.BadParameter("is not for --http.", param_hint="--report")
        checked = checks.checked_environment(os.environ, desktop=False, of_shell=True)
        front = Config(servers=(running_front(http, os.environ),), settings=FRONT_SETTINGS)
        examination = _Examination(front, checked, as_json=as_json, is_front=True)
        examination.try_servers([], timeout=timeout)
        raise typer.Exit(examination.tell())
    checked = checks.checked_environment(os.environ, desktop=desktop_env, of_shell=shell_env)
    file = checked.config or default_path(os.environ) if config is None else config.expanduser()
    try:
        loaded, unread = load_file(file, environ=checked.variables), None
    except ConfigInvalid as error:
        loaded, unread = Config(), error
    examination = _Examination(loaded, checked, as_json=as_json)
    if unread is None:
        examination.require(names or [])
    for check in _surroundings(loaded, file, unread) if not names or unread else ():
        examination.add(check)
    if unread is None:
        examination.try_servers(names or [], timeout=timeout)
    code = examination.tell()
    if bug_report is not None:
        write_bug_report(bug_report, examination.report(), file)
    raise typer.Exit(code)


class _Examination:
    """The checks of one run: each is shown when it is known, the whole at the end."""

    def __init__(
        self,
        config: Config,
        checked: checks.CheckedEnvironment,
        *,
        as_json: bool,
        is_front: bool = False,
    ) -> None:
        self._config = config
        self._checked = checked
        self._as_json = as_json
        self._is_front = is_front
        self._known = [server.name for server in (*config.servers, *config.disabled)]
        self._found: list[checks.Check] = []
        self._unfinished: list[str] = []
        widest = max(map(len, (*self._known, *CLIENTS, "configuration")))
        # What the servers of a front are called is not known yet.
        widest = _MAX_NAME_COLUMNS if is_front else min(widest, _MAX_NAME_COLUMNS)
        widths = (widest, max(map(len, _STYLES)))
        self._show_row = terminal.growing_table(("WHAT", "STATE", "FOUND"), widths, styles=_STYLES)

    def require(self, names: list[str]) -> None:
        """Refuse a name that no server has."""
        for name in names:
            if name not in self._known:
                raise _not_in_file(name) or shared_options.unknown_server(
                    name, self._config.marked_names, argument="NAME"
                )

    def add(self, check: checks.Check) -> None:
        if self._is_front and check.status == "auth" and check.subject in self._known:
            check = msgspec.structs.replace(check, remediation=FRONT_REMEDY)
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

        keyring = cache(lambda: not KeyringStorage().is_absent())
        for broken in self._config.disabled:
            if not names or broken.name in names:
                self.add(broken_check(broken, self._checked.unset_remedy, has_keyring=keyring))
        servers = [one for one in self._config.servers if not names or one.name in names]
        if not servers:
            return
        waiting = f"Trying {len(servers)} server{'' if len(servers) == 1 else 's'}"
        try:
            with terminal.waiting(f"{waiting}, {timeout:g} s at most …"):
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

    def report(self) -> checks.Report:
        """All that is known, servers in the order of the configuration."""
        order = {name: index for index, name in enumerate(self._known)}
        backends = [check for check in self._found if check.category == "backend"]
        others = [check for check in self._found if check.category != "backend"]
        return checks.Report.of(
            (*others, *sorted(backends, key=lambda check: order.get(check.subject, len(order)))),
            environment=self._checked.key,
            interrupted=bool(self._unfinished),
        )

    def tell(self) -> int:
        """Show the whole; the exit code."""
        report = self.report()
        if self._as_json:
            terminal.document(msgspec.to_builtins(report))
        else:
            _show_remedies(report)
            if self._known:
                terminal.line(self._checked.summary)
            if self._unfinished:
                terminal.line(f"Interrupted. Not finished: {', '.join(self._unfinished)}.")
            terminal.line(_verdict(report))
        return _INTERRUPTED if self._unfinished else _exit_code(report)


def _surroundings(
    config: Config, file: Path, unread: ConfigInvalid | None
) -> Iterator[checks.Check]:
    yield from checks.environment_checks(config)
    if unread is None:
        yield from checks.config_checks(config, file)
    else:
        details = {"path": str(file)}
        yield checks.Check.of(
            "config.file", "failed", unread.fact, unread.for_person, details=details
        )
    yield from checks.approval_checks()
    yield from checks.registration_checks(config)


def _not_in_file(name: str) -> typer.BadParameter | None:
    """Why a server that runs cannot be tried; None where no proxy has it."""
    running = read_running(status_directory(os.environ))
    if not any(server.name == name for proxy in running for server in proxy.servers):
        return None
    log = f"emceepee tail-logs --server {shell_word(name)}"
    fact = f"there is no server {name!r} in the configuration. A running proxy has it; see its log:"
    return typer.BadParameter(f"{fact} {log}", param_hint="NAME")


def _show_remedies(report: checks.Report) -> None:
    wrong = [check for check in report.checks if check.status in {"warning", "auth", "failed"}]
    for check in wrong:
        lines = elements(check.details.get("stderr"))
        noise = elements(check.details.get("stdout_noise"))
        words: list[str] = []
        if lines:
            words += [check.found, "The last lines of its stderr:"]
            words += [f"  {line}" for line in lines]
        if noise and check.status == "failed":
            words += ["On stdout, where only MCP belongs:", *(f"  {line}" for line in noise)]
        terminal.rule(f"{check.subject}: {check.state}")
        for line in "\n".join(words).splitlines():
            terminal.paragraph(line)
        for line in f"→ {check.remediation}".split("\n") if check.remediation else ():
            if line.startswith(COMMAND_INDENT):
                terminal.command(line.removeprefix(COMMAND_INDENT))
            else:
                terminal.paragraph(line)
    if wrong:
        terminal.rule()


def _verdict(report: checks.Report) -> str:
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


def _kind_of_failure(check: checks.Check) -> str:
    if check.state == "broken":
        return "Broken"
    if check.status != "auth":
        return "Failed"
    said = (check.details.get("code"), check.details.get("phase"))
    return "Sign-in needed" if NeedsSignIn.code in said else "Credentials refused"


def _exit_code(report: checks.Report) -> int:
    failed = {check.category for check in report.checks if check.status == "failed"}
    if "backend" in failed:
        return ExitCode.SERVER_FAILED
    if failed:
        return ExitCode.FAILED
    return (
        ExitCode.CREDENTIALS_REFUSED
        if any(check.status == "auth" for check in report.checks)
        else 0
    )


# `emceepee doctor --report`: one file for a bug report, without secrets.
#
# Nothing is sent. Everything in the file passes the same three filters, whatever it came from:
# values that the configuration holds as secrets, patterns and names of secrets, the home directory.

_MAX_REQUESTS = 200  # the end of a session: a person looks through all of it before it is sent
_DISTRIBUTION = "emceepee-stdio"
_PACKAGE = re.compile(r"[\w.-]+", re.ASCII)  # the name with which a requirement begins
_ABOUT = (
    "Made by `emceepee doctor --report` for a bug report. Secrets are hidden as far as they are"
    " recognised; names of servers, their commands, addresses and stderr are not. Read it before"
    " you send it."
)


def refuse_existing(path: Path) -> None:
    """A report takes nobody's place, and there is no need to try the servers first."""
    if os.path.lexists(path):
        raise EditRefused(
            f"{path} exists already.", hint="Nothing was written; name a file that does not exist."
        )
    if not path.absolute().parent.is_dir():
        raise EditRefused(
            f"The directory of {path} does not exist.",
            hint="Nothing was written; make it, or name another file.",
        )


def write_bug_report(path: Path, report: checks.Report, config: Path) -> None:
    """Write the file and say what is in it."""
    text = ""
    with suppress(ConfigInvalid):
        text = read_file(config) or ""
    requests = _last_requests(default_directory(os.environ))
    document: dict[str, object] = {
        "schema_version": JSON_VERSION,
        "about": _ABOUT,
        "made_at": Clock().iso(Clock().now()),
        "versions": {"emceepee": __version__, "python": sys.version, **_packages()},
        "platform": platform.platform(),
        "configuration": _configuration(config, text),
        "doctor": msgspec.to_builtins(report),
        "trace": [msgspec.to_builtins(request) for request in requests],
    }
    known, home = _secrets(text), str(Path.home())

    def cleaned(text: str) -> str:
        return known.mask(text).replace(home, "~") if len(home) > 1 else known.mask(text)

    shown = with_texts(redact(document), cleaned, names=True)
    text = json.dumps(shown, indent=2, ensure_ascii=False) + "\n"
    write_new(path, text.encode("utf-8", "backslashreplace"))
    count = f"the last {len(requests)} requests, without arguments and results"
    last = count if requests else "no requests, because none is recorded"
    terminal.note(
        f"Wrote {path}, which only you can read. Nothing was sent.\n"
        "It has: versions and platform; the configuration with secrets hidden; what doctor found; "
        f"{last}.\n"
        "It names your servers, their commands and addresses, and what they wrote to stderr.\n"
        "Read it before you send it to anybody: no program finds every secret."
    )


def _packages() -> dict[str, str]:
    """The versions of what emceepee is built on."""
    found: dict[str, str] = {}
    with suppress(metadata.PackageNotFoundError):
        for requirement in metadata.requires(_DISTRIBUTION) or ():
            named = _PACKAGE.match(requirement)
            if named is None or "extra ==" in requirement:
                continue
            found[named[0]] = "not installed"
            with suppress(metadata.PackageNotFoundError):
                found[named[0]] = metadata.version(named[0])
    return found


def _configuration(path: Path, text: str) -> dict[str, object]:
    try:
        found = list(places(text))
        document = read_json(text)
    except Unreadable:
        return {"path": str(path), "problem": "it is not valid JSON; doctor says where."}
    entries = [place.entry for place in found]
    return {
        "path": str(path),
        "servers": {place.name: shown_entry(place.entry, entries) for place in found},
        "settings": mapping(document).get("emceepee"),
    }


def _secrets(text: str) -> Secrets:
    """What the entries hold, and what the variables hold to which they refer."""
    known = Secrets()
    with suppress(Unreadable):
        values = [one for place in places(text) for one in entry_secrets(place.entry)]
        known.add(one for one in values if "${" not in one)
    named = {name: value for name, value in os.environ.items() if name in text}
    known.add(given_secrets(env=named))
    return known


def _last_requests(directory: Path) -> list[RequestRecord]:
    """The end of the last session, without payloads."""
    with closing(RequestReader(directory)) as reader:
        records = (line.record for line in reader.backward())
        requests = (record for record in records if isinstance(record, RequestRecord))
        if (last := next(requests, None)) is None:
            return []
        earlier = (record for record in requests if record.session == last.session)
        found = [last, *islice(earlier, _MAX_REQUESTS - 1)]
    return [without_payloads(record) for record in reversed(found)]
