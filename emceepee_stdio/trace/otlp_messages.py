"""Records as OTLP messages; only `telemetry` loads this, because it loads protobuf."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from emceepee_stdio.trace.request import RequestRecord
from emceepee_stdio.trace.trace_reader import label_of

_NS_PER_MS = 1_000_000
_SCOPE = InstrumentationScope(name="emceepee")


def trace_request(records: Iterable[RequestRecord], *, service: str, version: str) -> bytes:
    scope = InstrumentationScope(name="emceepee", version=version)
    spans = ScopeSpans(scope=scope, spans=[_span(record) for record in records])
    resource = ResourceSpans(resource=_resource(service), scope_spans=[spans])
    return ExportTraceServiceRequest(resource_spans=[resource]).SerializeToString()


def metrics_request(
    name: str,
    series: Mapping[tuple[tuple[str, str], ...], Sequence[float]],
    bounds: Sequence[float],
    *,
    at_ns: int,
    service: str,
) -> bytes:
    """One histogram; each series has its buckets, and its sum at the end."""
    points = [
        metrics_pb2.HistogramDataPoint(
            attributes=_attributes(dict(attributes)),
            time_unix_nano=at_ns,
            count=round(sum(values[:-1])),
            sum=values[-1],
            bucket_counts=[round(value) for value in values[:-1]],
            explicit_bounds=bounds,
        )
        for attributes, values in series.items()
    ]
    histogram = metrics_pb2.Histogram(
        data_points=points, aggregation_temporality=metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
    )
    metric = metrics_pb2.Metric(name=name, unit="s", histogram=histogram)
    scope = metrics_pb2.ScopeMetrics(scope=_SCOPE, metrics=[metric])
    resource = metrics_pb2.ResourceMetrics(resource=_resource(service), scope_metrics=[scope])
    return ExportMetricsServiceRequest(resource_metrics=[resource]).SerializeToString()


def _span(record: RequestRecord) -> Span:
    """By the conventions: `{method} {tool}`, the client's span as its parent where it named one."""
    is_call = record.method == "tools/call"
    trace_id, parent_id, span_id = _ids(record)
    start_ns = round(record.start_ms * _NS_PER_MS)
    at_ns = start_ns
    events: list[Span.Event] = []
    for name, ms in record.legs:
        events.append(Span.Event(name=name, time_unix_nano=at_ns))
        at_ns += round(ms * _NS_PER_MS)
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=parent_id,
        name=f"{record.method} {label_of(record)}" if is_call else record.method,
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=round(record.end_ms * _NS_PER_MS),
        attributes=_attributes(_facts(record)),
        events=events,
        status=Status(code=Status.STATUS_CODE_ERROR if record.failed else Status.STATUS_CODE_UNSET),
    )


def _ids(record: RequestRecord) -> tuple[bytes, bytes, bytes]:
    """Of the trace, of the span above, and of this one.

    The span of a task is below that of its request. Where emceepee began the trace, the server was
    told the span of the request itself.
    """
    own = _digest(record.id)
    request = record.parent if record.kind == "task" and record.parent else None
    above = b"" if request is None else _digest(request)[:8]
    if record.traceparent is None:
        return _digest(request or record.id)[8:24], above, own[:8]
    _, trace_hex, span_hex, _ = record.traceparent.split("-")
    trace_id, told = bytes.fromhex(trace_hex), bytes.fromhex(span_hex)
    if record.begins_trace:
        return (trace_id, b"", told) if request is None else (trace_id, told, own[:8])
    return trace_id, told if request is None else above, own[:8]


def _digest(record_id: str) -> bytes:
    return hashlib.sha256(record_id.encode()).digest()


def metric_attributes(record: RequestRecord) -> tuple[tuple[str, str], ...]:
    """What tells series apart: few values each."""
    found = [("mcp.method.name", record.method), ("network.transport", "pipe")]
    if record.method == "tools/call":
        found += [("gen_ai.operation.name", "execute_tool"), ("gen_ai.tool.name", label_of(record))]
    if record.server is not None:
        found.append(("emceepee.server.name", record.server))
    if record.failed:
        found.append(("error.type", record.error_code or record.outcome))
    return tuple(found)


def _facts(record: RequestRecord) -> dict[str, str]:
    facts = {
        **dict(metric_attributes(record)),
        "mcp.session.id": record.session,
        "emceepee.outcome": record.outcome,
        "emceepee.record.id": record.id,
    }
    if record.request_id is not None:
        facts["jsonrpc.request.id"] = str(record.request_id)
    if record.task_id is not None:
        facts["emceepee.task.id"] = record.task_id
    return facts


def _attributes(facts: Mapping[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in facts.items()]


def _resource(service: str) -> Resource:
    return Resource(attributes=_attributes({"service.name": service}))
