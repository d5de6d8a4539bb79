"""The settings of one server (`ServerConfig`), and how it is restarted.

A `ServerConfig` that exists is usable: making a wrong one raises, and says why without showing a
value, because any of them may hold a secret.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, field

from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.visible_text import cut

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
_NAME_CHARS = 64

# A process cannot be given NUL; lone surrogates cannot be written as UTF-8.
_UNSPEAKABLE = re.compile("[\x00\ud800-\udfff]")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE_BREAK = re.compile(r"[\r\n]")


def label(name: str) -> str:
    """A name as a message may show it: printable, on one line, not endless."""
    shown = name if name.isprintable() else ascii(name)[1:-1]
    return cut(shown, _NAME_CHARS) or "(no name)"


def name_problem(name: str) -> str | None:
    fits = len(name) <= _NAME_CHARS and name.isprintable() and name.strip()
    return None if fits else f"its name must be 1 to {_NAME_CHARS} printable characters"


def within(low: float, high: float, description: str | None = None) -> Meta:
    return Meta(ge=low, le=high, description=description)


Rule = Literal["allow", "ask", "off"]
StartMode = Literal["eager", "auto", "lazy"]
IdleStopMs = Annotated[
    int, within(0, DAY_MS, "Stop a server that was not used for so long; 0 never does.")
]
TemplatePlace = tuple[str, ...]  # a field, and the key inside it where it has keys
Attempts = Annotated[
    int, within(0, 1_000, "Restarts in a row before the server is given up; 0 never restarts.")
]
BaseMs = Annotated[int, within(1, HOUR_MS, "Delay before the first restart.")]
CapMs = Annotated[int, within(1, DAY_MS, "The longest delay between two restarts.")]


class RestartConfig(Struct, frozen=True, kw_only=True):
    """How servers that ended are started again, unless an entry says otherwise."""

    attempts: Attempts = 5
    base_ms: BaseMs = 1_000
    cap_ms: CapMs = MINUTE_MS

    def for_server(self, server: "ServerConfig", *, http_cap_s: float) -> "RestartConfig":
        """These settings with what the server's own entry says otherwise."""
        general = msgspec.to_builtins(self)
        if server.url is not None:
            general["cap_ms"] = round(http_cap_s * 1000)
        return msgspec.convert(general | msgspec.to_builtins(server.restart), RestartConfig)


