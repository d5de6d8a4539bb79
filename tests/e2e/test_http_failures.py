"""Over HTTP when things go wrong: each failure ends its own call, and says the next step."""

import asyncio
import datetime as dt
import gzip
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from emceepee_stdio.backends.interface import LogSource
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.state.phases import Phase
from tests.e2e.harness import WAIT_S
from tests.e2e.http_harness import (
    ONCE,
    QUICK,
    HttpRig,
    http_backend,
    mcp_server,
    nothing_left,
    until,
)
from tests.e2e.servers.http_mcp import Call, McpServer
from tests.e2e.servers.http_wire import Exchange, Handler, head, serving

CAP = 100_000
PAGE = b"<!doctype html><html><body>Welcome</body></html>"
SMALL = replace(QUICK, max_message=CAP)


def error_body(request_id: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32000, "message": "Not today"}}


async def with_status_401(call: Call) -> None:
    await call.exchange.reply(401, www_authenticate="Bearer")


async def with_status_403(call: Call) -> None:
    await call.exchange.reply(403, b"This key may only read.\n", kind="text/plain")


async def with_status_405(call: Call) -> None:
    await call.exchange.reply(405, PAGE, kind="text/html")


async def with_status_410(call: Call) -> None:
    await call.exchange.reply(410, {"detail": "The tool was retired."})


async def with_status_429(call: Call) -> None:
    await call.exchange.reply(429)


async def with_status_429_for_an_hour(call: Call) -> None:
    await call.exchange.reply(429, retry_after="3600")


async def with_status_500_and_a_page(call: Call) -> None:
    await call.exchange.reply(500, PAGE, kind="text/html")


async def with_status_500_and_come_again(call: Call) -> None:
    await call.exchange.reply(500, retry_after="0")


async def with_status_599(call: Call) -> None:
    await call.exchange.reply(599, bytes(range(256)), kind="")


async def with_status_500_and_an_error(call: Call) -> None:
    await call.exchange.reply(500, error_body(call.message["id"]))


async def with_status_400_and_an_error_without_id(call: Call) -> None:
    await call.exchange.reply(400, error_body(None))


async def elsewhere_307(call: Call) -> None:
    await call.exchange.reply(307, location="https://other.example/mcp?token=secret123")


async def here_301(call: Call) -> None:
    await call.exchange.reply(301, location="/moved")


async def in_circles(call: Call) -> None:
    await call.exchange.reply(307, location="/mcp")


async def to_nowhere(call: Call) -> None:
    await call.exchange.reply(308, location="http://[::1/")


async def with_a_page(call: Call) -> None:
    await call.exchange.reply(200, PAGE, kind="text/html; charset=utf-8")


async def with_202(call: Call) -> None:
    await call.exchange.reply(202, kind="")


async def with_cut_json(call: Call) -> None:
    whole = json.dumps({"jsonrpc": "2.0", "id": call.message["id"], "result": {"content": []}})
    await call.exchange.reply(200, whole[:-9].encode())


async def with_nothing(call: Call) -> None:
    await call.exchange.reply(200, b"")


async def with_another_id(call: Call) -> None:
    await call.exchange.reply(200, {"jsonrpc": "2.0", "id": "nobody", "result": {}})


async def with_a_short_body(call: Call) -> None:
    await call.exchange.raw(head(200, {"content-type": "application/json", "content-length": "99"}))
    await call.exchange.raw(b'{"jsonrpc":"2.0",')
    call.exchange.drop()


async def with_a_body_over_the_cap(call: Call) -> None:
    result = {"content": [{"type": "text", "text": "x" * 2 * CAP}]}
    await call.exchange.reply(200, {"jsonrpc": "2.0", "id": call.message["id"], "result": result})


async def with_an_event_over_the_cap(call: Call) -> None:
    await call.exchange.stream()
    result = {"content": [{"type": "text", "text": "x" * 2 * CAP}]}
    await call.exchange.event({"result": result, "id": call.message["id"]})
    await call.exchange.finish()


async def with_an_event_of_many_lines_over_the_cap(call: Call) -> None:
    await call.exchange.stream()
    await call.exchange.chunk(b"data: {\n" + b"data:\n" * 2 * CAP + b"\n")
    await call.exchange.finish()


