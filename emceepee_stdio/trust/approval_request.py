"""The approval request: a server or a call, as a person sees it and as it is stored.

A person sees all of it: the program that will really run, every argument, the directory, the names
of the variables. Nothing in it can break out of its line. What is remembered is a keyed hash over
exactly that, with the values of the variables, so that any change asks again.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, pairwise
from pathlib import PurePath

import msgspec
from msgspec import Raw

from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.errors import InvalidArguments
from emceepee_stdio.foreign_json import decode_value
from emceepee_stdio.redaction.redact import redact_argv, redact_text, redact_url
from emceepee_stdio.visible_text import cut, shell_word, spelled_out

_SHELLS = frozenset(
    {"sh", "bash", "dash", "zsh", "fish", "ksh", "csh", "tcsh", "busybox"}
    | {"cmd", "powershell", "pwsh"}
)
_RAISERS = frozenset({"sudo", "doas", "su", "pkexec", "runas", "gsudo"})
_WRAPPERS = frozenset(
    {"env", "nohup", "nice", "time", "timeout", "setsid", "stdbuf", "xargs", "ld.so", "strace"}
    | {"ltrace", "gdb", "valgrind", "unshare", "nsenter", "chroot", "setpriv", "setarch", "ionice"}
    | {"taskset", "chrt", "flock", "watch", "parallel", "xvfb-run", "dbus-run-session"}
    | {"systemd-run", "bwrap", "firejail", "proot", "fakeroot"}
)
_CODE_FLAGS = {
    "awk": ("",),
    "sed": ("",),
    "find": ("-exec", "-execdir", "-ok", "-okdir"),
    "git": ("-c",),
    "expect": ("-c",),
    "make": ("--eval",),
    "emacs": ("--eval", "-eval"),
    "elixir": ("-e", "--eval"),
    "groovy": ("-e",),
    "julia": ("-e", "--eval", "-E", "--print"),
    "rscript": ("-e",),
    "npx": ("-c", "--call"),
    "npm": ("-c", "--call"),
    "python": ("-c",),
    "node": ("-e", "--eval", "-p", "--print", "-pe"),
    "deno": ("eval",),
    "bun": ("-e", "--eval"),
    "ruby": ("-e",),
    "perl": ("-e", "-E", "-M", "-m"),
    "php": ("-r", "-B", "-R", "-E", "--run"),
    "lua": ("-e",),
    "osascript": ("-e",),
    "script": ("-c", "--command"),
}
# Options by which a program runs code that is named, and not the file behind them.
_NAMING_FLAGS = {
    "python": ("-m",),
    "node": ("--import", "--require", "-r", "--loader", "--experimental-loader"),
    "bun": ("--preload", "-r"),
    "ruby": ("-r",),
}
# Options with one letter whose value may stand right behind them, so that what follows is no flag.
_WITH_GLUED_VALUE = {
    "python": "mWX",
    "perl": "CDFIix",
    "ruby": "CEFIKTWxir",
    "php": "cdfStz",
    "node": "rC",
}
_CODE_LIKE = re.compile(r"[\s();{}'\"$`<>|&]")
_WARNED_CHARS = 80
# Other names of the same programs.
# They start what is named somewhere behind them; that is what they are for.
_LAUNCHERS = frozenset({"uv", "uvx", "poetry", "pipenv", "hatch", "conda", "docker", "podman"})
_ALIASES = {
    "nodejs": "node",
    "gawk": "awk",
    "mawk": "awk",
    "nawk": "awk",
    "gsed": "sed",
    "pypy": "python",
}
_NPM_RUNNERS = frozenset({"npx", "bunx", "pnpx"})
_PYTHON_RUNNERS = frozenset({"uvx", "pipx"})
_RUNNING_VERBS = (
    *(("npm", "exec"), ("npm", "x"), ("pnpm", "dlx"), ("yarn", "dlx"), ("bun", "x")),
    ("uv", "tool"),
)
_WORDS_BEFORE_THE_PACKAGE = frozenset({"run", "tool", "dlx", "exec", "x"})
_SAYING_NOTHING = _SHELLS.union(
    *(_RAISERS, _WRAPPERS, _LAUNCHERS, _NPM_RUNNERS, _PYTHON_RUNNERS, _CODE_FLAGS),
    *(_WORDS_BEFORE_THE_PACKAGE, {"npm", "pnpm", "yarn", "java", "dotnet"}),
)
# Options whose value says nothing of what is run.
_WITH_DETAIL = frozenset(
    {"-e", "--env", "--env-file", "-v", "--volume", "--mount", "--name", "--network", "-w", "-u"}
    | {"--python", "--directory", "--project"}
)
# Variables by which a program is made to run what is not in it.
_LOADING = frozenset(
    {"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PATH", "PYTHONPATH", "PYTHONSTARTUP"}
    | {"PYTHONHOME", "NODE_OPTIONS", "NODE_PATH", "BASH_ENV", "ENV", "PERL5OPT", "PERL5LIB"}
    | {"RUBYOPT", "RUBYLIB", "JAVA_TOOL_OPTIONS", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF"}
    | {"PYTHONUSERBASE", "GCONV_PATH", "HOME", "USERPROFILE", "XDG_CONFIG_HOME", "PERL5DB"}
    | {"_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH", "DOTNET_STARTUP_HOOKS"}
    | {"DOTNET_ADDITIONAL_DEPS", "GIT_EXEC_PATH", "GIT_SSH", "GIT_PROXY_COMMAND", "GIT_ASKPASS"}
    | {"GIT_PAGER", "GIT_EDITOR", "PAGER", "EDITOR", "PHPRC", "PHP_INI_SCAN_DIR", "OPENSSL_CONF"}
)
_LOADING_FAMILIES = (
    *("DYLD_", "NPM_CONFIG_", "PIP_", "UV_", "BASH_FUNC_", "GIT_CONFIG", "CORECLR_"),
    *("LUA_INIT", "LUA_PATH", "LUA_CPATH"),
)
_VERSION = re.compile(r"\.?\d+(?:\.\d+)*$")
_DYNAMIC_LINKER = re.compile(r"ld[\w.-]*\.so")
_WINDOWS_SUFFIX = re.compile(r"\.(?:exe|cmd|bat|ps1)$", re.IGNORECASE)
# Options of the runners that are followed by a value.
_WITH_VALUE = frozenset({"-p", "--package", "--from", "--with", "--python", "--index-url", "-c"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A server that somebody wants, resolved: `program` is what would be started.

    `file` is where its links lead. Both count: a Python of a virtual environment is a link to that
    of the system, and loads other code.
    """

    name: str
    program: str | None = None
    file: str | None = None
    argv: Sequence[str] = ()
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    remarks: Sequence[str] = ()
    chosen_cwd: bool = False  # whether whoever wants it chose the directory

    def __repr__(self) -> str:
        return f"<ApprovalRequest {self.name} {'command' if self.url is None else 'url'}>"

    def digest(self, key: bytes) -> str:
        """The same for the same program, arguments, variables and directory, and no other."""
        told = {
            "program": self.program,
            "file": self.file,
            "argv": list(self.argv),
            "cwd": self.cwd,
            "env": dict(self.env),
            "url": self.url,
            "headers": {name.lower(): value for name, value in self.headers.items()},
        }
        text = json.dumps(told, sort_keys=True, separators=(",", ":"))
        return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def told(self, *, hides: bool = False) -> list[tuple[str, str]]:
        """What a person is shown, line by line: a label, and what it is."""
        lines = [("Server", shown(self.name))]
        # Before what may be long: nobody reads a warning after 15,000 characters.
        lines += [("Beware", remark) for remark in self.remarks]
        if self.url is not None:
            lines.append(("Address", shown(redact_url(self.url) if hides else self.url)))
            if self.headers:
                lines.append(("Headers", ", ".join(map(shown, self.headers))))
        else:
            argv = redact_argv(self.argv) if hides else self.argv
            lines.append(("Command", " ".join(map(_word, argv))))
            leads = self.file if self.file and self.file != self.program else None
            link = f", a link to {shown(leads)}" if leads else ""
            lines.append(("Program", f"{shown(self.program or '')}{link}"))
            lines.append(("Directory", shown(self.cwd or "")))
            lines.append(("Variables", ", ".join(map(shown, self.env)) or "none of its own"))
        return lines

    def lines(self) -> tuple[str, str, str]:
        """What a person is asked in few lines: what would run, the warning, and its surroundings.

        What the one who wants it has chosen is there whole; what the person's own machine makes of
        it otherwise stands in `told`.
        """
        if self.url is not None:
            warning = "It gets what the model sends to it, and the model reads its answers."
            around = [("headers", self.headers)]
            first = shown(self.url)
        else:
            warning = "It runs as you: it can do whatever you can do."
            around = [("variables", self.env)]
            first = " ".join(map(_word, self.argv))
        third = f"Server {shown_item(self.name)}"
        if self.chosen_cwd or _is_relative(self.argv[:1]):
            third += f", program {shown_item(self.program or '')}, in {shown_item(self.cwd or '')}"
        for label, names in around:
            third += f", {label} {', '.join(map(shown_item, names))}" if names else ""
        return first, " ".join(self.remarks) or warning, third

    def text(self, *, hides: bool = False) -> str:
        """All of it; `hides` leaves secrets out, for what is kept or shown to others."""
        return "\n".join(f"{label}: {what}" for label, what in self.told(hides=hides))


