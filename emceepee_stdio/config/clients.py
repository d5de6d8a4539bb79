"""The table of MCP clients: where each keeps its servers, and in which format.

One row for each client. The places are a pure function of the platform, the environment and the
home directory; nothing here touches a file.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, NamedTuple, TypeVar

from emceepee_stdio.config import jsonc, toml_tables
from emceepee_stdio.config.entries import flat, starts_emceepee
from emceepee_stdio.config.fields import is_list, is_object
from emceepee_stdio.config.jsonc import CannotEdit, Steps, Unreadable
from emceepee_stdio.config.tool_rules import escaped
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.json_values import elements, mapping, with_texts

P = TypeVar("P", bound=PurePath)

ClientKey = Literal[
    "claude-desktop",
    "claude-code",
    "cursor",
    "vscode",
    "windsurf",
    "zed",
    "codex",
    "gemini",
    "qwen",
    "opencode",
    "lm-studio",
]


class Language(NamedTuple):
    """How a file is read and how one value in it is changed."""

    read: Callable[[str], object]
    put: Callable[[str, Steps, object], str]
    remove: Callable[[str, Steps], str]


_JSON = Language(jsonc.read, jsonc.put, jsonc.remove)
# An app that Windows installed as a package sees its own copy of the roaming directory.
_CLAUDE_PACKAGE = "local/Packages/Claude_pzs8sxrjxfjjc/LocalCache/Roaming"
_TOML = Language(toml_tables.read, toml_tables.put, toml_tables.remove)
_OPENCODE_SECTION = "mcp"


def _read_opencode(text: str) -> object:
    """Its entries in the words of all others: it has program and arguments in one list."""
    document = jsonc.read(text)
    servers = mapping(mapping(document).get(_OPENCODE_SECTION))
    return {**mapping(document), _OPENCODE_SECTION: {n: _split(s) for n, s in servers.items()}}


def _split(entry: object) -> object:
    line = mapping(entry).get("command")
    if not is_object(entry) or not is_list(line) or not line:
        return entry
    args = {"args": line[1:]} if line[1:] else {}
    env = {"env": entry["environment"]} if "environment" in entry else {}
    rest = {k: v for k, v in entry.items() if k not in ("type", "command", "environment")}
    return {"command": line[0], **args, **env, **rest}


def _put_opencode(text: str, path: Steps, value: object) -> str:
    if is_object(value) and "command" in value:
        rest = {k: v for k, v in value.items() if k not in ("command", "args", "env")}
        line = [value["command"], *elements(value.get("args"))]
        env = {"environment": value["env"]} if "env" in value else {}
        value = {"type": "local", "command": line, **env, **rest}
    return jsonc.put(text, path, value)


_OPENCODE = Language(_read_opencode, _put_opencode, jsonc.remove)


class Files(NamedTuple):
    """Where a file may be on each platform; a place begins with one of `_BASES`.

    Of several places the first whose directory exists is the one; the last is where the client
    would make it.
    """

    darwin: tuple[str, ...]
    win32: tuple[str, ...]
    linux: tuple[str, ...]


# The variable by which a client's entry refers to the token.
HTTP_TOKEN = "EMCEEPEE_HTTP_TOKEN"  # noqa: S105 - its name


class Remote(NamedTuple):
    """What an entry for a server behind a URL looks like.

    `reference` is how a header refers to a variable; without one `token_key` names the variable.
    """

    marks: Mapping[str, str]
    url: str = "url"
    reference: str | None = None
    token_key: str = ""


class Setting(NamedTuple):
    """What our entry in a client's file says so that the client works well with us, and why."""

    value: bool | int | list[str]
    why: str
    former: tuple[int, ...] = ()  # what earlier versions wrote, which is nobody's choice
    short: str = ""  # what goes wrong with such a value


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One row: a client, its file on each platform, and what an entry in it looks like."""

    key: ClientKey
    title: str
    files: Files
    section: str = "mcpServers"
    language: Language = _JSON
    # What its entries say beside command, args and env.
    marks: Mapping[str, str] = field(default_factory=dict[str, str])
    # What only our own entry says; a person may have chosen otherwise.
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])
    # A directory that only a machine with this client has, if the file's own does not tell.
    sign: str | None = None
    # Its commands for a shell: where one is found, it is installed, started or not.
    programs: tuple[str, ...] = ()
    # The variables that it starts servers with: a desktop's, a few of the shell's, or all of those.
    inherits: Literal["desktop", "few", "shell"] = "desktop"
    # Whether it refuses a file with comments.
    strict: bool = False
    # The key of its file under which it keeps things by project, and its file in a project.
    projects: str = ""
    project_file: str = ""
    # How it reaches a server behind a URL, if its file can say so; else what its file lacks.
    remote: Remote | None = None
    no_remote: str = "cannot name a server behind a URL"
    # What switches an entry off in its file, if anything does: the key, and the value for it.
    off: Mapping[str, bool] = field(default_factory=dict[str, bool])
    # How it refers to a variable, if not by `${NAME}` alone.
    variables: re.Pattern[str] | None = None

    def places(self, platform: str, environ: Mapping[str, str], home: P) -> tuple[P, ...]:
        """Where its file may be, the likeliest first."""
        places = self.files._asdict().get(platform, self.files.linux)
        return tuple(_resolve(place, environ, home) for place in places)

    def home(self, file: P, environ: Mapping[str, str], home: P) -> P:
        """The directory that is there if the client is."""
        return file.parent if self.sign is None else _resolve(self.sign, environ, home)

    def entry(self, command: str, args: list[str], env: Mapping[str, str]) -> dict[str, object]:
        """Our own server as this client writes it."""
        return {
            **self.marks,
            "command": command,
            "args": args,
            **self._proposed(),
            "env": dict(env),
        }

    def remote_entry(self, url: str) -> dict[str, object] | None:
        """Our own server behind a URL; the token is a variable's, so that no file holds it."""
        if self.remote is None:
            return None
        entry: dict[str, object] = {**self.remote.marks, self.remote.url: url}
        if self.remote.reference is None:
            return {**entry, self.remote.token_key: HTTP_TOKEN, **self._proposed()}
        token = self.remote.reference.format(HTTP_TOKEN)
        return {**entry, "headers": {"Authorization": f"Bearer {token}"}, **self._proposed()}

    def _proposed(self) -> dict[str, object]:
        return {key: setting.value for key, setting in self.settings.items()}

    def former_settings(self, entry: Mapping[str, object]) -> list[str]:
        """The settings in an entry of ours that are as an earlier version wrote them."""
        return [key for key, now in self.settings.items() if entry.get(key) in now.former]

    def servers(self, text: str) -> Mapping[str, object]:
        """What stands in its file by name; nothing where there is no section."""
        return mapping(mapping(self.language.read(text)).get(self.section))

    def our_entry(self, entry: object) -> object:
        """One of its entries in our words."""
        if not is_object(entry):
            return entry
        ours = _from_codex(entry) if self.language is _TOML else entry
        variables = self.variables
        if variables is None:
            return ours
        return with_texts(ours, lambda text: variables.sub(r"${\1}", text))