async def with_a_cut_stream(call: Call) -> None:
    await call.exchange.stream()
    await call.exchange.chunk(b'data: {"jsonrpc":"2.0",')
    await call.exchange.finish()


async def with_a_dropped_stream(call: Call) -> None:
    await call.exchange.stream()
    await call.exchange.chunk(b'data: {"jsonrpc":"2.0",')
    call.exchange.drop()


async def with_garbage_for_a_chunk(call: Call) -> None:
    await call.exchange.stream()
    await call.exchange.raw(b"zz\r\n\x00\xff\r\n")


async def with_binary(call: Call) -> None:
    await call.exchange.raw(bytes(range(256)) * 16)
    call.exchange.drop()


async def with_binary_json(call: Call) -> None:
    await call.exchange.reply(200, bytes(range(256)))


async def with_gzip(call: Call) -> None:
    await call.exchange.reply(200, gzip.compress(b"{}"), content_encoding="gzip")


async def with_binary_events(call: Call) -> None:
    await call.exchange.stream()
    await call.exchange.chunk(b"data: " + bytes(range(14, 256)) + b"\nid: \xff\nretry: 9\xb2\n\n")
    await call.exchange.chunk(b"retry: " + b"9" * 5000 + b"\n\n")
    await call.exchange.finish()


async def with_headers_without_end(call: Call) -> None:
    await call.exchange.raw(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000)
    call.exchange.drop()


async def with_silence(call: Call) -> None:
    call.exchange.drop()


BAD: list[tuple[Callable[[Call], Awaitable[None]], str, str, str]] = [
    (with_status_401, "server_unavailable", "status 401 Unauthorized.", "Authorization in headers"),
    (
        with_status_403,
        "server_unavailable",
        "403 Forbidden: This key may only read.",
        "give others",
    ),
    (with_status_405, "server_unavailable", "405 Method Not Allowed", "path of the URL"),
    (with_status_410, "server_unavailable", "410 Gone: The tool was retired.", "its own logs"),
    (with_status_429, "server_unavailable", "429 Too Many Requests", "Wait a while"),
    (with_status_429_for_an_hour, "server_unavailable", "429", "wait 3600 s"),
    (with_status_500_and_a_page, "server_unavailable", "500 Internal Server Error.", "own logs"),
    (with_status_500_and_come_again, "server_unavailable", "500 Internal", "own logs"),
    (with_status_599, "server_unavailable", "HTTP status 599.", "own logs"),
    (with_status_500_and_an_error, "call_failed", "error -32000: Not today", "server's message"),
    (with_status_400_and_an_error_without_id, "call_failed", "-32000: Not today", "message"),
    (elsewhere_307, "call_failed", "redirects to https://other.example/mcp", "use that URL"),
    (here_301, "call_failed", "/moved, which is not followed (HTTP status 301)", "use that URL"),
    (in_circles, "call_failed", "in circles", "Check the URL"),
    (to_nowhere, "call_failed", "redirects to http://[::1/, which is not followed", "use that URL"),
    (with_a_page, "call_failed", "text/html, which is not MCP", "not a web page"),
    (with_202, "call_failed", "took the request (HTTP status 202)", "get_logs"),
    (with_cut_json, "call_failed", "not valid JSON", "message"),
    (with_nothing, "call_failed", "something else than an answer", "get_logs"),
    (with_another_id, "call_failed", "something else than an answer", "get_logs"),
    (with_a_short_body, "call_failed", "connection to server broke", "may have been carried out"),
    (with_a_body_over_the_cap, "result_too_large", "bytes in one message", "Ask the tool for less"),
    (with_an_event_over_the_cap, "result_too_large", "bytes in one message", "for less"),
    (with_an_event_of_many_lines_over_the_cap, "result_too_large", "bytes", "for less"),
    (with_a_cut_stream, "call_failed", "ended the stream before", "may have been carried out"),
    (with_a_dropped_stream, "call_failed", "ended the stream before", "may have been carried"),
    (with_garbage_for_a_chunk, "call_failed", "ended the stream before", "may have been carried"),
    (with_binary, "call_failed", "connection to server broke", "may have been carried out"),
    (with_binary_json, "call_failed", "something else than an answer", "get_logs"),
    (with_gzip, "call_failed", "in the encoding 'gzip'", "has to honour Accept-Encoding"),
    (with_binary_events, "call_failed", "ended the stream before", "may have been carried out"),
    (with_headers_without_end, "call_failed", "connection to server broke", "carried out"),
    (with_silence, "call_failed", "connection to server broke", "may have been carried out"),
]


