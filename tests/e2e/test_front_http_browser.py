"""A page in a real browser is reloaded in the middle of a call over HTTP, and misses nothing."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.e2e.chromium import chromium
from tests.e2e.clients.raw import entry
from tests.e2e.front_harness import running_front
from tests.peers import plain

pytestmark = pytest.mark.slow

PAGE = """<!doctype html><title>page</title><p id=out></p><script type=module>
const [url, token] = decodeURIComponent(location.hash.slice(1)).split(' ');
const store = sessionStorage;
const seen = JSON.parse(store.seen ?? '[]');
const headers = extra => ({
    authorization: `Bearer ${token}`, 'content-type': 'application/json',
    accept: 'application/json, text/event-stream', 'mcp-protocol-version': '2025-11-25',
    ...(store.session ? { 'mcp-session-id': store.session } : {}), ...extra
});
const post = message => fetch(url, {
    method: 'POST', headers: headers({}), body: JSON.stringify({ jsonrpc: '2.0', ...message })
});

async function* events(response) {
    let text = '';
    for await (const part of response.body.pipeThrough(new TextDecoderStream())) {
        text += part;
        for (let end; (end = text.indexOf('\\n\\n')) >= 0; text = text.slice(end + 2)) {
            const lines = text.slice(0, end).split('\\n').map(line => line.split(/: (.*)/s));
            yield Object.fromEntries(lines);
        }
    }
}

async function follow(response) {
    for await (const event of events(response)) {
        if (event.id) store.last = event.id;
        if (!event.data) continue;
        const message = JSON.parse(event.data);
        seen.push(message.params?.progress ?? message.result.content[0].text);
        store.seen = JSON.stringify(seen);
        if (!store.reloaded && seen.length === 3) {
            store.reloaded = 'yes';
            location.reload();
            return;
        }
    }
    out.textContent = JSON.stringify(seen);
}

if (store.reloaded) {
    await follow(await fetch(url, { headers: headers({ 'last-event-id': store.last }) }));
} else {
    const hello = await post({ id: 1, method: 'initialize', params: {
        protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'page', version: '1' }
    } });
    store.session = hello.headers.get('mcp-session-id');
    await post({ method: 'notifications/initialized' });
    await follow(await post({ id: 2, method: 'tools/call', params: {
        name: 'execute_tool', _meta: { progressToken: 'p' },
        arguments: { server: 'plain', tool: 'progress', args: { steps: 8, interval: 0.25 } }
    } }));
}
</script>"""


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/" else 404)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
        """Nobody reads it."""


@contextmanager
def serving_page() -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_page_that_is_reloaded_in_the_middle_of_a_call_gets_the_rest(tmp_path: Path) -> None:
    servers = {"plain": entry(plain(), tmp_path, "plain")}
    with (
        serving_page() as origin,
        running_front(tmp_path, "--allow-origin", origin, servers=servers) as front,
        chromium(tmp_path / "profile") as browser,
    ):
        browser.open(f"{origin}/#{front.url}%20{front.token}")
        browser.until("document.querySelector('#out')?.textContent")
        shown = browser.run("document.querySelector('#out').textContent")
        assert shown == '[1,2,3,4,5,6,7,8,"8 steps"]'
        assert browser.run("sessionStorage.reloaded") == "yes"
        front.look()
