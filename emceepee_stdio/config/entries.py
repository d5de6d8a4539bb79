"""The server entries of the file: each is usable, disabled, broken with a reason, or skipped.

Understands how the clients that people already have spell things. One entry never costs another:
whatever is wrong with it becomes a `BrokenServer`.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from emceepee_stdio.config.fields import (
    IN_KEYRING,
    Given,
    UnsetVariable,
    Vocabulary,
    expand,
    fit,
    given_fields,
    hints_of,
    is_list,
    is_object,
    template_places,
)
from emceepee_stdio.config.server import (
    BrokenServer,
    OAuthConfig,
    RestartOverrides,
    ServerConfig,
    ServerEntry,
    label,
    name_problem,
)
from emceepee_stdio.config.settings import FORMER
from emceepee_stdio.config.tool_rules import NOTHING_RUNS, check_patterns, read_rules, rule_keys
from emceepee_stdio.errors import ConfigInvalid

# Entries that would start this proxy again, behind itself.
#
# Looks through the common ways to start a program: by its path, as a Python module, by a package
# runner, and behind `env` or `cmd /c`. What gets past is stopped by the depth that children
# inherit.


RESERVED_NAME = "emceepee"

_PROGRAMS = {"emceepee", "emceepee-stdio"}
_MODULE = "emceepee_stdio"
_PYTHON = re.compile(r"(python|pythonw|pypy)[\d.]*|py")
_RUNNERS = {"uvx", "uv", "pipx", "npx", "bunx", "bun", "pnpm", "pnpx", "yarn", "npm"}
_RUNNER_WORDS = {"run", "tool", "x", "dlx", "exec"}
_PACKAGE_OPTIONS = {"--from", "--spec", "--package", "-p"}
_WINDOWS_SUFFIX = re.compile(r"\.(exe|cmd|bat)$")
# A requirement or an npm package goes on with extras or a version.
_VERSION = re.compile(r"[\[@=<>~!].*$")


def starts_emceepee(command: str, args: Sequence[str]) -> bool:
    """Whether this command line ends up in another emceepee."""
    program = _program(command)
    if program in _PROGRAMS:
        return True
    if _PYTHON.fullmatch(program):
        return _runs_our_module(args)
    if program in _RUNNERS:
        return _runs_our_package(args)
    if program == "env":
        return _starts_rest([arg for arg in args if "=" not in arg and not arg.startswith("-")])
    if program == "cmd":
        return _starts_rest([arg for arg in args if not arg.startswith("/")])
    return False


def _starts_rest(rest: Sequence[str]) -> bool:
    return bool(rest) and starts_emceepee(rest[0], rest[1:])


def _program(command: str) -> str:
    return _WINDOWS_SUFFIX.sub("", re.split(r"[\\/]", command)[-1].lower())


def _runs_our_module(args: Sequence[str]) -> bool:
    for index, arg in enumerate(args):
        if not arg.startswith("-"):
            return _program(arg) in _PROGRAMS
        if arg == "-m":
            return _MODULE in args[index + 1 : index + 2]
        if arg.startswith("-m"):
            return arg[2:] == _MODULE
    return False


def _runs_our_package(args: Sequence[str]) -> bool:
    """Whether the package to run, or the one it is taken from, is ours."""
    for before, arg in zip(["", *args], args, strict=False):
        option, _, joined = arg.partition("=")
        if option in _PACKAGE_OPTIONS and joined and _is_ours(joined):
            return True
        if before in _PACKAGE_OPTIONS:
            if _is_ours(arg):
                return True
        elif not arg.startswith("-") and arg not in _RUNNER_WORDS:
            return _is_ours(arg)
    return False


def _is_ours(requirement: str) -> bool:
    return _VERSION.sub("", requirement).lower().replace("_", "-") in _PROGRAMS


_SPELLINGS = {
    "type": "transport",
    "serverUrl": "url",
    "httpUrl": "url",
    "environment": "env",
    "workingDirectory": "cwd",
    "restartConfig": "restart",
    "restart_config": "restart",
    "isActive": "enabled",
}
_RESTART_SPELLINGS = {
    "maxAttempts": "attempts",
    "baseDelayMs": "base_ms",
    "maxDelayMs": "cap_ms",
    "backoffMultiplier": "factor",
}
_OAUTH_SPELLINGS = {
    "callbackPort": "redirect_port",
    "redirectPort": "redirect_port",
    "scopes": "scope",
}
# What clients keep in `oauth` for their own use.
_OAUTH_IGNORED = {
    *("audiences", "authServerMetadataUrl", "authorizationUrl", "enabled", "redirectUri"),
    *("registrationUrl", "tokenParamName", "tokenUrl"),
}
_TRANSPORTS = {
    "local": "stdio",
    "remote": "auto",
    "streamable": "http",
    "streamablehttp": "http",
}
# What clients keep in an entry for their own use: whom it is shown to and how, where it came from,
# how it is watched over, and what they know of signing in.
_IGNORED = {
    *("displayName", "gallery", "icon", "icons", "id", "logoUrl", "name", "tags", "title"),
    *("dev", "metadata", "provider", "providerUrl", "required", "settings", "source", "version"),
    *("alwaysAllow", "alwaysLoad", "autoApprove", "sandbox", "sandboxEnabled", "trust"),
    *("initTimeout", "startup_timeout_ms", "startup_timeout_sec", "timeout", "tool_timeout_sec"),
    *("auth", "authProviderType", "envFile", "oauth", "shouldUseProxy", "watchPaths"),
}
# How files say that a server is off: the key, and the value that means it.
OFF_KEYS = {"disabled": True, "enabled": False, "isActive": False}
# What decides which server runs, and with what; the rest is how emceepee or a client treats it.
_RUNNING = ("command", "args", "env", "pass_env", "cwd", "url", "headers", "auth", "oauth")
_REACHING = (*_RUNNING, "transport", "era", "envFile", "disabled", "enabled", "name")
_ENTRY = Vocabulary([*hints_of(ServerEntry), "enabled"], _SPELLINGS, _IGNORED)
_OAUTH = Vocabulary(hints_of(OAuthConfig), _OAUTH_SPELLINGS, _OAUTH_IGNORED)
_RESTART = Vocabulary(hints_of(RestartOverrides), _RESTART_SPELLINGS, former=FORMER)
KNOWN_KEYS = frozenset((*hints_of(ServerEntry), *_SPELLINGS, "enabled", "name"))


class Entries:
    """Reads one entry after the other and keeps what came of it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._names: set[str] = set()
        self.servers: list[ServerConfig] = []
        self.disabled: list[BrokenServer] = []
        self.warnings: list[str] = []
        self.skipped: list[str] = []  # why, for whoever is about to write such an entry

    def __repr__(self) -> str:
        return f"<Entries {len(self.servers)} usable {len(self.disabled)} unused>"

    def add(self, name: str, entry: object, *, section: str) -> None:
        path = f"{section}.{label(name)}"
        if name.casefold() == RESERVED_NAME:
            reserved = f"name {RESERVED_NAME} is reserved for the proxy itself."
            self.warnings.append(f"{path} is skipped: the {reserved}")
            self.skipped.append(f"The {reserved}")
            return
        if problem := name_problem(name):
            self._refuse(name, f"{path}: {problem}.")
            return
        if name in self._names:
            self._refuse(name, f"{path}: a server of this name is defined above; rename this one.")
            return
        self._names.add(name)
        try:
            found = self._read(name, entry, path)
        except ConfigInvalid as error:
            unset = (error.path, error.variable) if isinstance(error, UnsetVariable) else None
            self._refuse(name, error.fact, unset=unset)
            return
        if isinstance(found, BrokenServer):
            self.disabled.append(found)
        elif found.command is not None and starts_emceepee(found.command, found.args):
            self.warnings.append(f"{path} is skipped: it would start emceepee behind itself.")
            self.skipped.append(f"{label(name)} would start emceepee behind itself.")
        else:
            self.servers.append(found)

    def add_nameless(self, place: str, entry: object) -> None:
        """An entry of a list that has no usable name; it is called by its place."""
        what = "name: expected a string" if is_object(entry) else "expected an object with a name"
        self._refuse(place, f"{place}: {what}.")

    def _refuse(self, name: str, reason: str, *, unset: tuple[str, str] | None = None) -> None:
        self.disabled.append(BrokenServer(name=label(name), reason=reason, unset=unset))

    def _read(self, name: str, entry: object, path: str) -> ServerConfig | BrokenServer:
        members = flat(fit(entry, dict[str, object], path=path))
        ruling = rule_keys(members)
        slips: list[str] = []
        others = {key: members[key] for key in members if key not in ruling}
        given = _given(others, _ENTRY, path, slips)
        is_off = _switched_off(given, path)
        if slips and not is_off and not given.keys() & {"command", "url"}:
            # One of them is most likely what it is to run.
            raise ConfigInvalid(f"{path} has neither command nor url. {' '.join(slips)}")
        self.warnings += slips
        off_reason = f"{path} is disabled in the configuration."
        try:
            server = self._server(name, given, path)
        except ConfigInvalid:
            if not is_off:
                raise
            # One that the person disabled need not be readable.
            return BrokenServer(name=name, reason=off_reason, switched_off=True)
        problem: str | None = None
        try:
            rules = read_rules(members, environ=self._environ, path=path)
        except ConfigInvalid as error:
            rules, problem = dict(NOTHING_RUNS), error.fact  # whatever they were meant to say
        server = msgspec.structs.replace(server, tools=rules)
        if is_off or problem:
            reason = off_reason if is_off else problem or ""
            return BrokenServer(name=name, reason=reason, switched_off=is_off, config=server)
        return server

    def _server(self, name: str, given: dict[str, Given], path: str) -> ServerConfig:
        values: dict[str, object] = {"name": name, "templates": template_places(given)}
        for field, read in (
            ("restart", self._restart),
            ("auth", self._auth),
            ("oauth", self._oauth),
            ("description", _description),
        ):
            if field in given:
                key, value = given.pop(field)
                values |= read(value, f"{path}.{key}")
        values |= self._fitted(ServerEntry, given, path)
        check_patterns(values.get("expose"), path=f"{path}.expose")
        return msgspec.convert(values, ServerConfig)

    def _fitted(
        self, struct: type[msgspec.Struct], given: Mapping[str, Given], path: str
    ) -> dict[str, object]:
        """What is given for the fields of a struct, with its variables filled in."""
        hints = hints_of(struct)
        values: dict[str, object] = {}
        for field, (key, value) in given.items():
            where, allowed = f"{path}.{key}", field in IN_KEYRING
            full = expand(value, environ=self._environ, path=where, in_keyring=allowed)
            values[field] = fit(_our_value(field, full), hints[field], path=where)
        return values

    def _auth(self, value: object, path: str) -> dict[str, object]:
        return {"auth": value} if value in ("oauth", "none") else self._left_out(path)

    def _oauth(self, value: object, path: str) -> dict[str, object]:
        if value is False:
            return {"auth": "none"}
        if not is_object(value):
            return self._left_out(path)
        given = _given(value, _OAUTH, path, None)  # a slip in `issuer` shows the secret to anybody
        return {"oauth": self._fitted(OAuthConfig, given, path)}

    def _left_out(self, path: str) -> dict[str, object]:
        """Clients keep things of their own under this name: those are not ours to refuse."""
        self.warnings.append(f"{path} is not understood and is ignored.")
        return {}

    def _restart(self, value: object, path: str) -> dict[str, object]:
        members = fit(value, dict[str, object], path=path)
        given = _given(members, _RESTART, path, self.warnings)
        return {"restart": self._fitted(RestartOverrides, given, path)}


