"""Loads the configuration: finds the file, reads it, and makes its servers and settings.

A document that cannot be read as a whole raises `ConfigInvalid`; everything smaller becomes a
warning or a broken server.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import msgspec

from emceepee_stdio.config.entries import Entries
from emceepee_stdio.config.fields import is_list, is_object, nearest
from emceepee_stdio.config.jsonc import Unreadable, overridden, parse
from emceepee_stdio.config.server import ServerConfig, label
from emceepee_stdio.config.settings import (
    Config,
    FixedValues,
    PolicyMode,
    SettingsSection,
    read_settings,
)
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.storage.private_file import Stamp, file_stamp, read_regular

PATH_VARIABLE = "EMCEEPEE_CONFIG"
SECTIONS = ("mcpServers", "servers", "context_servers")

_SETTINGS = "emceepee"
# Strict, because the top level of a client's own file is full of keys that are not ours to judge.
_TYPO_MIN_SIMILARITY = 0.8


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
    document = _parse(text, source)
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


# Where the configuration of a running proxy comes from: its file, and the command line.


@dataclass(repr=False, eq=False)
class Source:
    """Reads the configuration, and tells cheaply whether the file is still the same."""

    named_file: Path | None
    _: KW_ONLY
    environ: Mapping[str, str]
    extra: Sequence[ServerConfig] = ()
    policy: PolicyMode | None = None
    fixed: FixedValues | None = None

    def __repr__(self) -> str:
        return f"<Source {self.named_file or 'default'} and {len(self.extra)} more>"

    @property
    def named(self) -> tuple[str, ...] | None:
        """The command line that names this file; None where it names servers of its own."""
        if self.extra:
            return None
        return () if self.named_file is None else ("--config", str(self.named_file))

    def gives(self, name: str) -> bool:
        """Whether the command line gives this server, whatever the file says of the name."""
        return any(server.name == name for server in self.extra)

    def path(self) -> Path:
        """The file, whether it is there or not."""
        return default_path(self.environ) if self.named_file is None else self.named_file

    def stamp(self) -> Stamp | None:
        """Changes whenever the file does; None while there is none."""
        return file_stamp(self.path())

    def read(self) -> Config:
        """What the file says, with what the command line says in the place of it."""
        return self.beside(load_file(self.named_file, environ=self.environ))

    def beside(self, config: Config) -> Config:
        given = {server.name for server in self.extra}
        kept = tuple(server for server in config.servers if server.name not in given)
        off = tuple(server for server in config.disabled if server.name not in given)
        settings = msgspec.structs.replace(config.settings, fixed=self.fixed or FixedValues())
        if self.policy is not None:
            policy = msgspec.structs.replace(settings.policy, mode=self.policy)
            settings = msgspec.structs.replace(settings, policy=policy)
        return msgspec.structs.replace(
            config, servers=(*kept, *self.extra), disabled=off, settings=settings
        )