def is_ours(entry: object) -> bool:
    """Whether an entry of a client starts emceepee, or reaches it over HTTP."""
    line = flat(mapping(entry))
    if HTTP_TOKEN in str(line.get("headers", "")) or HTTP_TOKEN in line.values():
        return True
    command, args = line.get("command"), line.get("args", [])
    if not isinstance(command, str) or not is_list(args):
        return False
    return starts_emceepee(command, [arg for arg in args if isinstance(arg, str)])


def _resolve(place: str, environ: Mapping[str, str], home: P) -> P:
    base, *rest = place.split("/")
    variable, usual = _BASES[base]
    # Joining to an absolute path gives that path, so a variable wins as a whole.
    return home.joinpath(environ.get(variable) or usual, *rest)


# The variable that moves a directory, and where it is in the home without that.
_BASES = {
    "home": ("", ""),
    "support": ("", "Library/Application Support"),
    "roaming": ("APPDATA", "AppData/Roaming"),
    "local": ("LOCALAPPDATA", "AppData/Local"),
    "config": ("XDG_CONFIG_HOME", ".config"),
    "claude": ("CLAUDE_CONFIG_DIR", ""),
    "claude-state": ("CLAUDE_CONFIG_DIR", ".claude"),
    "codex": ("CODEX_HOME", ".codex"),
    "gemini": ("GEMINI_CLI_HOME", ""),
}


def _everywhere(place: str) -> Files:
    return Files(darwin=(place,), win32=(place,), linux=(place,))


_BARE_VARIABLE = re.compile(r"(?<![$\w])\$([A-Za-z_]\w*)")

