"""OpenTelemetry: sends spans and a histogram by OTLP over HTTP.

Theory of operation. The thread that writes the records hands them on; another thread makes spans of
them by the semantic conventions for MCP and posts those, some at a time. No call ever waits for it:
what comes faster than the collector takes it, and what the collector refuses, is dropped.
The classes of the protocol are loaded by that thread, with its first batch, and only where
a person has named a collector and installed the extra `otel`.
"""

from __future__ import annotations

from contextlib import closing, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from emceepee_stdio import __version__
from emceepee_stdio.journal.writer import BackgroundWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from emceepee_stdio.trace.request import RequestRecord


_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
_SERVICE = "OTEL_SERVICE_NAME"
_PROTO = "opentelemetry.proto"
_MAX_QUEUED = 2_048  # spans that wait, as many as the SDKs keep
_RECORD_BYTES = 500
_GATHER_S = 1.0  # a collector looks at nothing sooner
_POST_TIMEOUT_S = 5.0
_DRAIN_S = 0.5  # that ending the process may cost
_NS_PER_MS = 1_000_000
# In seconds, as the conventions advise.
_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_MAX_SERIES = 500  # of the histogram; a server may have any number of tools
_DURATION = "mcp.server.operation.duration"

_Attributes = tuple[tuple[str, str], ...]


class Telemetry:
    """Takes records from any thread; see `of`."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], *, service: str) -> None:
        self._endpoint = urlsplit(endpoint)
        self._headers = dict(headers)
        self._service = service
        self._histogram: dict[_Attributes, list[float]] = {}
        self._writer: BackgroundWriter[RequestRecord] = BackgroundWriter(
            "emceepee-otlp",
            self._carry,
            max_lines=_MAX_QUEUED,
            max_bytes=_MAX_QUEUED * _RECORD_BYTES,
            gather_s=_GATHER_S,
        )

    @classmethod
    def of(cls, environ: Mapping[str, str], *, warn: Callable[[str], object]) -> Telemetry | None:
        """Where a collector is named; a word where it cannot be served."""
        endpoint = environ.get(_ENDPOINT, "").strip()
        if not endpoint:
            return None
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            warn(f"{_ENDPOINT} is no http or https address: nothing is sent.")
            return None
        if not _is_installed():
            warn(
                "the extra `otel` is not installed. Install emceepee again with it, in its "
                "checkout: pipx install --force '.[otel]', or uv tool install --force '.[otel]'."
            )
            return None
        service = environ.get(_SERVICE) or "emceepee"
        return cls(endpoint, _pairs(environ.get(_HEADERS, "")), service=service)

    def take(self, records: Sequence[RequestRecord]) -> None:
        for record in records:
            self._writer.offer(record, _RECORD_BYTES)

    def close(self) -> None:
        self._writer.close(_DRAIN_S)

    # In the thread

    def _carry(self, records: list[RequestRecord], _dropped: int) -> None:
        from emceepee_stdio.trace.otlp_messages import (  # noqa: PLC0415 - loads protobuf
            metric_attributes,
            metrics_request,
            trace_request,
        )

        for record in records:
            self._count(record, metric_attributes(record))
        spans = trace_request(records, service=self._service, version=__version__)
        self._post("/v1/traces", spans)
        last_ns = round(max(record.end_ms for record in records) * _NS_PER_MS)
        metrics = metrics_request(
            _DURATION, self._histogram, _BOUNDS, at_ns=last_ns, service=self._service
        )
        self._post("/v1/metrics", metrics)

    def _count(self, record: RequestRecord, key: _Attributes) -> None:
        """Buckets, then the sum; cumulative, so that a lost batch loses no count."""
        if key not in self._histogram and len(self._histogram) >= _MAX_SERIES:
            key = (("mcp.method.name", record.method),)
        series = self._histogram.setdefault(key, [0.0] * (len(_BOUNDS) + 2))
        seconds = record.duration_ms / 1000
        bucket = next((i for i, bound in enumerate(_BOUNDS) if seconds <= bound), len(_BOUNDS))
        series[bucket] += 1
        series[-1] += seconds

    def _post(self, path: str, body: bytes) -> None:
        """What the collector does not take is dropped."""
        import http.client  # noqa: PLC0415 - most sessions have no collector

        where = self._endpoint
        kind = (
            http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
        )
        connection = kind(where.hostname or "", where.port, timeout=_POST_TIMEOUT_S)
        headers = {"Content-Type": "application/x-protobuf", **self._headers}
        with suppress(OSError, http.client.HTTPException, ValueError), closing(connection):
            connection.request("POST", where.path.rstrip("/") + path, body, headers)
            connection.getresponse()


def _is_installed() -> bool:
    try:
        return find_spec(_PROTO) is not None
    except ModuleNotFoundError:
        return False


def _pairs(text: str) -> dict[str, str]:
    """`name=value,name=value`, percent-encoded."""
    found = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {name.strip(): unquote(value.strip()) for name, _, value in found}
