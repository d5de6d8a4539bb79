"""The person at the terminal, asked whether a call may be made."""

import sys
from collections.abc import Callable

from emceepee_stdio.cli.prompt import ask_whether
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.session.client_calls import Consent, ConsentQuestion, Decision, OnLate

__all__ = ["terminal_consent"]


class _TerminalConsent:
    """Asks at once, and waits for as long as they take."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    async def confirm(
        self,
        question: ConsentQuestion,
        *,
        on_ask: Callable[[], None],
        on_late: OnLate,  # noqa: ARG002 - nobody is late at a terminal
    ) -> Decision:
        on_ask()
        for line in question.lines:
            self._terminal.note(line)
        agrees = await ask_whether(question.title, self._terminal, usual=False)
        return Decision.AGREED_ONCE if agrees else Decision.REFUSED


def terminal_consent(terminal: Terminal) -> Consent | None:
    """Whom to ask, if anybody is there."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return _TerminalConsent(terminal)
