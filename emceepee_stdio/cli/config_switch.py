"""`emceepee config enable` and `disable`: keep an entry, and say whether it is used."""

import os
from pathlib import Path

from emceepee_stdio.cli.config_change import carry_out, config_file, place_of
from emceepee_stdio.cli.configured_servers import state_of
from emceepee_stdio.cli.install import DryRunOption
from emceepee_stdio.cli.secret_values import ShowSecretsOption
from emceepee_stdio.cli.shared_options import ConfigOption, ServerArgument
from emceepee_stdio.config import jsonc, load_file
from emceepee_stdio.config.edit import Change, EditRefused, guard, read_file
from emceepee_stdio.config.entries import OFF_KEYS, is_off
from emceepee_stdio.config.fields import is_object
from emceepee_stdio.config.own_file import ConfigLocation
from emceepee_stdio.config.server import label

__all__ = ["disable", "enable"]


def enable(
    name: ServerArgument,
    *,
    dry_run: DryRunOption = False,
    show_secrets: ShowSecretsOption = False,
    config: ConfigOption = None,
) -> None:
    """Use a server again that was disabled.

    Running proxies connect to it within a second or two.

    Example: emceepee config enable github
    """
    change = _change(name, config, off=False)
    if change.kind == "unchanged" and _is_broken(name, config):
        raise EditRefused(
            f"{label(name)} is not disabled, but broken.", hint="See why: emceepee config check"
        )
    carry_out(change, f"Enabled {label(name)}", dry_run=dry_run, show_secrets=show_secrets)


def disable(
    name: ServerArgument,
    *,
    dry_run: DryRunOption = False,
    show_secrets: ShowSecretsOption = False,
    config: ConfigOption = None,
) -> None:
    """Stop using a server, and keep its entry.

    Running proxies stop it within a second or two.

    Example: emceepee config disable github
    """
    change = _change(name, config, off=True)
    carry_out(change, f"Disabled {label(name)}", dry_run=dry_run, show_secrets=show_secrets)


def _is_broken(name: str, config: Path | None) -> bool:
    return state_of(name, load_file(config, environ=os.environ))[0] == "broken"


def _change(name: str, config: Path | None, *, off: bool) -> Change:
    file = config_file(config)
    text = read_file(file) or ""
    with guard(file):
        place = place_of(text, name)
        after = _switched(text, place, off=off)
    return Change(path=file, before=text, after=after)


def _switched(text: str, place: ConfigLocation, *, off: bool) -> str:
    if not is_object(place.entry):
        raise EditRefused(
            f"The entry of {label(place.name)} is no object.",
            hint=f"Nothing was changed; replace it: emceepee config add {place.name} --replace …",
        )
    present = {key: value for key, value in OFF_KEYS.items() if key in place.entry}
    if not off:
        for key in present:
            text = jsonc.remove(text, (*place.steps, key))
        return text
    if is_off(place.entry):
        return text
    key = next(iter(present), "disabled")
    return jsonc.put(text, (*place.steps, key), OFF_KEYS[key])