CLIENTS: dict[ClientKey, Client] = {
    client.key: client
    for client in (
        Client(
            key="claude-desktop",
            title="Claude Desktop",
            files=Files(
                darwin=("support/Claude/claude_desktop_config.json",),
                win32=(
                    f"{_CLAUDE_PACKAGE}/Claude/claude_desktop_config.json",
                    "roaming/Claude/claude_desktop_config.json",
                ),
                linux=("config/Claude/claude_desktop_config.json",),
            ),
            strict=True,
        ),
        Client(
            key="claude-code",
            title="Claude Code",
            files=_everywhere("claude/.claude.json"),
            marks={"type": "stdio"},
            settings={
                "timeout": Setting(
                    660_000,
                    "waits 11 minutes (660,000 ms) for a call of emceepee: longer than a question"
                    " to you stays open. emceepee answers a slow call with a task much earlier",
                    former=(300_000,),
                    short="if you answer a question after that time, the model is not told",
                ),
            },
            sign="claude-state",
            programs=("claude",),
            inherits="shell",
            projects="projects",
            project_file=".mcp.json",
            strict=True,
            remote=Remote({"type": "http"}, reference="${{{}}}"),
        ),
        Client(
            key="cursor",
            title="Cursor",
            files=_everywhere("home/.cursor/mcp.json"),
            programs=("cursor", "cursor-agent"),
            marks={"type": "stdio"},
            remote=Remote({}, reference="${{env:{}}}"),
        ),
        Client(
            key="vscode",
            title="VS Code",
            files=Files(
                darwin=("support/Code/User/mcp.json",),
                win32=("roaming/Code/User/mcp.json",),
                linux=("config/Code/User/mcp.json",),
            ),
            programs=("code",),
            section="servers",
            marks={"type": "stdio"},
            remote=Remote({"type": "http"}, reference="${{env:{}}}"),
        ),
        Client(
            key="windsurf",
            title="Windsurf",
            files=_everywhere("home/.codeium/windsurf/mcp_config.json"),
            programs=("windsurf",),
            remote=Remote({}, url="serverUrl", reference="${{env:{}}}"),
        ),
        Client(
            key="zed",
            title="Zed",
            files=Files(
                darwin=("home/.config/zed/settings.json",),
                win32=("roaming/Zed/settings.json",),
                linux=("config/zed/settings.json",),
            ),
            programs=("zed", "zeditor"),
            section="context_servers",
            no_remote="has no variables, so the token would have to be in it",
            off={"enabled": False},
            marks={"source": "custom"},
        ),
        Client(
            key="codex",
            title="Codex",
            files=_everywhere("codex/config.toml"),
            programs=("codex",),
            inherits="few",
            section="mcp_servers",
            off={"enabled": False},
            language=_TOML,
            remote=Remote({}, token_key="bearer_token_env_var"),  # noqa: S106 - its name
            settings={
                "startup_timeout_sec": Setting(
                    30, "gives a busy machine time to start emceepee; older versions wait 10 s"
                ),
                "tool_timeout_sec": Setting(
                    300,
                    "waits 5 minutes for a call: emceepee answers a slow one with a task after 4",
                ),
                "supports_parallel_tool_calls": Setting(
                    True,  # noqa: FBT003 - the value of a key
                    "lets calls run at the same time: each server orders its own",
                ),
                "omit_tools_from": Setting(
                    ["deferred"],
                    "shows the model all tools at once: else it hides them behind a search, and"
                    " newer models know nothing of emceepee",
                ),
            },
        ),
        Client(
            key="gemini",
            title="Gemini CLI",
            files=_everywhere("gemini/.gemini/settings.json"),
            programs=("gemini",),
            inherits="shell",
            variables=_BARE_VARIABLE,
            remote=Remote({}, url="httpUrl", reference="${}"),
        ),
        Client(
            key="qwen",
            title="Qwen Code",
            files=_everywhere("home/.qwen/settings.json"),
            programs=("qwen",),
            inherits="shell",
            variables=_BARE_VARIABLE,
            remote=Remote({}, url="httpUrl", reference="${}"),
        ),
        Client(
            key="opencode",
            title="opencode",
            files=_everywhere("config/opencode/opencode.json"),
            programs=("opencode",),
            inherits="shell",
            section=_OPENCODE_SECTION,
            language=_OPENCODE,
            off={"enabled": False},
            variables=re.compile(r"\{env:([A-Za-z_]\w*)\}"),
            remote=Remote({"type": "remote"}, reference="{{env:{}}}"),
        ),
        Client(
            key="lm-studio",
            title="LM Studio",
            files=_everywhere("home/.lmstudio/mcp.json"),
            no_remote="has no variables, so the token would have to be in it",
        ),
    )
}


_CODEX_LISTS = ("enabled_tools", "disabled_tools")


def _from_codex(entry: Mapping[str, object]) -> dict[str, object]:
    """Codex names variables where we refer to them."""
    ours = dict(entry)
    headers = {**mapping(ours.pop("http_headers", None))}
    named = mapping(ours.pop("env_http_headers", None))
    headers |= {name: f"${{{variable}}}" for name, variable in named.items()}
    if token := ours.pop("bearer_token_env_var", None):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    if headers:
        ours["headers"] = headers
    names = ours.pop("env_vars", None)
    if is_list(names):
        ours["pass_env"] = [mapping(name).get("name", name) for name in names]
    return _codex_rules(ours)


