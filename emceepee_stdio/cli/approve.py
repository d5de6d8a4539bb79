"""`emceepee approve`: shows what waits for a person's approval, and takes the answer.

Only a person at a terminal can answer: there is no option that says yes.
"""

import os
import sys
from typing import Annotated

import typer

from emceepee_stdio.cli.secret_values import HIDDEN, ShowSecretsOption, require_terminal
from emceepee_stdio.cli.shared_options import JsonOption
from emceepee_stdio.cli.terminal import FAILED, Terminal, confirm
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.edit import EditRefused
from emceepee_stdio.journal import redact_text
from emceepee_stdio.trust.approval_request import shown
from emceepee_stdio.trust.store import (
    ONE_CALL_LIFETIME_S,
    Approval,
    Pending,
    TrustStore,
    default_trust_directory,
    unseal,
)


def approve(
    wanted: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="What to answer; none lists what waits.")
    ] = None,
    *,
    granted: Annotated[
        bool, typer.Option("--granted", help="List what was agreed to instead.")
    ] = False,
    revoke: Annotated[
        str | None, typer.Option(metavar="ID", help="Take an agreement back.")
    ] = None,
    show_secrets: ShowSecretsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Allow or refuse what waits for you.

    Servers, changed tools and calls may wait. A server that you allow may be added by a model, in
    this and later sessions, with exactly this command line, directory and environment. Changed
    tools that you allow become the ones to compare with. A call that you allow may be made once,
    within an hour, with exactly these arguments.

    Example: emceepee approve 3f9c21aa
    """
    if as_json and (revoke or wanted):
        raise typer.BadParameter("only the lists have it, not an ID.", param_hint="--json")
    require_terminal(show_secrets=show_secrets)
    store = TrustStore(default_trust_directory(os.environ))
    terminal = Terminal()
    if revoke is not None:
        _revoke(store, revoke, terminal)
    elif granted:
        _list_granted(store.granted(), terminal, as_json=as_json)
    elif wanted is None:
        _list_waiting(store.waiting(), terminal, as_json=as_json)
    else:
        _answer(store, wanted, terminal, show_secrets=show_secrets)


def _list_waiting(waiting: list[Pending], terminal: Terminal, *, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "id": one.id,
                "name": one.name,
                "about": _about(one),
                "text": _without_secrets(one),
                "at": one.at,
            }
            for one in waiting
        ]
        terminal.document({"waiting": rows})
    elif not waiting:
        terminal.line("Nothing waits for you.")
    else:
        rows = [(one.id, shown(one.name), _about(one), one.at) for one in waiting]
        terminal.table(("ID", "SERVER", "ABOUT", "SINCE"), rows)
        terminal.line("See and answer one: emceepee approve ID")


def _list_granted(approvals: list[Approval], terminal: Terminal, *, as_json: bool) -> None:
    if as_json:
        rows = [{"id": a.id, "name": a.name, "what": a.what, "at": a.at} for a in approvals]
        terminal.document({"granted": rows})
    elif not approvals:
        terminal.line("You have agreed to nothing so far.")
    else:
        rows = [(a.id, shown(a.name), shown(a.what), a.at) for a in approvals]
        terminal.table(("ID", "SERVER", "WHAT", "SINCE"), rows)
        terminal.line("Take one back: emceepee approve --revoke ID")


def _about(pending: Pending) -> str:
    if pending.tool is not None:
        return f"a call of {shown(pending.tool)}"
    return "a new server" if pending.tools is None else "changed tools"


def _line(text: str, label: str) -> str:
    """What stands under a label in the text that a person reads."""
    start = f"{label}: "
    lines = (line for line in text.split("\n") if line.startswith(start))
    return next(lines, "").removeprefix(start)


def _revoke(store: TrustStore, wanted: str, terminal: Terminal) -> None:
    found = [one for one in store.granted() if one.id == wanted]
    if not found:
        raise EditRefused(
            f"There is no agreement {shown(wanted)}.", hint="See `emceepee approve --granted`."
        )
    for one in found:
        store.revoke(one.digest)
        terminal.line(f"{shown(one.name)} needs your word again.")


def _without_secrets(pending: Pending) -> str:
    """What may be shown to anybody; an earlier version kept the text of a server whole."""
    if pending.tools is not None or pending.sealed is not None:
        return pending.text
    return "\n".join(map(redact_text, pending.text.split("\n")))


def _show(store: TrustStore, pending: Pending, terminal: Terminal, *, show_secrets: bool) -> None:
    text = hidden = _without_secrets(pending)
    whole = pending.text
    if pending.sealed is not None:
        whole = unseal(store.key(), pending.sealed) or pending.text
    if show_secrets:
        text = whole
    terminal.line("\n".join(map(shown, text.split("\n"))))
    if text == hidden != whole:
        terminal.note(HIDDEN)


def _answer(store: TrustStore, wanted: str, terminal: Terminal, *, show_secrets: bool) -> None:
    found = next((one for one in store.waiting() if one.id == wanted), None)
    if found is None:
        raise EditRefused(
            f"Nothing waits under {shown(wanted)}.", hint="See `emceepee approve` for what does."
        )
    _show(store, found, terminal, show_secrets=show_secrets)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise EditRefused(
            "This is for a person to answer.", hint="Run the command yourself, at a terminal."
        )
    allowed = confirm("\nDo you allow this?", terminal, usual=False)
    if allowed is None:
        terminal.note("Not answered: it goes on waiting.")
        raise typer.Exit(FAILED)
    if not allowed:
        store.settle(found.digest)
        terminal.line("Refused, and forgotten.")
        raise typer.Exit(FAILED)
    clock = Clock()
    now = clock.now()
    if found.tool is not None:
        until = clock.iso(now + ONE_CALL_LIFETIME_S)
        what = f"one call of {found.tool}"
        store.approve(found.digest, name=found.name, at=clock.iso(now), what=what, until=until)
        terminal.line("Allowed, once. The same call can be made within an hour.")
        return
    if found.tools is not None:
        store.agree(found)
    else:
        text = _without_secrets(found)
        what = _line(text, "Command") or _line(text, "Address")
        store.approve(found.digest, name=found.name, at=clock.iso(now), what=what)
    terminal.line("Allowed. The model can try again now.")