def _given(
    members: Mapping[str, object], words: Vocabulary, path: str, slips: list[str] | None
) -> dict[str, Given]:
    """The fields that are given; null is the same as not given."""
    present = {key: value for key, value in members.items() if value is not None}
    return given_fields(present, words, path=path, warnings=slips)


def _description(value: object, _path: str) -> dict[str, object]:
    """Words for a reader, whatever else clients keep there."""
    return {"description": value if isinstance(value, str) else ""}


def is_off(entry: object) -> bool:
    """Whether an entry, as it is written, is switched off."""
    return is_object(entry) and any(entry.get(key) is value for key, value in OFF_KEYS.items())


def what_runs(entry: Mapping[str, object]) -> dict[str, object]:
    """What an entry, as it is written, starts or reaches; without what is as if not given."""
    given = _given(flat(entry), _ENTRY, "", [])
    values = {field: value for field, (_, value) in given.items() if field in _RUNNING}
    found = {field: value for field, value in values.items() if value or value is False}
    transport = _our_value("transport", given["transport"].value) if "transport" in given else None
    if "url" in found and transport not in (None, "auto"):
        found["transport"] = transport
    if variables := entry.get("envFile"):  # a client that reads it gives the server more
        found["envFile"] = variables
    return {**found, "off": is_off(entry)}


def how_treated(entry: Mapping[str, object]) -> dict[str, object]:
    """The other part: rules for its tools, what it exposes, when it starts, what a client keeps."""
    return {key: entry[key] for key in entry if _SPELLINGS.get(key, key) not in _REACHING}


def _switched_off(given: dict[str, Given], path: str) -> bool:
    off = False
    for field, meaning in (("disabled", True), ("enabled", False)):
        if field in given:
            key, value = given.pop(field)
            off |= fit(value, bool, path=f"{path}.{key}") is meaning
    return off


def flat(members: Mapping[str, object]) -> Mapping[str, object]:
    """The members of an entry; Zed's older entries hold the whole command line in `command`."""
    command = members.get("command")
    if not is_object(command):
        return members
    rest = {key: value for key, value in members.items() if key != "command"}
    inner = {key: command[key] for key in ("args", "env") if key in command}
    return rest | inner | {"command": command.get("path")}


def _our_value(field: str, value: object) -> object:
    if field == "scope" and is_list(value):
        return " ".join(map(str, value))
    if field != "transport" or not isinstance(value, str):
        return value
    plain = value.lower().replace("-", "").replace("_", "")
    return _TRANSPORTS.get(plain, plain)