def _codex_rules(entry: dict[str, object]) -> dict[str, object]:
    """When Codex asks before a tool runs, as rules; its other ways of asking are its own affair."""
    tables, always = entry.pop("tools", None), entry.pop("default_tools_approval_mode", None)
    modes = {name: mapping(one).get("approval_mode") for name, one in mapping(tables).items()}
    if "prompt" not in (always, *modes.values()):
        return entry
    only, never = entry.get("enabled_tools"), entry.get("disabled_tools")
    names = map(str, only if is_list(only) else modes)
    rules = {"*": "off"} if is_list(only) else {"*": "ask"} if always == "prompt" else {}
    rules |= {
        escaped(name): "ask" if modes.get(name, always) == "prompt" else "allow" for name in names
    }
    for name in map(str, elements(never)):
        rules.pop(escaped(name), None)  # so that it stands last
        rules[escaped(name)] = "off"
    kept = {key: value for key, value in entry.items() if key not in _CODEX_LISTS}
    return {**kept, "tools": rules}


# emceepee as an entry in a client's file: put in, taken out again, and alone there.
#
# Works on texts. Taking out what was put in gives the very text from before, because the backup
# tells what that was: if putting our entry into it gives the text of now, it is the way back.


class NameTaken(ConfigInvalid):
    """The client has another server of this name."""

    hint = "Nothing was changed; say another name with --name, or remove that server first."


class Edited(NamedTuple):
    """A text that was changed, None for no file, and whether the one before is worth keeping."""

    text: str | None
    backs_up: bool


def register(
    client: Client, text: str | None, backup: str | None, *, name: str, entry: object
) -> Edited:
    """The text with our entry in it, new or renewed."""
    present = _present(client, text or "", name)
    changed = client.language.put(text or "", (client.section, name), entry)
    # The backup of the first time shows the file without us; renewing must not cost it.
    renewed = present is not None and _leads_to(
        client, _before(client, backup, name), text or "", name, present
    )
    return Edited(changed, backs_up=not renewed)


def unregister(client: Client, text: str, backup: str | None, *, name: str) -> Edited:
    """The text without our entry; None for a file that held nothing else."""
    present = _present(client, text, name)
    if present is None:
        return Edited(text, backs_up=False)
    before = _before(client, backup, name)
    if _leads_to(client, before, text, name, present):
        return Edited(None if backup is None else before, backs_up=False)
    changed = client.language.remove(text, (client.section, name))
    was_there = before is not None and client.section in mapping(client.language.read(before))
    if before is not None and not client.servers(changed) and not was_there:
        changed = client.language.remove(changed, (client.section,))
    return Edited(None if backup is None and _is_bare(changed) else changed, backs_up=True)


def leave_alone(
    client: Client, text: str, *, name: str, entry: object, others: Collection[Steps]
) -> str:
    """The text with our entry and without those servers that are now behind it."""
    _present(client, text, name)
    for other in others:
        text = client.language.remove(text, other)
    return client.language.put(text, (client.section, name), entry)


def _present(client: Client, text: str, name: str) -> object:
    """The entry of this name, which is ours or none at all."""
    servers = client.servers(text)
    if name in servers and not is_ours(servers[name]):
        raise NameTaken(f"{client.title} has a server named {name!r} that is not emceepee.")
    return servers.get(name)


def _before(client: Client, backup: str | None, name: str) -> str | None:
    """The text from before our entry, empty without a backup; None if one cannot tell."""
    if backup is None:
        return ""
    try:
        return None if name in client.servers(backup) else backup
    except Unreadable:
        return None


def _leads_to(client: Client, before: str | None, text: str, name: str, present: object) -> bool:
    """Whether our entry is all that parts the two texts."""
    if before is None:
        return False
    try:
        return client.language.put(before, (client.section, name), present) == text
    except CannotEdit:
        return False


def _is_bare(text: str) -> bool:
    return text.removeprefix("\ufeff").strip() in {"", "{}"}


def servers_by_place(client: Client, text: str) -> dict[Steps, object]:
    """Each server by its place: those of the user, and those that the client keeps by project."""
    document = mapping(client.language.read(text))
    places: dict[Steps, object] = {(client.section,): document.get(client.section)}
    for name, project in mapping(document.get(client.projects)).items():
        places[client.projects, name, client.section] = mapping(project).get(client.section)
    return {
        (*steps, name): entry
        for steps, section in places.items()
        for name, entry in mapping(section).items()
    }