@asynccontextmanager
async def long_call(server: McpServer, rig: HttpRig) -> AsyncIterator[None]:
    """Another call of the same backend, under way all the time, which must succeed."""
    release = asyncio.Event()
    answered: list[str] = []

    async def wait(_: Call) -> str:
        await release.wait()
        return "waited"

    async def run() -> None:
        answered.append(await rig.text("wait"))

    server.tools["wait"] = wait
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until(lambda: any(m["params"]["name"] == "wait" for m in calls(server)))
        yield
        release.set()
    assert answered == ["waited"]


def calls(server: McpServer) -> list[dict[str, Any]]:
    return server.messages("tools/call")


def calls_of(server: McpServer, tool: str) -> int:
    return sum(m["params"]["name"] == tool for m in calls(server))


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(("bad", "code", "fact", "hint"), BAD, ids=[b[0].__name__ for b in BAD])
async def test_a_bad_answer_ends_its_own_call_and_says_what_to_do(
    era: str, bad: Callable[[Call], Awaitable[None]], code: str, fact: str, hint: str
) -> None:
    async with mcp_server(era=era) as server, http_backend(server.url, options=SMALL) as rig:
        server.tools["bad"] = bad
        async with long_call(server, rig):
            with pytest.raises(ProxyError) as caught:
                await rig.call("bad")
            assert caught.value.code == code
            assert fact in caught.value.fact
            assert hint in caught.value.next_step
            assert "secret123" not in str(caught.value)
            assert await rig.text("echo", message="hello") == "hello"
        assert rig.sink.received == ["connecting", "connected"]
        tried = calls_of(server, "bad")
        assert tried == (4 if bad is in_circles else 1)
        connection = await rig.connection()
        await until(lambda: connection.statistics() == {"posts": 0, "waiting": 0})


def in_seconds() -> str:
    return "1"


def as_a_date() -> str:
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
    return format_datetime(soon, usegmt=True)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("form", [in_seconds, as_a_date])
async def test_a_server_that_asks_to_come_again_is_asked_again(
    status: int, form: Callable[[], str]
) -> None:
    times: list[float] = []
    async with mcp_server() as server, http_backend(server.url) as rig:

        async def busy(call: Call) -> str | None:
            times.append(anyio.current_time())
            if len(times) > 1:
                return "now"
            await call.exchange.reply(status, retry_after=form())
            return None

        server.tools["busy"] = busy
        async with long_call(server, rig):
            assert await rig.text("busy") == "now"
        assert len(times) == 2
        if form is in_seconds:
            assert times[1] - times[0] >= 1


async def test_a_server_that_is_busy_for_ever_is_asked_four_times() -> None:
    async with mcp_server() as server, http_backend(server.url) as rig:

        async def busy(call: Call) -> None:
            await call.exchange.reply(503, retry_after="0")

        server.tools["busy"] = busy
        with pytest.raises(ProxyError, match="503 Service Unavailable"):
            await rig.call("busy")
        assert calls_of(server, "busy") == 4


async def test_the_pause_that_a_server_asks_for_counts_towards_the_time_of_the_call() -> None:
    async with mcp_server() as server, http_backend(server.url) as rig:

        async def busy(call: Call) -> None:
            await call.exchange.reply(503, retry_after="50")

        server.tools["busy"] = busy
        await rig.connection()  # whose time is not that of the call
        with pytest.raises(ProxyError, match=r"did not answer tools/call within 0\.2 s"):
            await rig.call("busy", 0.2)
        assert calls_of(server, "busy") == 1


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_within_the_same_place_is_followed_with_the_whole_message(
    status: int,
) -> None:
    async with mcp_server(era="legacy") as server:

        async def moved(exchange: Exchange) -> bool:
            if exchange.path == "/old" and exchange.method in ("POST", "GET"):
                await exchange.reply(status, location="/mcp?new")
            return exchange.path == "/old"

        server.before = moved
        url = server.url.replace("/mcp", "/old")
        async with http_backend(url, headers={"X-Key": "k"}) as rig:
            assert await rig.text("echo", message="hello") == "hello"
        assert {e.headers["x-key"] for e in server.http.received} == {"k"}
        assert sum(e.path == "/old" for e in server.exchanges("POST")) == 1


