"""Reads the configuration: from text, or from the file that the person or the platform names.

A document that cannot be read as a whole raises `ConfigInvalid`; everything smaller becomes a
warning or a broken server.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from emceepee_stdio.config.entries import Entries
from emceepee_stdio.config.fields import is_list, is_object, nearest
from emceepee_stdio.config.jsonc_tree import Unreadable, overridden, parse
from emceepee_stdio.config.model import Config, SettingsSection
from emceepee_stdio.config.regular_file import read_regular
from emceepee_stdio.config.server import label
from emceepee_stdio.config.settings import read_settings
from emceepee_stdio.errors import ConfigInvalid

__all__ = ["PATH_VARIABLE", "SECTIONS", "default_path", "load_file", "load_text"]

PATH_VARIABLE = "EMCEEPEE_CONFIG"
SECTIONS = ("mcpServers", "servers", "context_servers")

_SETTINGS = "emceepee"
# Strict, because the top level of a client's own file is full of keys that are not ours to judge.
_TYPO_MIN_SIMILARITY = 0.8
_EXCERPT_CHARS = 40  # on each side of the mistake: a line of a terminal
# In a broken document only the words of the format and punctuation are sure to be no secrets.


def default_path(environ: Mapping[str, str]) -> Path:
    """The file that EMCEEPEE_CONFIG names, else the platform's."""
    named = environ.get(PATH_VARIABLE)
    if not named:
        return _platform_path()
    try:
        return Path(named).expanduser()
    except RuntimeError:
        raise ConfigInvalid(f"{PATH_VARIABLE} names a home directory that is unknown.") from None


def load_file(path: Path | None = None, *, environ: Mapping[str, str]) -> Config:
    """Read the named file, or the default one, which need not exist."""
    path = default_path(environ) if path is None else path
    try:
        text = read_regular(path).decode("utf-8")
    except FileNotFoundError:
        if path == _platform_path():
            return Config()
        raise ConfigInvalid(
            f"The configuration file {path} does not exist.",
            hint=f"Create it, or name another one with --config or {PATH_VARIABLE}.",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigInvalid(f"{path} is not UTF-8 text at byte {error.start}.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name is not valid"
        raise ConfigInvalid(
            f"{path} cannot be read: {reason}.",
            hint="Check the permissions of the file and of the directories that it is in.",
        ) from None
    return load_text(text, environ=environ, source=str(path))


def load_text(text: str, *, environ: Mapping[str, str], source: str) -> Config:
    """Read a document; `source` is what messages call it."""
    return _config(_parse(text, source), environ=environ, source=source)


def _platform_path() -> Path:
    from platformdirs import user_config_path  # noqa: PLC0415 - costs start-up, often not needed

    return user_config_path("emceepee", appauthor=False) / "config.json"


def _parse(text: str, source: str) -> object:
    try:
        root = parse(text)
    except Unreadable as error:
        raise ConfigInvalid(
            f"{source} is not valid JSON at line {error.line}, column {error.column}: "
            f"{error.reason}.",
            hint="Fix it there; comments and a comma after the last item are allowed.",
        ) from None
    if root is None:
        raise ConfigInvalid(
            f"{source} is empty; expected a JSON object.", hint="Write {} into it, or remove it."
        )
    return root.value


def _config(document: object, *, environ: Mapping[str, str], source: str) -> Config:
    if not is_object(document):
        raise ConfigInvalid(f"{source}: expected a JSON object at the top.")
    entries = Entries(environ)
    for section in SECTIONS:
        _read_section(document.get(section), entries, section=section, source=source)
    warnings = [*_typos(document), *entries.warnings]
    settings = read_settings(document.get(_SETTINGS), environ=environ, warnings=warnings)
    return Config(
        servers=tuple(entries.servers),
        disabled=tuple(entries.disabled),
        settings=settings,
        warnings=tuple(warnings),
    )


def _read_section(value: object, entries: Entries, *, section: str, source: str) -> None:
    if is_object(value):
        for name, entry in value.items():
            entries.add(name, entry, section=section)
        for name in dict.fromkeys(name for name, _ in overridden(value)):
            entries.warnings.append(
                f"{section}.{label(name)} is written more than once: the last one is used."
            )
    elif is_list(value):
        for index, entry in enumerate(value):
            name = entry.get("name") if is_object(entry) else None
            if isinstance(name, str):
                entries.add(name, entry, section=section)
            else:
                entries.add_nameless(f"{section}[{index}]", entry)
    elif value is not None:
        raise ConfigInvalid(f"{source}: {section}: expected servers by name, or a list of them.")


def _typos(document: Mapping[str, object]) -> Iterator[str]:
    known = (*SECTIONS, _SETTINGS)
    for key in document:
        if key in SettingsSection.__struct_fields__:
            yield f"{label(key)} is ignored where it stands: it belongs inside '{_SETTINGS}'."
        elif key not in known:
            near = nearest(key, known, cutoff=_TYPO_MIN_SIMILARITY)
            if near:
                yield f"{label(key)} is not a known key and is ignored; did you mean '{near}'?"
