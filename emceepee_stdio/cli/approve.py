"""`emceepee approve`: shows what waits for a person's approval, and takes the answer.

Only a person can answer, at a terminal or on the page: there is no option that says yes.
"""

import os
from collections.abc import AsyncGenerator
from typing import Annotated

import typer

from emceepee_stdio.auth.browser import has_desktop, open_browser, reads_private_files
from emceepee_stdio.cli.command_line import argument, flag, option
from emceepee_stdio.cli.secret_values import HIDDEN, ShowSecretsOption, require_terminal
from emceepee_stdio.cli.shared_options import JsonOption
from emceepee_stdio.cli.terminal import ExitCode, confirm, is_person_there, terminal
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.edit import EditRefused
from emceepee_stdio.trust.approval_request import shown
from emceepee_stdio.trust.store import (
    ONE_CALL_LIFETIME_S,
    Approval,
    Pending,
    TrustStore,
    default_trust_directory,
)


def approve(
    wanted: Annotated[str | None, argument("[ID]")] = None,
    *,
    granted: Annotated[bool, flag("--granted")] = False,
    revoke: Annotated[str | None, option("ID")] = None,
    web: Annotated[bool, flag("--web")] = False,
    show_secrets: ShowSecretsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Allow or refuse what waits for you.

    Servers, changed tools and calls may wait. A server that you allow may be added by a model, in
    this and later sessions, with exactly this command line, directory and environment. Changed
    tools that you allow become the ones to compare with. A call that you allow may be made once,
    within an hour, with exactly these arguments.

    With --web, all of it is shown on a page in your browser, with what you allowed before.

    Takes:
      wanted: What to answer; none lists what waits.
      granted: List what was agreed to instead.
      revoke: Take an agreement back.
      web: Show what waits on a page in your browser.

    Example: emceepee approve 3f9c21aa
    """
    if as_json and (revoke or wanted):
        raise typer.BadParameter("only the lists have it, not an ID.", param_hint="--json")
    require_terminal(show_secrets=show_secrets)
    store = TrustStore(default_trust_directory(os.environ))
    if web:
        _show_page(store)
        return
    if revoke is not None:
        _revoke(store, revoke)
    elif granted:
        _list_granted(store.granted(), as_json=as_json)
    elif wanted is None:
        _list_waiting(store.waiting(), as_json=as_json)
    else:
        _answer(store, wanted, show_secrets=show_secrets)


def _show_page(store: TrustStore) -> None:
    """Nothing is printed that lets anybody in: a model may have run the command."""
    import anyio  # noqa: PLC0415 - the other ways do without

    from emceepee_stdio.trust.approval_page import (  # noqa: PLC0415 - see above
        PageCommand,
        PageOrder,
        PageReport,
        SessionPage,
    )

    if not has_desktop(os.environ):
        raise EditRefused(
            "There is no desktop here on which a browser could be opened.",
            hint="Run `emceepee approve` to see what waits, and `emceepee approve ID` to answer.",
        )

    async def commands() -> AsyncGenerator[PageCommand]:
        yield PageCommand(show=True)
        await anyio.sleep_forever()

    def take(report: PageReport) -> None:
        if report.open is not None:
            open_browser(report.open, os.environ)

    order = PageOrder(directory=str(store.directory), session="")
    page = SessionPage(order, reads_files=reads_private_files(os.environ))
    terminal.note("The page opens in your browser. Ctrl-C ends it.")
    anyio.run(page.run, commands(), take)


def _list_waiting(waiting: list[Pending], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "id": one.id,
                "name": one.name,
                "about": shown(one.about),
                "text": one.redacted(),
                "at": one.at,
            }
            for one in waiting
        ]
        terminal.document({"waiting": rows})
    elif not waiting:
        terminal.line("Nothing waits for you.")
    else:
        rows = [(one.id, shown(one.name), shown(one.about), one.at) for one in waiting]
        terminal.table(("ID", "SERVER", "ABOUT", "SINCE"), rows)
        terminal.line("See and answer one: emceepee approve ID")


def _list_granted(approvals: list[Approval], *, as_json: bool) -> None:
    if as_json:
        rows = [{"id": a.id, "name": a.name, "what": a.what, "at": a.at} for a in approvals]
        terminal.document({"granted": rows})
    elif not approvals:
        terminal.line("You have agreed to nothing so far.")
    else:
        rows = [(a.id, shown(a.name), shown(a.what), a.at) for a in approvals]
        terminal.table(("ID", "SERVER", "WHAT", "SINCE"), rows)
        terminal.line("Take one back: emceepee approve --revoke ID")


def _revoke(store: TrustStore, wanted: str) -> None:
    found = [one for one in store.granted() if one.id == wanted]
    if not found:
        raise EditRefused(
            f"There is no agreement {shown(wanted)}.", hint="See `emceepee approve --granted`."
        )
    for one in found:
        store.revoke(one.digest)
        terminal.line(f"{shown(one.name)} needs your word again.")


def _show(store: TrustStore, pending: Pending, *, show_secrets: bool) -> None:
    text = hidden = pending.redacted()
    whole = pending.whole(store.key())
    if show_secrets:
        text = whole
    terminal.line("\n".join(map(shown, text.split("\n"))))
    if text == hidden != whole:
        terminal.note(HIDDEN)


def _answer(store: TrustStore, wanted: str, *, show_secrets: bool) -> None:
    found = next((one for one in store.waiting() if one.id == wanted), None)
    if found is None:
        raise EditRefused(
            f"Nothing waits under {shown(wanted)}.", hint="See `emceepee approve` for what does."
        )
    _show(store, found, show_secrets=show_secrets)
    if not is_person_there():
        raise EditRefused(
            "This is for a person to answer.", hint="Run the command yourself, at a terminal."
        )
    allowed = confirm("\nDo you allow this?", usual=False)
    if allowed is None:
        terminal.note("Not answered: it goes on waiting.")
        raise typer.Exit(ExitCode.FAILED)
    if not allowed:
        store.refuse(found.digest)
        terminal.line("Refused, and forgotten.")
        raise typer.Exit(ExitCode.FAILED)
    clock = Clock()
    now = clock.now()
    if found.tool is not None:
        until = clock.iso(now + ONE_CALL_LIFETIME_S)
        store.allow(found, at=clock.iso(now), once_until=until)
        terminal.line("Allowed, once. The same call can be made within an hour.")
        return
    store.allow(found, at=clock.iso(now))
    terminal.line("Allowed. The model can try again now.")