async def test_the_event_stream_of_the_older_transport_may_be_redirected_close_by() -> None:
    async with mcp_server() as server:

        async def moved(exchange: Exchange) -> bool:
            if exchange.path == "/old":
                await exchange.reply(301 if exchange.method == "GET" else 405, location="/sse")
            return exchange.path == "/old"

        server.before = moved
        url = server.url.replace("/mcp", "/old")
        options = replace(QUICK, sse=True)
        async with http_backend(url, options=options) as rig:
            assert await rig.text("echo", message="hello") == "hello"


async def test_a_stream_that_never_answers_ends_with_the_time_of_its_call() -> None:
    for era in ("legacy", "modern"):
        async with (
            mcp_server(era=era, answers="sse") as server,
            http_backend(server.url) as rig,
        ):
            await rig.text("echo")
            async with long_call(server, rig):
                with pytest.raises(ProxyError, match=r"did not answer tools/call within 1\.5 s"):
                    await rig.call("hang", 1.5)
                asked = server.messages("tools/call")[-1]["id"]
                seen = server.cancelled if era == "legacy" else server.hung_up
                await until(lambda seen=seen, asked=asked: asked in seen)


async def test_a_flood_of_notifications_holds_nobody_up_and_loses_nothing() -> None:
    async with mcp_server(answers="sse") as server, http_backend(server.url) as rig:

        async def flood(call: Call) -> str:
            for n in range(10_000):
                call.notify("notifications/fixture", {"n": n})
            return "flooded"

        server.tools["flood"] = flood
        async with long_call(server, rig):
            assert await rig.text("flood") == "flooded"
        received = [params["n"] for _, params in rig.sink.notifications]
        assert received == list(range(10_000))


async def test_a_sink_that_raises_costs_one_message_and_no_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with mcp_server(era="legacy", answers="sse") as server, http_backend(server.url) as rig:

        async def tell(call: Call) -> str:
            call.notify("notifications/fixture", {"n": 1})
            return "told"

        def broken(*_: object) -> None:
            raise LookupError("a bug")

        server.tools["tell"] = tell
        monkeypatch.setattr(rig.sink, "take_notification", broken)
        async with long_call(server, rig):
            assert await rig.text("tell") == "told"
            monkeypatch.undo()
            assert (
                LogSource.STDOUT,
                "a message that cannot be handled: LookupError",
            ) in rig.sink.logs
            assert await rig.text("echo", message="hello") == "hello"


# Opening


async def refusal_of(url: str, **options: Any) -> tuple[ProxyError, HttpRig]:
    """The error of the first call to a backend that cannot be opened."""
    async with http_backend(url, restarts=ONCE, **options) as rig:
        with pytest.raises(ProxyError) as caught:
            await rig.supervisor.connection(within=WAIT_S)
        assert rig.supervisor.phase is Phase.FAILED
        return caught.value, rig


@pytest.mark.parametrize(
    ("url", "fact", "hint"),
    [
        ("http://127.0.0.1:1/mcp", "the connection was refused", ""),
        ("http://localhost:1/mcp", "the connection was refused", ""),
        ("http://nobody.invalid/mcp", "its host name was not found", ""),
        ("ftp://127.0.0.1/mcp", "must begin with http:// or https://", "Correct its url"),
        ("mcp", "must begin with http:// or https://", "Correct its url"),
        ("http://", "and name a host", "Correct its url"),
        ("http://[::1", "is not valid", "Correct its url"),
        ("http://127.0.0.1:99999/", "names port 99999", "Correct its url"),
        ("http://127.0.0.1\x00/", "is not valid", "Correct its url"),
    ],
)
async def test_an_address_that_leads_nowhere_is_told_with_the_reason(
    url: str, fact: str, hint: str
) -> None:
    async with nothing_left():
        error, _ = await refusal_of(url)
    assert fact in error.fact
    assert hint in error.next_step


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("path", ["/mcp", "/sse"])
async def test_a_server_that_wants_other_credentials_is_given_up_at_once(
    status: int, path: str
) -> None:
    async def forbid(exchange: Exchange) -> None:
        await exchange.reply(status)

    async with serving(forbid) as server:
        url = server.url.replace("/mcp", path)
        options = replace(QUICK, sse=True if path == "/sse" else None)
        async with http_backend(url, options=options) as rig:
            with pytest.raises(ProxyError, match=f"HTTP status {status}") as caught:
                await rig.supervisor.connection(within=WAIT_S)
            assert "in headers" in caught.value.next_step
            assert rig.sink.received == ["connecting", "failed"]
        assert len(server.received) == 1


