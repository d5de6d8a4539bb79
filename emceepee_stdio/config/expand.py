"""References to environment variables in the values of the configuration.

`${NAME}` and `${NAME:-default}` as in a shell, `${env:NAME}` as editors write it, and `$${` for a
plain `${`. What a variable holds is taken as it is: it is never expanded again.
"""

import re
from collections.abc import Mapping

from emceepee_stdio.config.fields import is_list, is_object
from emceepee_stdio.config.server import label
from emceepee_stdio.errors import ConfigInvalid

__all__ = ["UnsetVariable", "expand"]

_REFERENCE = re.compile(
    r"(?P<escaped>\$\$\{)"
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


def expand(value: object, *, environ: Mapping[str, str], path: str) -> object:
    """The value with every reference in its strings replaced; keys stay as they are."""
    if isinstance(value, str):
        return _expand_text(value, environ=environ, path=path)
    if is_list(value):
        return [
            expand(item, environ=environ, path=f"{path}[{index}]")
            for index, item in enumerate(value)
        ]
    if is_object(value):
        return {
            key: expand(item, environ=environ, path=f"{path}.{label(key)}")
            for key, item in value.items()
        }
    return value


def _expand_text(text: str, *, environ: Mapping[str, str], path: str) -> str:
    def replacement(reference: re.Match[str]) -> str:
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

    return _REFERENCE.sub(replacement, text)
