"""The table of client profiles: what each client shows, supports and allows, by its name.

Hosts tell their name and nothing of their limits. Every fact that the code acts on stands here and
nowhere else; a fact was watched in the version that is named, or read in documentation, source or
an issue tracker. What a client declares for itself goes before what the table says of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from emceepee_stdio.config.clients import ClientKey
    from emceepee_stdio.config.settings import QuestionsMode


_TIMEOUT_RESERVE_S = 5.0  # an answer has to be made, written and read within it
_LEAST_CEILING_S = 1.0  # with less, hardly any call would be more than a task
_CACHED = 8  # a client has one name, and modern ones give it with every request


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProfile:
    """One row: a host and what it does.

    `names` are beginnings of the name that it gives, in lower case, and `since` the first version
    that the row is for. `watched` names the fields that were watched in `version`; the others were
    read, all of them in the month `looked_up`. `declares` is what it declares as a rule: the
    handshake and modern requests tell it for sure.
    """

    title: str
    names: tuple[str, ...] = ()
    key: "ClientKey | None" = None  # how `emceepee install` calls it
    since: tuple[int, ...] = ()
    ceiling_s: float | None = None  # the longest that a call may take to be answered
    # The longest that a call may take in all, with the time of a person whom it asks.
    person_s: float = math.inf
    message_lines: int = 3  # of an elicitation's message that are shown
    message_chars: int = 110  # of each of these lines
    # Bytes of an answer that are shown. Three of three hosts that the table did not know cut at
    # 16,000 to 50,000: a row has more only where it was watched.
    result_bytes: int = 15_000
    cuts_end: bool = True  # whether the last blocks of a longer answer are dropped
    defers_tools: bool = False  # whether the model has to search for tools before it sees them
    declares: frozenset[str] = frozenset()
    unshown: frozenset[str] = frozenset()  # kinds of fields that it is sent as text instead
    version: str = ""
    watched: frozenset[str] = frozenset()
    looked_up: str = ""
    notes: tuple[str, ...] = ()


# As patient as the least patient host that is known, and taken to show as little as any.
UNKNOWN = ClientProfile(title="any other")

PROFILES: Sequence[ClientProfile] = (
    ClientProfile(
        title="Claude Code, in a terminal",
        names=("claude-code",),
        key="claude-code",
        ceiling_s=110.0,
        person_s=660.0,  # the `timeout` that `emceepee install` writes into its entry
        message_chars=115,
        result_bytes=100_000,
        cuts_end=False,
        defers_tools=True,
        declares=frozenset({"form", "url", "roots", "resources", "prompts", "list_changed"}),
        version="2.1.325",
        watched=frozenset(
            {
                "message_lines",
                "message_chars",
                "result_bytes",
                "cuts_end",
                "defers_tools",
                "declares",
            }
        ),
        looked_up="2026-11",
        notes=(
            (
                "It puts an answer over 25,000 tokens into a file, unless the tool is marked as"
                " long. Those of emceepee's tools that can have long answers are marked.*"
            ),
            "It sends a call to the background after 2 minutes.",
            "It gives a call up after 300 s without progress.",
            "The `timeout` of its entry is for a whole call, with the time that a person thinks.*",
            (
                "`MCP_TOOL_TIMEOUT` in its environment sets a shorter limit. It passes this"
                " variable on to emceepee.*"
            ),
        ),
    ),
    ClientProfile(
        title="Claude Desktop, Code tab",
        names=("local-agent-mode",),
        ceiling_s=45.0,
        looked_up="2026-11",
        notes=("It waits about 60 s for a call. This limit cannot be changed.",),
    ),
    ClientProfile(
        title="Claude Desktop",
        names=("claude-ai",),
        key="claude-desktop",
        ceiling_s=45.0,
        declares=frozenset({"roots", "resources", "prompts", "apps"}),
        looked_up="2026-11",
        notes=("It waits about 60 s for a call, sometimes 240 s. This limit cannot be changed.",),
    ),
    ClientProfile(
        title="Codex",
        names=("codex",),
        key="codex",
        ceiling_s=240.0,
        result_bytes=36_000,
        cuts_end=True,
        defers_tools=True,
        declares=frozenset({"form", "url"}),
        unshown=frozenset({"integer", "number", "choices"}),
        version="0.166",
        watched=frozenset({"result_bytes", "cuts_end", "defers_tools", "declares"}),
        looked_up="2026-11",
        notes=(
            "It waits 300 s for a call.",
            'It shows all tools at once if its entry says `omit_tools_from = ["deferred"]`.*',
            (
                "Without that setting, newer models (gpt-6), which call tools by scripts, are not"
                " told about the tools.*"
            ),
            "It shows a boolean as True and False. Both accept the question.",
        ),
    ),
    ClientProfile(
        title="Gemini CLI",
        names=("gemini",),
        key="gemini",
        ceiling_s=240.0,
        result_bytes=100_000,
        cuts_end=False,
        declares=frozenset({"roots", "resources", "prompts", "list_changed"}),
        version="0.61",
        watched=frozenset({"result_bytes", "cuts_end"}),
        looked_up="2026-11",
        notes=("It waits 600 s for a call.",),
    ),
    ClientProfile(
        title="VS Code",
        names=("visual studio code",),
        key="vscode",
        defers_tools=True,
        declares=frozenset(
            {"form", "url", "sampling", "roots", "resources", "prompts", "list_changed", "apps"}
        ),
        looked_up="2026-11",
    ),
    ClientProfile(
        title="Cursor",
        names=("cursor",),
        key="cursor",
        declares=frozenset(
            {"form", "url", "roots", "resources", "prompts", "list_changed", "apps"}
        ),
        looked_up="2026-11",
    ),
    ClientProfile(
        title="opencode",
        names=("opencode",),
        key="opencode",
        declares=frozenset({"roots"}),
        version="1.18.33",
        watched=frozenset({"result_bytes", "cuts_end", "declares"}),
        looked_up="2026-11",
        notes=(
            "It shows 50 KiB or 2,000 lines of an answer, and drops a longer line as a whole.*",
            "It runs tools of MCP servers without asking its user, unless it is told to ask.*",
        ),
    ),
    ClientProfile(
        title="Qwen Code",
        names=("qwen-cli-mcp-client",),
        key="qwen",
        defers_tools=True,
        declares=frozenset({"roots", "apps"}),
        version="0.24.4",
        watched=frozenset({"result_bytes", "cuts_end", "defers_tools", "declares"}),
        looked_up="2026-11",
        notes=(
            (
                "Of an answer over about 26,000 to 31,000 characters it shows 2,000 characters and"
                " the name of a file.*"
            ),
        ),
    ),
    ClientProfile(
        title="fast-agent",
        names=("fast-agent-mcp",),
        message_chars=56,
        declares=frozenset({"form", "url", "sampling", "list_changed"}),
        version="0.10.46",
        watched=frozenset({"message_chars", "cuts_end", "declares"}),
        looked_up="2026-11",
        notes=(
            "It shows the first and the last 8,000 bytes of an answer.*",
            "It accepts a page to open by itself. emceepee does not count that as an answer.*",
        ),
    ),
    ClientProfile(
        title="LM Studio",
        names=("lm studio", "lmstudio", "lm-studio"),
        key="lm-studio",
        looked_up="2026-11",
        notes=("Not observed.",),
    ),
    ClientProfile(title="Windsurf", names=("windsurf",), key="windsurf", looked_up="2026-11"),
    ClientProfile(
        title="Zed",
        names=("zed",),
        key="zed",
        declares=frozenset({"prompts", "list_changed"}),
        looked_up="2026-11",
        notes=(
            "It waits 60 s for a call.",
            "It follows changes of the list of tools, and of no other list.",
        ),
    ),
)


@lru_cache(maxsize=_CACHED)
def profile_of(
    name: str, version: str = "", table: Sequence[ClientProfile] = PROFILES
) -> ClientProfile:
    """The row for a client that calls itself so: of several the one for the newest version."""
    given, lowered = _numbers(version), name.lower()
    rows = [
        row for row in table if lowered.startswith(row.names) and row.since <= (given or row.since)
    ]
    return max(rows, key=lambda row: row.since, default=UNKNOWN)


def ceiling_s(
    name: str,
    profile: ClientProfile,
    *,
    default_ms: int,
    configured_ms: Mapping[str, int],
    environ: Mapping[str, str],
) -> float:
    """The longest wait for a client: as configured for its name, as known, else the default.

    Never more than what the host that started us says in `MCP_TOOL_TIMEOUT`.
    """
    lowered = name.lower()
    known = default_ms / 1000 if profile.ceiling_s is None else profile.ceiling_s
    configured = (ms / 1000 for part, ms in configured_ms.items() if part.lower() in lowered)
    ceiling = next(configured, known)
    limit = _own_limit_s(environ)
    return min(ceiling, max(limit - _TIMEOUT_RESERVE_S, min(_LEAST_CEILING_S, limit / 2)))


def person_limit_s(profile: ClientProfile, environ: Mapping[str, str]) -> float:
    """How long a question may be open in a call: after that its host waits no more."""
    limit = min(profile.person_s, _own_limit_s(environ))
    return max(limit - _TIMEOUT_RESERVE_S, limit / 2)


def _own_limit_s(environ: Mapping[str, str]) -> float:
    """What the host that started us says of itself."""
    said = environ.get("MCP_TOOL_TIMEOUT", "")
    return int(said) / 1000 if said.isdecimal() and int(said) else math.inf


def questions_go_to(
    profile: ClientProfile, mode: "QuestionsMode"
) -> Literal["the person", "the model", "nobody"]:
    """Who is asked what a server asks, as far as the table tells, under that setting."""
    if mode != "tools" and "form" in profile.declares:
        return "the person"
    return "nobody" if mode == "client" else "the model"


def _numbers(version: str) -> tuple[int, ...]:
    """`2.1.325-beta` as numbers; nothing where it does not begin with one."""
    parts = version.partition("-")[0].split(".")
    return tuple(int(part) for part in takewhile(str.isdecimal, parts))
