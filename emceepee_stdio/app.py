"""The composition root: makes configuration, journal, session and front, and runs them."""

import gc
import os
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import anyio

from emceepee_stdio.auth.token_store import default_token_directory
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.load import Source
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Config, FixedValues, PolicyMode, Settings
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.front.hello import Handover
from emceepee_stdio.front.stdio_front import serve
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import (
    Journal,
    JournalEvent,
    Level,
    default_directory,
    write_to_stderr,
)
from emceepee_stdio.journal.journal_files import JournalFile
from emceepee_stdio.session.catalogue_files import default_catalogue_directory
from emceepee_stdio.session.client_link import own_roots
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Environment
from emceepee_stdio.trace.request_log import RequestLog
from emceepee_stdio.trace.telemetry import Telemetry
from emceepee_stdio.trust.store import default_trust_directory
from emceepee_stdio.wire.environment import journal_session
from emceepee_stdio.wire.orphans import expect_orphans
from emceepee_stdio.wire.own_process import give_back_large_blocks, protect_memory
from emceepee_stdio.wire.process_guard import ProcessGuard


def run(
    handover: Handover,
    wire_in: int,
    wire_out: int,
    *,
    config_path: Path | None = None,
    extra: Sequence[ServerConfig] = (),
    policy: PolicyMode | None = None,
    fixed: FixedValues | None = None,
) -> int:
    """Serve the greeted client; the exit code."""
    protect_memory()
    source = Source(config_path, environ=os.environ, extra=extra, policy=policy, fixed=fixed)
    with composed(source, os.environ) as runtime:
        runtime.surface.recall(handover.protocol.greeting.records)
        give_back_large_blocks()
        expect_orphans()
        # What is there by now stays to the end: nobody has to look through it again and again.
        gc.freeze()
        anyio.run(
            serve,
            runtime,
            handover,
            wire_in,
            wire_out,
            backend_options={"use_uvloop": _has_uvloop()},
        )
    return 0


@contextmanager
def composed(
    source: Source,
    environ: Mapping[str, str],
    *,
    cwd: Path | None = None,
    home: Path | None = None,
    guard: type[ProcessGuard] = ProcessGuard,
    stderr: Callable[[bytes], object] = write_to_stderr,
    clock: Clock | None = None,
) -> Generator[Runtime]:
    """A session that is ready to run, in our own directories unless others are given."""
    clock = clock or Clock()
    ids = Ids(clock)
    stamp = source.stamp()
    config = _load(source)
    session = journal_session(environ) or ids()
    logging = config.settings.logging
    log_file = partial(
        JournalFile,
        Path(logging.directory) if logging.directory else default_directory(environ),
        session=session,
        clock=clock,
        max_bytes=logging.max_bytes,
        files=logging.files,
        max_age_days=logging.max_age_days,
    )
    journal = Journal(log_file(kind="emceepee"), level=Level(logging.level), stderr=stderr)
    telemetry = Telemetry.of(
        environ, warn=lambda why: journal.record(JournalEvent.TELEMETRY_UNAVAILABLE, reason=why)
    )
    trace = RequestLog(
        log_file(kind="requests"),
        session=session,
        clock=clock,
        keeps_payloads=logging.payloads,
        telemetry=telemetry,
    )
    environment = environment_of(config.settings, environ, cwd=cwd, home=home)
    try:
        yield Runtime(
            config,
            clock=clock,
            ids=ids,
            journal=journal,
            trace=trace,
            environment=replace(environment, guard=guard),
            source=source,
            stamp=stamp,
        )
    finally:
        trace.close()
        journal.close()


def _load(source: Source) -> Config:
    """A broken file costs its servers, not the proxy: the client is told, and goes on."""
    try:
        return source.read()
    except ProxyError as error:
        return source.beside(Config(problem=str(error)))


def environment_of(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    cwd: Path | None = None,
    home: Path | None = None,
) -> Environment:
    """What servers get to see of this process."""
    cwd, home = cwd or _cwd(), home or _home()
    return Environment(
        environ=environ,
        cwd=cwd,
        home=home,
        uniform=random.uniform,
        trust=default_trust_directory(environ),
        roots=own_roots(settings.roots, environ=environ, cwd=cwd, home=home),
        tokens=default_token_directory(environ),
        catalogue=default_catalogue_directory(environ),
    )


def _cwd() -> Path:
    try:
        return Path.cwd()
    except OSError:
        return Path("/")


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def _has_uvloop() -> bool:
    return find_spec("uvloop") is not None
