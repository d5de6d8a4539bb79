"""References in the values of the configuration: to environment variables, and to the keyring.

`${NAME}` and `${NAME:-default}` as in a shell, `${env:NAME}` as editors write it, and `$${` for a
plain `${`. What a variable holds is taken as it is: it is never expanded again.

`${keyring:NAME}` is looked up when the server connects, because a keyring may be locked. Until then
the whole text is a template: its references to the keyring stand as they are, and every other `${`
in it is written `$${`. Where a template may stand, the caller says so (`in_keyring`).
"""

import re
from collections.abc import Mapping

from emceepee_stdio.config.fields import is_list, is_object
from emceepee_stdio.config.server import label
from emceepee_stdio.errors import ConfigInvalid

__all__ = [
    "KEYRING_NAME",
    "UnsetVariable",
    "expand",
    "fill_in",
    "is_template",
    "keyring_names",
    "keyring_reference",
]

KEYRING_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_REFERENCE = re.compile(
    r"(?P<escaped>\$\$\{)"
    rf"|\$\{{keyring:(?P<keyring>{KEYRING_NAME.pattern})\}}"
    r"|\$\{(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\}"
    r"|(?P<malformed>\$\{)"
)


class UnsetVariable(ConfigInvalid):
    """A value needs a variable that the environment does not have."""

    def __init__(self, variable: str, path: str) -> None:
        super().__init__(
            f"{path} needs the environment variable {variable}, which is not set; "
            "set it, or write a default behind its name: ${NAME:-default}."
        )
        self.variable = variable
        self.path = path


def keyring_reference(name: str) -> str:
    """How the configuration refers to a secret in the keyring."""
    return f"${{keyring:{name}}}"


def keyring_names(text: str) -> list[str]:
    """The secrets in the keyring that a text refers to."""
    return [found["keyring"] for found in _REFERENCE.finditer(text) if found["keyring"]]


def is_template(value: object) -> bool:
    return isinstance(value, str) and bool(keyring_names(value))


def fill_in(template: str, secrets: Mapping[str, str]) -> str:
    """The text that a template stands for; what a secret holds is never expanded again."""

    def replacement(reference: re.Match[str]) -> str:
        return secrets[reference["keyring"]] if reference["keyring"] else "${"

    return _REFERENCE.sub(replacement, template)


def expand(
    value: object, *, environ: Mapping[str, str], path: str, in_keyring: bool = False
) -> object:
    """The value with every reference in its strings replaced; keys stay as they are."""
    if isinstance(value, str):
        return _expand_text(value, environ=environ, path=path, in_keyring=in_keyring)
    if is_list(value):
        return [
            expand(item, environ=environ, path=f"{path}[{index}]", in_keyring=in_keyring)
            for index, item in enumerate(value)
        ]
    if is_object(value):
        return {
            key: expand(item, environ=environ, path=f"{path}.{label(key)}", in_keyring=in_keyring)
            for key, item in value.items()
        }
    return value


def _expand_text(text: str, *, environ: Mapping[str, str], path: str, in_keyring: bool) -> str:
    if not is_template(text):
        return _REFERENCE.sub(lambda found: _held(found, environ, path), text)
    if not in_keyring:
        raise ConfigInvalid(
            f"{path} refers to the keyring; only env, headers, url and oauth.client_secret of a "
            "server may do that."
        )

    def replacement(reference: re.Match[str]) -> str:
        if reference["keyring"]:
            return reference[0]
        return _held(reference, environ, path).replace("${", "$${")

    return _REFERENCE.sub(replacement, text)


def _held(reference: re.Match[str], environ: Mapping[str, str], path: str) -> str:
    if reference["escaped"]:
        return "${"
    if reference["malformed"]:
        raise ConfigInvalid(
            f"{path} has a ${{ that is neither ${{NAME}} nor ${{NAME:-default}}; "
            "write $${ for a plain ${."
        )
    name, default = reference["name"], reference["default"]
    held = environ.get(name)
    if default is not None:
        return held or default
    if held is None:
        raise UnsetVariable(name, path)
    return held