def approval_request_for(
    config: ServerConfig,
    *,
    program: str | None = None,
    file: str | None = None,
    cwd: str | None = None,
    passed: Mapping[str, str] | None = None,
    remarks: Sequence[str] = (),
) -> ApprovalRequest:
    """What a server's settings ask for. `passed` are variables of ours that it gets."""
    if config.url is not None:
        return ApprovalRequest(
            name=config.name, url=config.url, headers=config.headers, remarks=remarks
        )
    argv = [config.command or "", *config.args]
    return ApprovalRequest(
        name=config.name,
        program=program,
        file=file,
        argv=argv,
        cwd=cwd,
        env={**(passed or {}), **config.env},
        chosen_cwd=config.cwd is not None,
        remarks=[*remarks, *_warnings(argv, program, file), *_warned_variables(config.env)],
    )


def shown(text: str) -> str:
    """Text of somebody else on one line of ours: what would break out of it is spelt out."""
    return spelled_out(text)


def shown_item(text: str) -> str:
    """One of several on a line of ours: a comma in it does not begin the next."""
    item = shown(text)
    return '"' + item.replace('"', "'") + '"' if "," in item else item


def _is_relative(argv: Sequence[str]) -> bool:
    """Whether a program is named by a path that depends on the directory."""
    return any(re.search(r"[\\/]", word) and not PurePath(word).is_absolute() for word in argv)


