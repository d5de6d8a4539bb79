"""Values that nobody has to set: what the proxy does without asking, with the reason for each.

They travel with the settings, so that a test may pass others; the configuration file cannot name
them. What once was a setting and is one no more is told with the value that holds now.
"""

from collections.abc import Mapping

from msgspec import Struct

__all__ = ["FORMER_LIMITS", "FORMER_RESTART", "FORMER_TIMEOUTS", "FixedValues"]


class FixedValues(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times in seconds, sizes in the unit of their name, all others are counts."""

    # Calls and tasks
    promotion_grace_s: float = 0.1  # lets calls finish that were nearly done when a question came
    question_pending_s: float = 1.0  # a server that waits for an answer seldom answers calls before
    heartbeat_s: float = 15.0  # clients give a silent call up after a minute or more
    await_s: float = 30.0  # below the 45 s that an unknown client waits
    task_ttl_max_s: float = 86_400.0  # an honest build may take a day; nobody comes back for older
    result_retention_s: float = 300.0  # a client that lost the answer asks again soon or never
    finished_tasks: int = 1_000  # far more than one session looks back on
    timers: int = 100  # a model that sets more has lost count of them

    # Events and what each response shows of them: a host cuts long answers
    events: int = 1_000  # hours of a quiet session; a flood is folded or counted
    response_events: int = 20  # the rest stays undelivered and is counted
    response_event_bytes: int = 8 << 10  # some 2,000 tokens, beside the result itself
    event_data_bytes: int = 1 << 10  # the whole notification is in get_notifications
    notifications: int = 100  # for each server
    log_lines: int = 500  # for each server; the journal has them all
    output_lines: int = (
        3_000  # a minute and server: a flood must not push others out of the journal
    )

    # Questions of servers: every response shows all of them
    pending_requests: int = 100
    server_questions: int = 20  # no server fills the 100 alone
    question_bytes: int = 32 << 10  # a form is far smaller; what is larger is no question
    question_chars: int = 2_000  # as much as a person reads
    sampling_preview_chars: int = 200  # get_sampling_requests has the whole
    automatic_answer_s: float = 0.3  # nobody reads a question and refuses it faster
    roots_s: float = 10.0  # a client knows its directories; one that does not answer has none
    roots_settle_s: float = 0.25  # a server asks, is told, and looks at the directories; once
    roots_hold_s: float = 2.0  # a modern client makes its first call soon, or much later
    rounds: int = 10  # a form in ten steps; a server that never stops is stopped

    # Talking to servers
    probe_s: float = 5.0  # a server that knows the question answers at once
    health_interval_s: float = 120.0  # often enough to warn, rare enough to cost nothing
    health_s: float = 60.0  # a busy server may be slow and healthy
    health_misses: int = 3  # one lost ping is no news
    keyring_s: float = 60.0  # a person may have to unlock it first
    unread_bytes: int = 64 << 20  # as much as one line may have
    client_line_bytes: int = 8 << 20  # no host shows as much, and it reads the line whole
    pattern_chars: int = 500  # what a person writes is shorter
    pattern_s: float = 0.1  # a sane expression needs microseconds; the loop waits meanwhile

    # What is exposed
    exposed_settle_s: float = 0.1  # servers that connect at once make one change of the lists
    exposed_pace_s: float = 1.0  # a server that changes all the time does not flood the client

    # Starting again
    restart_factor: float = 2.0  # each delay is twice the one before
    restart_jitter: float = 0.1  # servers that died together do not start together
    restart_stable_s: float = 60.0  # who lives so long did not crash at its start
    restart_http_cap_s: float = 180.0  # a URL is tried for ever: a little slower

    # Ending
    stop_term_s: float = 2.0  # on removal, from closing stdin to SIGTERM: time to save
    stop_kill_s: float = 4.0  # on removal, from closing stdin to SIGKILL
    eof_term_s: float = 0.5  # when the client hangs up: some clients kill us after 2 s
    eof_kill_s: float = 1.2  # leaves time to be gone before those 2 s
    signal_kill_s: float = 0.25  # who sends a signal waits even less
    last_resort_s: float = 15.0  # twice what the slowest orderly end takes: then the process exits
    exit_drain_s: float = 0.1  # reads what a server wrote just before it exited
    stderr_tail_lines: int = 10  # the reason of a crash is in the last lines

    config_poll_s: float = 1.0  # an edit counts at once for a person; a stat costs microseconds


_FORMER_TIMEOUTS = (
    "promotion_grace_ms",
    "question_pending_ms",
    "probe_ms",
    "await_ms",
    "task_ttl_max_ms",
    "result_retention_ms",
    "health_interval_ms",
    "health_ms",
    "stop_term_ms",
    "stop_kill_ms",
    "eof_term_ms",
    "eof_kill_ms",
    "signal_kill_ms",
    "exit_drain_ms",
    "config_poll_ms",
    "pattern_ms",
)
_FORMER_LIMITS = (
    "events",
    "response_events",
    "response_event_bytes",
    "event_data_bytes",
    "notifications",
    "log_lines",
    "finished_tasks",
    "timers",
    "pending_requests",
    "question_chars",
    "question_bytes",
    "server_questions",
    "sampling_preview_chars",
    "output_lines",
    "unread_bytes",
    "client_line_bytes",
    "pattern_chars",
    "stderr_tail_lines",
    "health_misses",
    "rounds",
)
_FORMER_RESTART = ("factor", "jitter", "stable_ms", "http_cap_ms")


def _now(field: str) -> str:
    """What holds instead of the setting."""
    if not field.endswith("_ms"):
        value = getattr(FixedValues(), field)
        return f"it is always {value if isinstance(value, int) else f'{value:g}'}"
    seconds = getattr(FixedValues(), field.removesuffix("_ms") + "_s")
    shown = f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"
    return f"it is always {shown}"


FORMER_TIMEOUTS: Mapping[str, str] = {key: _now(key) for key in _FORMER_TIMEOUTS} | {
    "call_max_ms": "a call may ask for 900 s at most, and timeouts.call_ms counts as it is written"
}
FORMER_LIMITS: Mapping[str, str] = {key: _now(key) for key in _FORMER_LIMITS}
FORMER_RESTART: Mapping[str, str] = {key: _now(f"restart_{key}") for key in _FORMER_RESTART}
