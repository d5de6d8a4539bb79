"""The proxy's own settings, as the `emceepee` object of the file gives them.

A value that does not fit costs only itself: its default is used, and a warning says so.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from emceepee_stdio.config.expand import expand
from emceepee_stdio.config.fields import fit, given_fields, hints_of
from emceepee_stdio.config.fixed import FORMER_LIMITS, FORMER_RESTART, FORMER_TIMEOUTS
from emceepee_stdio.config.model import Limits, Settings, SettingsSection, Timeouts
from emceepee_stdio.config.server import RestartConfig
from emceepee_stdio.errors import ConfigInvalid

__all__ = ["read_settings"]

_FORMER: Mapping[type[Struct], Mapping[str, str]] = {
    Timeouts: FORMER_TIMEOUTS,
    Limits: FORMER_LIMITS,
    RestartConfig: FORMER_RESTART,
}


def read_settings(section: object, *, environ: Mapping[str, str], warnings: list[str]) -> Settings:
    if section is None:
        return Settings()
    try:
        fitting = _fitting(
            SettingsSection, section, path="emceepee", environ=environ, warnings=warnings
        )
    except ConfigInvalid as error:
        warnings.append(_fallback(error))
        return Settings()
    return msgspec.convert(fitting, Settings)


def _fitting(
    struct: type[Struct],
    section: object,
    *,
    path: str,
    environ: Mapping[str, str],
    warnings: list[str],
) -> dict[str, object]:
    """The part of the section that fits the struct; raises if it is no object at all."""
    hints = hints_of(struct)
    members = fit(section, dict[str, object], path=path)
    fitting: dict[str, object] = {}
    former = _FORMER.get(struct)
    found = given_fields(members, known=hints, former=former, path=path, warnings=warnings)
    for field, (key, value) in found.items():
        hint, where = hints[field], f"{path}.{key}"
        try:
            if _is_section(hint):
                fitting[field] = _fitting(
                    hint, value, path=where, environ=environ, warnings=warnings
                )
            else:
                fitting[field] = fit(expand(value, environ=environ, path=where), hint, path=where)
        except ConfigInvalid as error:
            warnings.append(_fallback(error))
    return fitting


def _fallback(error: ConfigInvalid) -> str:
    return f"{error.fact} The default is used."


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)
