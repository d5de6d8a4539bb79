"""`emceepee doctor`: why does it not work, and what to do about it."""

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from emceepee_stdio.cli.checks import config_checks, environment_checks, registration_checks
from emceepee_stdio.cli.config import ConfigOption, JsonOption
from emceepee_stdio.cli.exit_codes import CREDENTIALS_REFUSED, FAILED, SERVER_FAILED
from emceepee_stdio.cli.install import registered_environments
from emceepee_stdio.cli.interrupts import interrupts
from emceepee_stdio.cli.report import Check, Report, report_schema
from emceepee_stdio.cli.running_front import running_front
from emceepee_stdio.cli.shared_servers import shared_server_checks
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config import Config, default_path, load_file
from emceepee_stdio.config.fields import nearest
from emceepee_stdio.errors import ConfigInvalid

__all__ = ["doctor"]

_TIMEOUT_S = 30.0  # a first start may download the server, but a person waits
_STYLES = {"ok": "green", "warning": "yellow", "off": "dim", "auth": "red", "failed": "bold red"}
# What a program gets that a desktop starts: none of the shell's profile was read for it.
_DESKTOP_PATHS = {
    "darwin": "/usr/bin:/bin:/usr/sbin:/sbin",
    "linux": "/usr/local/bin:/usr/bin:/bin",
}
_KEYRING_NAMES = ("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")  # where a keyring listens
_DESKTOP_NAMES = frozenset({"HOME", "LOGNAME", "SHELL", "TMPDIR", "USER", "LANG", *_KEYRING_NAMES})


def doctor(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these servers.")
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
        typer.Option(
            "--desktop-env", help="As if a desktop had started it: bare PATH, no profile."
        ),
    ] = False,
    config: ConfigOption = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="URL", help="Only a running `emceepee serve --http`, as a client."
        ),
    ] = None,
    as_json: JsonOption = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of --json, and do nothing else.")
    ] = False,
) -> None:
    """Look at everything, try every server, and say what to do about what is wrong.

    Exit code 0: all is well; 1: the configuration cannot be read; 3: a server wants other
    credentials; 4: a server failed.

    Example: emceepee doctor github --timeout 120
    """
    terminal = Terminal()
    if schema:
        terminal.data(report_schema())
        return
    if http is not None:
        front = Config(servers=(running_front(http, os.environ),))
        checks = _backends(front, dict(os.environ), [], timeout=timeout, terminal=terminal)
        _tell(Report.of(tuple(checks)), terminal, as_json=as_json)
        return
    environ = _desktop(os.environ) if desktop_env else dict(os.environ)
    file = default_path(os.environ) if config is None else config.expanduser()
    try:
        loaded, unread = load_file(file, environ=environ), None
    except ConfigInvalid as error:
        loaded, unread = Config(), error
    checks = _surroundings(loaded, file, unread) if not names or unread else []
    if unread is None:
        checks += _backends(loaded, environ, names or [], timeout=timeout, terminal=terminal)
    _tell(Report.of(tuple(checks)), terminal, as_json=as_json)


def _tell(report: Report, terminal: Terminal, *, as_json: bool) -> None:
    if as_json:
        terminal.data(msgspec.to_builtins(report))
    else:
        _show(report, terminal)
    if code := _exit_code(report):
        raise typer.Exit(code)


def _desktop(environ: Mapping[str, str]) -> dict[str, str]:
    if sys.platform == "win32":  # there every program is given the same
        return dict(environ)
    bare = {name: value for name, value in environ.items() if name in _DESKTOP_NAMES}
    bare["PATH"] = _DESKTOP_PATHS.get(sys.platform, _DESKTOP_PATHS["linux"])
    # What a client's entry for us names, it is given.
    given = next(registered_environments(), None)
    return {**bare, **(given or {})}


def _surroundings(config: Config, file: Path, unread: ConfigInvalid | None) -> list[Check]:
    checks = environment_checks(config) + shared_server_checks()
    if unread is None:
        checks += config_checks(config, file)
    else:
        checks.append(
            Check(
                id="config.file",
                category="config",
                status="failed",
                summary=unread.fact,
                details={"path": str(file)},
                remediation=unread.next_step,
            )
        )
    return checks + registration_checks(config)


def _backends(
    config: Config,
    environ: Mapping[str, str],
    names: list[str],
    *,
    timeout: float,
    terminal: Terminal,
) -> list[Check]:
    known = [server.name for server in (*config.servers, *config.disabled)]
    for name in names:
        if name not in known:
            near = nearest(name, known)
            there = f"There are: {', '.join(known) or 'none'}."
            raise typer.BadParameter(
                f"there is no server {name!r}. {f'Did you mean {near}?' if near else there}",
                param_hint="NAME",
            )
    # The HTTP client and the proxy itself: not for those who only want to see the help.
    from emceepee_stdio.cli.backend_checks import broken_check, check_backends  # noqa: PLC0415

    servers = [server for server in config.servers if not names or server.name in names]
    broken = [server for server in config.disabled if not names or server.name in names]
    checks = list(map(broken_check, broken))
    if servers:
        waiting = f"Trying {len(servers)} server{'' if len(servers) == 1 else 's'}"
        with terminal.waiting(f"{waiting}, {timeout:g} s at most …"):
            checks += interrupts.run(
                partial(
                    check_backends,
                    servers,
                    config.settings,
                    environ=environ,
                    shell_path=os.environ.get("PATH", os.defpath),
                    within=timeout,
                )
            )
    order = {name: index for index, name in enumerate(known)}
    return sorted(checks, key=lambda check: order[check.subject])


def _show(report: Report, terminal: Terminal) -> None:
    rows = [(check.subject, check.status, check.summary) for check in report.checks]
    terminal.table(("WHAT", "STATE", "FOUND"), rows, styles=_STYLES)
    for check in report.checks:
        lines = [str(line) for line in _list(check.details.get("stderr"))]
        noise = [str(line) for line in _list(check.details.get("stdout_noise"))]
        if check.status not in {"warning", "auth", "failed"}:
            continue
        words = [check.summary] if lines else []
        if lines:
            words += ["Its last words on stderr:", *(f"  {line}" for line in lines)]
        if noise and check.status == "failed":
            words += ["On stdout, where only MCP belongs:", *(f"  {line}" for line in noise)]
        if check.remediation:
            words.append(f"→ {check.remediation}")
        terminal.panel(f"{check.subject}: {check.status}", "\n".join(words))
    terminal.line(_verdict(report))


def _verdict(report: Report) -> str:
    bad = [check.subject for check in report.checks if check.status in {"auth", "failed"}]
    odd = [check.subject for check in report.checks if check.status == "warning"]
    if bad:
        return f"Failed: {', '.join(bad)}."
    return f"Nothing failed. Warnings: {', '.join(odd)}." if odd else "All is well."


def _exit_code(report: Report) -> int:
    failed = {check.category for check in report.checks if check.status == "failed"}
    if "backend" in failed:
        return SERVER_FAILED
    if failed:
        return FAILED
    return CREDENTIALS_REFUSED if any(check.status == "auth" for check in report.checks) else 0


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []  # pyright: ignore[reportUnknownArgumentType]
