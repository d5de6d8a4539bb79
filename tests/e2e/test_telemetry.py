"""OpenTelemetry: a small collector, with the official classes, gets every request as a span."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.e2e.client import WAIT_S, Setting, proxy, received_by_server, server

pytestmark = [pytest.mark.real, pytest.mark.fresh]  # what a process loads and sends

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(ThreadingHTTPServer):
    """Keeps what is posted to it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: list[Span] = []
        self.durations: dict[str, tuple[int, float]] = {}
        self.headers: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
            return
        assert path == "/v1/metrics"
        [resource] = ExportMetricsServiceRequest.FromString(body).resource_metrics
        [metric] = resource.scope_metrics[0].metrics
        assert (metric.name, metric.unit) == ("mcp.server.operation.duration", "s")
        for point in metric.histogram.data_points:
            assert sum(point.bucket_counts) == point.count
            self.durations[facts(point)["gen_ai.tool.name"]] = (point.count, point.sum)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        collector: Any = self.server
        collector.headers.append(self.headers["x-key"])
        collector.take(self.path, body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def facts(of: Any) -> dict[str, str]:
    return {entry.key: entry.value.string_value for entry in of.attributes}


@contextmanager
def collected_at(monkeypatch: pytest.MonkeyPatch, url: str) -> Iterator[None]:
    environ = Setting.environ
    more = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b"}
    with monkeypatch.context() as patch:
        patch.setattr(Setting, "environ", lambda made: {**environ(made), **more})
        yield


async def until(condition: Any) -> None:
    with anyio.fail_after(WAIT_S):
        while not condition():
            await anyio.sleep(0.01)


async def test_each_request_is_a_span_by_the_conventions_and_its_duration_is_counted(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Setting(home=tmp_path / "home", servers={"s": server(log=tmp_path / "log")})
    with collected_at(monkeypatch, collector.url):
        async with proxy(made) as client:
            await client.connected()
            call = {
                "name": "execute_tool",
                "arguments": {"server": "s", "tool": "echo", "args": {"message": "x"}},
            }
            await client.request("tools/call", {**call, "_meta": {"traceparent": PARENT}})
            await client.execute("fail")
            begun = await client.execute("slow", args={"seconds": 0.1}, timeout_ms=0)
            await client.call("get_task_result", task_id=begun.task)
            await until(lambda: len(collector.spans) >= len(made.records()) > 5)
            await until(lambda: "slow" in collector.durations)
    spans = {(span.name, facts(span)["emceepee.outcome"]): span for span in collector.spans}
    echo = spans["tools/call echo", "ok"]
    assert echo.kind == Span.SPAN_KIND_SERVER
    assert echo.trace_id.hex() == PARENT.split("-")[1]
    assert echo.parent_span_id.hex() == PARENT.split("-")[2]
    assert (
        facts(echo).items()
        >= {
            "mcp.method.name": "tools/call",
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "echo",
            "emceepee.server.name": "s",
            "network.transport": "pipe",
        }.items()
    )
    failed = spans["tools/call fail", "tool_error"]
    assert (failed.status.code, facts(failed)["error.type"]) == (2, "tool_error")
    promoted, task = spans["tools/call slow", "promoted"], spans["tools/call slow", "ok"]
    assert (task.trace_id, task.parent_span_id) == (promoted.trace_id, promoted.span_id)
    assert task.end_time_unix_nano - task.start_time_unix_nano > 50_000_000
    assert collector.durations["fail"][0] == 1
    assert set(collector.headers) == {"a b"}
    # Where the client named no trace, the server was told the one that begins with our span.
    told = [
        json.loads(json.dumps(line["message"]["params"]["_meta"]["traceparent"]))
        for line in received_by_server(tmp_path / "log")
        if line["message"].get("method") == "tools/call"
    ]
    assert told[0] == PARENT
    assert told[1] == f"00-{failed.trace_id.hex()}-{failed.span_id.hex()}-01"


async def test_a_collector_that_is_not_there_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        made = Setting(home=tmp_path / "home", servers={"s": server()})
        with collected_at(monkeypatch, f"http://127.0.0.1:{taken.getsockname()[1]}"):
            async with proxy(made) as client:
                await client.connected()
                assert not (await client.execute("echo", args={"message": "x"})).is_error
    assert [r["outcome"] for r in made.records() if r.get("server_tool") == "echo"] == ["ok"]


async def test_an_address_that_nothing_can_be_sent_to_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Setting(home=tmp_path / "home", servers={"s": server()})
    with collected_at(monkeypatch, "grpc.example:4317"):
        async with proxy(made) as client:
            await client.connected()
    [line] = [line for line in made.journal() if line["event"] == "telemetry_unavailable"]
    assert line["level"] == "warning"
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in line["data"]["reason"]


async def test_nothing_of_it_is_loaded_where_no_collector_is_named(tmp_path: Path) -> None:
    made = Setting(home=tmp_path / "home", servers={"s": server(log=tmp_path / "log")})
    async with proxy(made) as client:
        await client.connected()
        await client.execute("echo", args={"message": "x"})
        maps = Path(f"/proc/{client.process.pid}/maps").read_text()
    assert "google/_upb" not in maps
    [call] = [
        line["message"]
        for line in received_by_server(tmp_path / "log")
        if line["message"].get("method") == "tools/call"
    ]
    assert "traceparent" not in call["params"].get("_meta", {})