class RestartOverrides(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where one server's restarts differ from the general settings; null follows those."""

    attempts: Attempts | None = None
    base_ms: BaseMs | None = None
    cap_ms: CapMs | None = None


class OAuthConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to sign in to a server; all of it can be left out where the server registers clients.

    Fields:
      client_id: Client that was registered for emceepee; a URL where it is a document.
      client_secret: Its secret, if it has one.
      scope: Scopes to ask for, instead of those that the server names.
      redirect_port: Port on this machine that the browser comes back to, if it is fixed.
      resource: Name the server in `resource`; some sign-ins refuse that.
      issuer: The only issuer to sign in with, and wherever that is.
    """

    client_id: str | None = None
    client_secret: str | None = None
    scope: str | None = None
    redirect_port: Annotated[int, within(1, 65_535, "A port.")] | None = None
    resource: bool = True
    issuer: str | None = None

    def __repr__(self) -> str:
        return f"<OAuthConfig {'own client' if self.client_id else 'registers'}>"

    @property
    def is_unbound_secret(self) -> bool:
        """Whether it is not said to whom the secret may be shown: then it is shown to nobody."""
        return self.client_secret is not None and self.issuer is None

    @property
    def is_client_document(self) -> bool:
        """Whether the client is described by a document at its id, an https address."""
        return (self.client_id or "").startswith("https://") and self.client_secret is None


class ServerEntry(Struct, frozen=True, kw_only=True):
    """One server, reached by a command to start or a URL to call: exactly one of the two.

    Fields:
      command: Program to start, which then speaks MCP on stdin and stdout.
      args: Arguments of the command.
      env: Environment variables to give to the command.
      pass_env: Names of variables of the proxy's own environment to hand on.
      cwd: Directory to start the command in.
      url: Address of the server, http or https.
      headers: HTTP headers to send with every request to the URL.
      transport: How to speak to the server; auto finds out.
      era: Which era of the protocol the server speaks; auto finds out.
      auth: Sign in by OAuth, or never; null does where the server asks for it.
      description: What the server is for, in a line; clients are told it.
      start: When it is started: with the session (eager); on first use where it is known what it
          lists, else with the session (auto); always on first use (lazy). Null follows
          emceepee.start.
      lazy: The same as start: lazy.
      idle_stop_ms: As emceepee.idle_stop_ms, for this server.
      disabled: Keep the entry, but do not use it.
      expose: Show its tools to the client as themselves, beside ours: patterns of their names, or
          true for all of them and its prompts and resources.
      tools: Rules for its tools: a pattern of names, and whether they run (allow), are put to the
          person each time (ask), or are hidden and refused (off). The last match counts.
    """

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    pass_env: tuple[str, ...] = ()
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    transport: Literal["auto", "http", "sse", "stdio"] = "auto"
    era: Literal["auto", "legacy", "modern"] = "auto"
    auth: Literal["oauth", "none"] | None = None
    oauth: OAuthConfig = field(default_factory=OAuthConfig)
    description: str = ""
    start: StartMode | None = None
    lazy: bool = False
    idle_stop_ms: IdleStopMs | None = None
    disabled: bool = False
    restart: RestartOverrides = field(default_factory=RestartOverrides)
    expose: bool | tuple[str, ...] = False
    tools: dict[str, Rule] = {}


class NamedEntry(ServerEntry, frozen=True, kw_only=True):
    """One server and its name: a command to start or a URL to call, exactly one of the two.

    Fields:
      name: What the server is called.
    """

    name: Annotated[str, Meta(min_length=1, max_length=_NAME_CHARS)]


class ServerConfig(NamedEntry, frozen=True, kw_only=True):
    """A server that can be used. `templates` are its texts that wait for the keyring."""

    templates: frozenset[TemplatePlace] = frozenset()

    def __post_init__(self) -> None:
        problem = name_problem(self.name) or self._target_problem() or self._text_problem()
        if problem:
            raise ConfigInvalid(f"Server '{label(self.name)}': {problem}.")

    def __repr__(self) -> str:
        # Arguments, variables, headers and URLs may hold secrets.
        return f"<ServerConfig {label(self.name)} {'url' if self.command is None else 'command'}>"

    def start_mode(self, general: StartMode) -> StartMode:
        """When it is started, where the settings say this in general."""
        return self.start or ("lazy" if self.lazy else general)

    def idle_stop_s(self, general_ms: int) -> float | None:
        """After how many seconds without a use it is stopped, if ever."""
        chosen = general_ms if self.idle_stop_ms is None else self.idle_stop_ms
        return chosen / 1000 or None

    def is_same_but_rules(self, other: "ServerConfig") -> bool:
        """Rules, words and what is exposed are kept beside a server: it goes on as it is."""
        beside = {"tools": other.tools, "description": other.description, "expose": other.expose}
        return msgspec.structs.replace(self, **beside) == other

    def _target_problem(self) -> str | None:
        if not self.command and not self.url:
            return "neither command nor url is given; exactly one of them is expected"
        if self.command is not None and self.url is not None:
            return "command and url are both given; exactly one of them is expected"
        if self.url is not None:
            if self.transport == "stdio":
                return "the transport stdio needs a command, but a url is given"
            return _url_problem(self.url)
        needs_url = {
            "auth": self.auth == "oauth",
            "oauth": self.oauth != OAuthConfig(),
            f"the transport {self.transport}": self.transport in {"http", "sse"},
        }
        odd = next((what for what, is_given in needs_url.items() if is_given), None)
        return f"{odd} needs a url, but a command is given" if odd else None

    def _text_problem(self) -> str | None:
        texts = [("command", self.command or ""), ("cwd", self.cwd or ""), ("url", self.url or "")]
        texts += [(f"args[{i}]", text) for i, text in enumerate(self.args)]
        texts += [(f"pass_env[{i}]", text) for i, text in enumerate(self.pass_env)]
        texts += [(f"env.{label(key)}", key + text) for key, text in self.env.items()]
        texts += [(f"headers.{label(key)}", text) for key, text in self.headers.items()]
        own = msgspec.to_builtins(self.oauth)
        texts += [(f"oauth.{key}", text) for key, text in own.items() if isinstance(text, str)]
        for where, text in texts:
            if _UNSPEAKABLE.search(text):
                return f"{where} holds a character that cannot be passed on"
        if any(not key or "=" in key for key in self.env):
            return "env has a variable whose name is empty or holds '='"
        for key, text in self.headers.items():
            if not _HEADER_NAME.fullmatch(key) or _LINE_BREAK.search(text):
                return f"headers.{label(key)} is not a header that HTTP allows"
        return None


def _url_problem(url: str) -> str | None:
    """Why a URL cannot be called; never shows it, because it may hold a secret."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "url is not a valid address"
    if parts.scheme not in {"http", "https"}:
        return "url must begin with http:// or https://"
    if not host or re.search(r"\s", url):
        return "url is not a valid address"
    return None


class BrokenServer(Struct, frozen=True, kw_only=True):
    """An entry that is not used, and why: the person disabled it, or it is broken."""

    name: str
    reason: str
    switched_off: bool = False
    # Of one that is disabled, or has rules that cannot be read, where the rest of it can.
    config: ServerConfig | None = None
    unset: tuple[str, str] | None = None  # the place of a value, and the variable that it needs

    @property
    def state(self) -> str:
        """The word that people read for it everywhere."""
        return "disabled" if self.switched_off else "broken"

    @property
    def marked_name(self) -> str:
        """How a list of names has it."""
        return f"{self.name} ({self.state})"

    @property
    def fact(self) -> str:
        """A sentence about it."""
        if self.switched_off:
            return f"{self.name} is disabled in the configuration."
        return f"{self.name} is broken: {self.why}"

    @property
    def why(self) -> str:
        """The reason, ended as a sentence."""
        return self.reason if self.reason.endswith((".", "?")) else f"{self.reason}."


def marked_names(used: Iterable[str], unused: Iterable[BrokenServer]) -> dict[str, str]:
    """Every name, and how a list of names has it."""
    names = {name: name for name in used}
    return names | {one.name: one.marked_name for one in unused if one.name not in names}