def _word(argument: str) -> str:
    return shown(shell_word(argument)) if argument else "''"


def _warnings(argv: Sequence[str], *programs: str | None) -> Iterator[str]:
    words = list(argv)
    first = 1
    while words and _name(words[0]) in _WRAPPERS:
        yield f"{_name(words[0])} starts another program, the one behind it."
        words = list(dropwhile(_is_option, words[1:]))
        first = len(words)  # its options may have values: any word may be the program
    names = {_name(word) for word in (*words[:first], *filter(None, programs))}
    if names & (_LAUNCHERS | _RAISERS):
        names |= {_name(word) for word in words if not _is_option(word)}
    if names & _RAISERS:
        yield "It runs with the rights of another user."
    if names & _SHELLS:
        yield "It is a shell: it can do anything that its arguments say."
    for name, flags in _CODE_FLAGS.items():
        if name in names and _has_code(name, flags, words[1:]):
            yield f"It runs program text that stands in its arguments, with {name}."
        elif name in names and _has_code(name, _NAMING_FLAGS.get(name, ()), words[1:]):
            yield f"It runs code that its arguments name, with {name}."
    if names & (_NPM_RUNNERS | _PYTHON_RUNNERS) or _runs_a_package(names, words):
        package = _package(words[1:])
        pinned = package is not None and _is_pinned(
            package, npm=not names & (_PYTHON_RUNNERS | {"uv"})
        )
        if not pinned:
            what = _in_short(package or "a package")
            yield f"It downloads and runs {what} in its newest version, because none is named."


def _in_short(text: str) -> str:
    """In a warning, which has to stay short; the whole stands below it."""
    return shown(cut(redact_text(text), _WARNED_CHARS))


def _is_option(word: str) -> bool:
    return word.startswith("-") or "=" in word


def _warned_variables(env: Mapping[str, str]) -> Iterator[str]:
    found = [
        name
        for name in env
        if name.upper() in _LOADING or name.upper().startswith(_LOADING_FAMILIES)
    ]
    if found:
        yield f"{_in_short(', '.join(found))} can make it load other code than its own."


def _runs_a_package(names: set[str], words: Sequence[str]) -> bool:
    """`npm exec`, `pnpm dlx`, `uv tool run` and the like."""
    return any(name in names and words[1:2] == [verb] for name, verb in _RUNNING_VERBS)


def _has_code(name: str, flags: Sequence[str], words: Sequence[str]) -> bool:
    """Whether program text stands in these words: behind a flag, or right in it as in `-cCODE`.

    Behind the first plain word the options are those of a script, or so it seems: there a glued
    value counts only if it looks like code.
    """
    if flags == ("",):
        return bool(words)
    is_script = False
    for word in words:
        if word.partition("=")[0] in flags or word.lower().startswith("data:"):
            return True
        glued = _glued(name, flags, word)
        if glued is not None and (not is_script or not glued or _CODE_LIKE.search(glued)):
            return True
        is_script = is_script or not word.startswith("-")
    return False


def _glued(name: str, flags: Sequence[str], word: str) -> str | None:
    """What stands behind a flag in the same word, as in `-cCODE` and `-Ic`; None without a flag."""
    if not word.startswith("-") or word.startswith("--"):
        return None
    for at, letter in enumerate(word[1:], start=2):
        if f"-{letter}" in flags:
            return word[at:]
        if not letter.isalnum() or letter in _WITH_GLUED_VALUE.get(name, ""):
            return None
    return None


