"""Entries that would start this proxy again, behind itself.

Looks through the common ways to start a program: by its path, as a Python module, by a package
runner, and behind `env` or `cmd /c`. What gets past is stopped by the depth that children inherit.
"""

import re
from collections.abc import Sequence

__all__ = ["RESERVED_NAME", "starts_emceepee"]

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