def replying(*arguments: Any, **fields: Any) -> Handler:
    async def reply(exchange: Exchange) -> None:
        await exchange.reply(*arguments, **fields)

    return reply


@pytest.mark.parametrize(
    ("handler", "fact", "hint"),
    [
        (replying(200, PAGE, kind="text/html"), "text/html, which is not MCP", "not a web page"),
        (replying(302, location="https://other.example/"), "other.example", "use that URL"),
        (replying(308, location="//other.example/"), "other.example", "use that URL"),
    ],
)
async def test_an_address_with_something_else_behind_it_is_given_up_at_once(
    handler: Handler, fact: str, hint: str
) -> None:
    async with serving(handler) as server, http_backend(server.url) as rig:
        with pytest.raises(ProxyError) as caught:
            await rig.supervisor.connection(within=WAIT_S)
        assert fact in caught.value.fact
        assert hint in caught.value.next_step
        assert rig.sink.received == ["connecting", "failed"]


@pytest.mark.parametrize(
    ("handler", "fact"),
    [
        (replying(404), "HTTP status 404 Not Found"),
        (replying(405), "HTTP status 405"),
        (replying(500, PAGE, kind="text/html"), "HTTP status 500"),
        (replying(202), "took the request (HTTP status 202)"),
        (
            replying(200, {"jsonrpc": "2.0", "id": 99, "result": {}}),
            "something else than an answer",
        ),
        (replying(400, error_body(None)), "refused initialize: error -32000: Not today"),
    ],
)
async def test_a_server_that_cannot_be_opened_now_is_tried_again(
    handler: Handler, fact: str
) -> None:
    async with serving(handler) as server, http_backend(server.url) as rig:
        with pytest.raises(ProxyError) as caught:
            await rig.supervisor.connection(within=WAIT_S)
        assert fact in caught.value.fact
        await rig.sink.until(lambda: "attempt failed" in rig.sink.received)


async def test_a_stream_that_names_no_endpoint_is_not_waited_for_too_long() -> None:
    async def stream(exchange: Exchange) -> None:
        await exchange.stream()
        await until(lambda: exchange.gone)

    async with serving(stream) as server:
        options = replace(QUICK, sse=True, connect=0.3)
        error, _ = await refusal_of(server.url, options=options)
        assert "named no endpoint" in error.fact


async def test_an_endpoint_in_another_place_is_refused() -> None:
    async def stream(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.chunk(b"event: endpoint\ndata: http://127.0.0.2:1/messages\n\n")
        await until(lambda: exchange.gone)

    async with serving(stream) as server:
        error, _ = await refusal_of(server.url, options=replace(QUICK, sse=True))
        assert "elsewhere: http://127.0.0.2:1/messages" in error.fact
        assert {e.method for e in server.received} == {"GET"}


async def test_a_header_that_cannot_be_sent_is_named_without_its_value() -> None:
    for headers in ({"X-Key": "sesame\nopen"}, {"X-Key": "sésame"}, {"X Key": "sesame"}):
        error, _ = await refusal_of("http://127.0.0.1:1/", headers=headers)
        assert next(iter(headers)) in error.fact
        assert "same" not in str(error)


async def test_plain_http_behind_an_https_url_says_so() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(head(400, {"content-length": "0"}))
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        error, _ = await refusal_of(f"https://127.0.0.1:{port}/mcp")
    assert "TLS" in error.fact
    assert "use http://" in error.next_step


async def test_a_certificate_that_nobody_signed_is_refused(tmp_path: Path) -> None:
    async with serving(replying(200), tls=self_signed(tmp_path)) as server:
        error, _ = await refusal_of(server.url)
        assert server.received == []
    assert "certificate of server is not trusted" in error.fact
    assert "SSL_CERT_FILE" in error.next_step


def self_signed(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "both.pem").write_bytes(private + certificate.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    return context