def _name(word: str) -> str:
    """`/usr/bin/python3.11` and `Python.EXE` are python."""
    base = PurePath(re.split(r"[\\/]", word)[-1]).name.lower()
    plain = _VERSION.sub("", _WINDOWS_SUFFIX.sub("", base))
    return "ld.so" if _DYNAMIC_LINKER.fullmatch(plain) else _ALIASES.get(plain, plain)


def words_in(argv: Sequence[str]) -> frozenset[str]:
    """Every word that a command line holds, also inside of paths, addresses and program text."""
    words = (word for argument in argv for word in re.split(r"[^\w.-]+", argument))
    return frozenset(form for word in words for form in (word.lower(), _plain_name(word)) if form)


def main_word(argv: Sequence[str]) -> str:
    """What tells one command line from others: the program that is not there to start another."""
    for before, word in pairwise(["", *argv]):
        name = _plain_name(re.split(r"[@:=]", re.split(r"[\\/]", word)[-1])[0])
        is_detail = _is_option(word) or before in _WITH_DETAIL
        if name and not is_detail and name not in _SAYING_NOTHING:
            return name
    return ""


def _plain_name(word: str) -> str:
    return _name(word).replace("_", "-")


def _package(words: Sequence[str]) -> str | None:
    """What a runner is told to run, or the package that it is taken from."""
    skip = False
    for position, word in enumerate(words):
        if skip:
            skip = False
            continue
        option, _, value = word.partition("=")
        if option in {"--from", "-p", "--package"}:
            return value or (words[position + 1] if position + 1 < len(words) else None)
        if word.startswith("-"):
            skip = word in _WITH_VALUE
        elif word not in _WORDS_BEFORE_THE_PACKAGE:
            return word
    return None


def _is_pinned(package: str, *, npm: bool) -> bool:
    version = package.rpartition("@")[2] if "@" in package[1:] else ""
    if npm:
        return bool(re.match(r"\d", version))
    return "==" in package or bool(re.match(r"\d", version))


# One call of a tool, as a person is asked about it and as their answer is remembered.
#
# What they read is what is sent: the arguments are written anew from what was read, so that a key
# that stands there twice cannot be one thing to them and another to the server.


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallRequest:
    """A call that somebody wants. `target` is what the server is, `definition` what the tool is.

    `sorted_args` are the same arguments in an order that does not depend on who wrote them. `token`
    is the HTTP client that wants it: a yes to its call is none to the same call of another.
    """

    server: str
    tool: str
    args: Raw
    sorted_args: bytes
    target: str
    definition: str
    token: str = ""

    def __repr__(self) -> str:
        return f"<ToolCallRequest {shown(self.server)}/{shown(self.tool)}>"

    def digest(self, key: bytes) -> str:
        """The same for the same server, tool, arguments and token, and no other."""
        token = [self.token] if self.token else []
        return _keyed(key, "call", self.target, self.tool, self.sorted_args.decode(), *token)

    def standing_digest(self, key: bytes) -> str:
        """The same for every call of this tool, as long as its server says the same of it."""
        return _keyed(key, "tool", self.target, self.tool, self.definition)

    def lines(self) -> tuple[str, str]:
        """What a person is shown in a client: who and what, then with which arguments."""
        who = f"Server {shown_item(self.server)}, tool {shown_item(self.tool)}"
        return who, shown(self._arguments())

    def text(self, *, hides: bool = False) -> str:
        """All of it; `hides` leaves secrets out, for what is kept or shown to others."""
        arguments = shown(self._arguments())
        lines = [
            f"Server: {shown(self.server)}",
            f"Tool: {shown(self.tool)}",
            f"Arguments: {redact_text(arguments) if hides else arguments}",
        ]
        return "\n".join([*lines, *([f"HTTP client: {shown(self.token)}"] if self.token else [])])

    def _arguments(self) -> str:
        return bytes(self.args).decode()


def tool_call_request(
    *, server: str, tool: str, args: Raw, target: str, definition: str, token: str = ""
) -> ToolCallRequest:
    try:
        read = decode_value(args)
        written = Raw(msgspec.json.encode(read))
        ordered = msgspec.json.encode(read, order="sorted")
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise InvalidArguments(f"The args of {tool} cannot be read.") from None
    return ToolCallRequest(
        server=server,
        tool=tool,
        args=written,
        sorted_args=ordered,
        target=target,
        definition=definition,
        token=token,
    )


def _keyed(key: bytes, *parts: str) -> str:
    text = json.dumps(parts, separators=(",", ":"))
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
