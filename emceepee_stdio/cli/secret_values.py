"""Secrets in what a command shows: hidden, unless the person asks for them at a terminal."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, cast

import typer

from emceepee_stdio.cli.terminal import Terminal, asks_for_json
from emceepee_stdio.config.edit import Change, EditRefused
from emceepee_stdio.config.fields import is_list, is_object

__all__ = [
    "HIDDEN",
    "ShowSecretsOption",
    "entry_secrets",
    "require_terminal",
    "show_changes",
    "shown_entry",
]

ShowSecretsOption = Annotated[
    bool, typer.Option("--show-secrets", help="Show secrets as well; at a terminal only.")
]
_STREAMS = (0, 1, 2)
# Fields in which a text that is nothing but a reference is shown; a default may be a secret.
_REFERRING = frozenset({"env", "environment", "headers", "oauth"})
_REFERENCE = re.compile(r"(?:Bearer )?\$\{(?:(?:env|keyring):)?[\w.-]+\}", re.ASCII)
# Words, numbers and short mixtures of both, in a row: nothing that was made at random.
_PART = r"(?:[A-Za-z]{1,12}|\d{1,8}|[A-Za-z0-9]{1,3})"
_HARMLESS_FORM = re.compile(rf"(?=.{{1,40}}\Z){_PART}(?:[-_.:/ ]{_PART})*")
HIDDEN = "Secrets are hidden; --show-secrets shows them, at a terminal."


def require_terminal(*, show_secrets: bool) -> None:
    """Only a person may see them: what goes into a pipe is read by a program, or kept."""
    if show_secrets and not all(map(os.isatty, _STREAMS)):
        raise EditRefused(
            "Secrets are shown at a terminal only.",
            hint="Run the command yourself, at a terminal, or leave --show-secrets out.",
        )


def show_changes(
    changes: Sequence[Change], entries: Iterable[object], terminal: Terminal, *, show_secrets: bool
) -> None:
    """Each change as a diff. `entries` are the servers in these files, whose secrets are hidden."""
    require_terminal(show_secrets=show_secrets)
    diffs = [change.diff() for change in changes]
    shown = diffs if show_secrets else _without_secrets(diffs, entries)
    if asks_for_json():
        told = [
            {"path": str(change.path), "change": change.kind, "diff": text}
            for change, text in zip(changes, shown, strict=True)
        ]
        terminal.document({"changes": told})
        return
    for text in shown:
        terminal.diff(text)
    if shown != diffs:
        terminal.note(HIDDEN)


def shown_entry(entry: object, entries: Iterable[object]) -> object:
    """An entry without what any of `entries` holds as a secret, and whatever may be one.

    A reference is none. Of headers, only the names and the references are shown.
    """
    from emceepee_stdio.journal import Secrets, redact  # noqa: PLC0415 - see below
    from emceepee_stdio.journal.redact import MARKER  # noqa: PLC0415 - see below

    known = Secrets()
    known.add(one for each in entries for one in entry_secrets(each) if "${" not in one)
    shown = redact(entry)
    if not is_object(shown) or not is_object(entry):
        return _masked(shown, known.mask)
    if is_object(entry.get("tools")):
        shown["tools"] = entry["tools"]  # names of tools, of which some sound like secrets
    for key in _REFERRING & shown.keys():
        given, hidden = entry[key], shown[key]
        if is_object(given) and is_object(hidden):
            rest = dict.fromkeys(given, MARKER) if key == "headers" else hidden
            shown[key] = rest | {name: one for name, one in given.items() if _is_reference(one)}
    return _masked(shown, known.mask)


def _is_reference(value: object) -> bool:
    return isinstance(value, str) and bool(_REFERENCE.fullmatch(value))


def _is_harmless(name: str, value: str) -> bool:
    """`REGION=eu-central-1`: both its name and its form say that it is no secret."""
    from emceepee_stdio.journal.secret_names import is_setting_name  # noqa: PLC0415 - see below

    return is_setting_name(name) and bool(_HARMLESS_FORM.fullmatch(value))


def _masked(shown: object, mask: Callable[[str], str]) -> object:
    if is_object(shown):
        return {name: _masked(value, mask) for name, value in shown.items()}
    if is_list(shown):
        return [_masked(value, mask) for value in shown]
    return mask(shown) if isinstance(shown, str) else shown


def _without_secrets(diffs: Sequence[str], entries: Iterable[object]) -> list[str]:
    # The patterns cost start-up, and are only for a dry run.
    from emceepee_stdio.journal import Secrets, redact_text  # noqa: PLC0415 - see above

    known = Secrets()
    known.add(secret for entry in entries for secret in entry_secrets(entry))

    def shown(line: str) -> str:
        # What a line only opens, is hidden or shown line by line.
        head = line.rstrip("{[ \t\r\n")
        return redact_text(head) + line[len(head) :]

    return ["".join(map(shown, known.mask(text).splitlines(keepends=True))) for text in diffs]


def entry_secrets(value: object) -> Iterator[str]:
    """In an entry of any client: variables, headers, addresses and arguments, at any depth."""
    from emceepee_stdio.journal import given_secrets  # noqa: PLC0415 - see the caller

    if is_list(value):
        yield from given_secrets(argv=[item for item in value if isinstance(item, str)])
    items = value.items() if is_object(value) else enumerate(value) if is_list(value) else ()
    for key, item in items:
        name = str(key).lower()
        if is_object(item) and name.endswith(("env", "headers")):
            is_env = name.endswith("env")
            strings = {
                n: v
                for n, v in item.items()
                if isinstance(v, str) and not (is_env and _is_harmless(n, v))
            }
            yield from given_secrets(env=strings) if is_env else given_secrets(headers=strings)
        elif isinstance(item, str) and name.endswith("url"):
            yield from given_secrets(url=item)
        else:
            yield from entry_secrets(cast("object", item))
