"""Where a URL that a model adds may lead: judged by the address that is really connected to.

Names are looked up by a resolver of the test; the sockets are real.
"""

import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from emceepee_stdio.app import environment_of
from emceepee_stdio.backends.channels.http_carrier import Carrier, HttpOptions, sockets
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Config, Settings
from emceepee_stdio.errors import CannotConnect, InvalidArguments, NeedsApproval, ProxyError
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal
from emceepee_stdio.session.client_calls import Call, CallingClient
from emceepee_stdio.session.person import Choice, Decision, OnLate
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Admission
from emceepee_stdio.tools.server_tools import (
    AddServer,
    ReconnectServer,
    RemoveServer,
    add_server,
    reconnect_server,
    remove_server,
)
from emceepee_stdio.trust.targets import Area, only
from emceepee_stdio.wire.process import StopTimes
from tests.e2e.client import http_server
from tests.e2e.clients.raw import until
from tests.e2e.hosts import host

PUBLIC = "93.184.216.34"
REAL = socket.getaddrinfo
WAIT_S = 30.0


class Resolver:
    """Names as the test wants them: each with its answers, one after the other."""

    def __init__(self) -> None:
        self.names: dict[str, list[Sequence[str]]] = {}
        self.asked: list[str] = []
        self.held: dict[str, threading.Event] = {}

    def __call__(self, wanted: Any, port: Any, *args: Any, **how: Any) -> list[Any]:
        name = wanted.decode() if isinstance(wanted, bytes) else str(wanted)
        answers = self.names.get(name)
        if answers is None:
            return REAL(wanted, port, *args, **how)
        self.asked.append(name)
        if name in self.held:
            assert self.held[name].wait(WAIT_S)
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            entry for address in found for entry in REAL(address, port, type=socket.SOCK_STREAM)
        ]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return made


class Listener:
    """A socket that writes down who came and what they said."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.socket = socket.create_server((address, 0), family=family)
        self.port = self.socket.getsockname()[1]
        self.came = 0
        self.received = b""
        self.ended = 0
        threading.Thread(target=self._listen, daemon=True).start()

    async def connected_to(self) -> None:
        """Wait until somebody has come, and everybody has gone."""
        await anyio.to_thread.run_sync(until, self._is_over, "a connection, and its end")

    def _is_over(self) -> bool:
        return self.came > 0 and self.ended == self.came

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.came += 1
            threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    self.received += data
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            except OSError:
                pass
        self.ended += 1


@contextmanager
def listening(address: str = "127.0.0.1") -> Iterator[Listener]:
    made = Listener(address)
    try:
        yield made
    finally:
        made.socket.close()


class Agreeing:
    """A person who agrees to everything, and what they were shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    async def confirm(
        self, question: Choice, *, on_ask: Callable[[], None], on_late: OnLate
    ) -> Decision:
        on_ask()
        self.shown.append("\n".join(question.lines))
        return Decision.AGREED


async def never(_: Admission) -> None:
    raise AssertionError("a person was asked, and answered late")


@asynccontextmanager
async def session(tmp_path: Path, mode: str = "auto") -> AsyncIterator[Runtime]:
    times = {"connect_ms": 20_000, "request_ms": 20_000}
    settings = msgspec.convert({"policy": {"mode": mode}, "timeouts": times}, Settings)
    clock = Clock()
    environ = {"EMCEEPEE_STATE_DIR": str(tmp_path / "state")}
    runtime = Runtime(
        Config(settings=settings),
        clock=clock,
        ids=Ids(clock),
        journal=Journal.silent(clock),
        environment=environment_of(settings, environ),
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(runtime.run)
        try:
            with anyio.fail_after(WAIT_S):
                yield runtime
        finally:
            with anyio.CancelScope(shield=True):
                await runtime.stop(StopTimes(term=0.1, kill=0.2))
        tasks.cancel_scope.cancel()


async def add(runtime: Runtime, url: str, person: Any = None, **fields: Any) -> ProxyError | None:
    """Have a model add it; the error, if there is one."""
    call = Call(client=CallingClient(ceiling=10.0, person=person))
    try:
        await add_server(runtime, AddServer(name="s", url=url, **fields), call)
    except ProxyError as error:
        return error
    return None


# What is judged before anything is called


@pytest.mark.parametrize(
    "url",
    ["ftp://example.com/", "file:///etc/passwd", "gopher://x/", "//example.com/", "example.com"],
)
async def test_other_schemes_are_refused_in_every_mode(
    tmp_path: Path, resolver: Resolver, url: str
) -> None:
    for mode in ("auto", "allow", "ask"):
        async with session(tmp_path, mode) as runtime:
            assert isinstance(await add(runtime, url), InvalidArguments)
    assert resolver.asked == []


@pytest.mark.parametrize(
    "url", ["https://user:secret@example.com/", "http://user@127.0.0.1/", "https://@example.com/"]
)
async def test_credentials_in_an_address_are_refused(
    tmp_path: Path, resolver: Resolver, url: str
) -> None:
    resolver.names["example.com"] = [[PUBLIC]]
    async with session(tmp_path) as runtime:
        error = await add(runtime, url)
        assert isinstance(error, InvalidArguments)
        assert "headers" in error.next_step
        assert "secret" not in str(error)


@pytest.mark.parametrize("mode", ["auto", "ask"])
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.com/", "Plain http"),
        (f"http://{PUBLIC}/", "Plain http"),
        ("https://10.0.0.1/", "a private network"),
        ("https://192.168.0.1/", "a private network"),
        ("http://169.254.169.254/latest/meta-data", "a private network"),
        ("https://[fe80::1]/", "a private network"),
        ("https://[fd00::1]/", "a private network"),
        ("https://[::ffff:10.0.0.1]/", "a private network"),
        ("https://[2002:a00:1::]/", "a private network"),
        ("https://[64:ff9b::a00:1]/", "a private network"),
        ("http://0.0.0.0:8080/", "a private network"),
        ("https://[::]/", "a private network"),
        ("https://224.0.0.1/", "a private network"),
        ("https://intranet.example/", "a private network"),
        ("https://inside.example/", "this machine"),
        ("https://both.example/", "a private network"),
        ("https://2130706433/", "this machine"),
        ("https://0x7f.1/", "this machine"),
    ],
)
async def test_a_person_has_to_allow_what_is_not_plainly_safe(
    tmp_path: Path, resolver: Resolver, url: str, reason: str, mode: str
) -> None:
    resolver.names |= {
        "example.com": [[PUBLIC]],
        "intranet.example": [["10.1.2.3"]],
        "inside.example": [["127.0.0.1"]],
        "both.example": [[PUBLIC, "192.168.1.1"]],
    }
    async with session(tmp_path, mode) as runtime:
        error = await add(runtime, url)
        assert isinstance(error, NeedsApproval)
        (waiting,) = runtime.trust.waiting()
        assert reason in waiting.text
        assert f"Address: {url}" in waiting.text
        assert runtime.servers.names() == []


@pytest.mark.parametrize("url", ["https://example.com/mcp", f"https://{PUBLIC}/mcp"])
async def test_https_to_the_internet_needs_no_word(
    tmp_path: Path, resolver: Resolver, url: str
) -> None:
    """Admitted; whether somebody is there is another question, which is not asked here."""
    resolver.names["example.com"] = [[PUBLIC]]
    async with session(tmp_path) as runtime:
        call = Call(client=CallingClient(ceiling=1.0))
        admission = await runtime.admission.admit(
            ServerConfig(name="s", url=url), call, add_late=never
        )
        assert admission.grounds == "policy auto"
        assert admission.rule is not None
        assert admission.rule(PUBLIC) is None
        assert admission.rule("127.0.0.1") is not None


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]", "127.0.0.2"])
@pytest.mark.usefixtures("resolver")
async def test_this_machine_needs_no_word_where_the_url_says_so(tmp_path: Path, name: str) -> None:
    address = name.strip("[]") if name != "localhost" else "127.0.0.1"
    try:
        listener = Listener(address)
    except OSError:
        pytest.skip(f"there is no {address} here")
    with listener.socket:
        async with session(tmp_path) as runtime:
            error = await add(runtime, f"http://{name}:{listener.port}/mcp")
            assert error is not None, "it is no MCP server"
            assert not isinstance(error, NeedsApproval)
            assert b"POST /mcp" in listener.received


# What is judged when it is called


async def refused_before_a_byte(runtime: Runtime, listener: Listener, url: str) -> None:
    error = await add(runtime, url)
    assert error is not None
    assert "was not called: it leads to" in error.fact, error
    assert "emceepee config add" in error.next_step
    assert runtime.servers.names() == []
    await listener.connected_to()
    assert listener.received == b""


@pytest.mark.parametrize(
    "first", [[PUBLIC], [PUBLIC, "2606:4700::1111"], []], ids=["public", "both", "nowhere"]
)
@pytest.mark.parametrize("then", ["127.0.0.1", "127.0.0.2", "::ffff:127.0.0.1"])
async def test_a_name_that_leads_to_this_machine_when_it_is_called_hears_nothing_from_us(
    tmp_path: Path, resolver: Resolver, first: list[str], then: str
) -> None:
    resolver.names["rebind.example"] = [first, [then]]
    with listening("127.0.0.2" if then == "127.0.0.2" else "127.0.0.1") as listener:
        async with session(tmp_path) as runtime:
            await refused_before_a_byte(
                runtime, listener, f"https://rebind.example:{listener.port}/mcp"
            )
    assert len(resolver.asked) >= 2


async def test_the_rule_holds_for_names_in_other_scripts_as_well(
    tmp_path: Path, resolver: Resolver
) -> None:
    resolver.names["xn--mnchen-3ya.example"] = [[PUBLIC], ["127.0.0.1"]]
    with listening() as listener:
        async with session(tmp_path) as runtime:
            await refused_before_a_byte(
                runtime, listener, f"https://xn--mnchen-3ya.example:{listener.port}/mcp"
            )


async def test_the_rule_stays_when_the_era_of_a_server_is_changed(
    tmp_path: Path, resolver: Resolver
) -> None:
    """The first connect fails for another reason and the server stays; then the name turns."""
    resolver.names["rebind.example"] = [[PUBLIC], ["127.0.0.1"]]
    with listening() as listener:
        async with session(tmp_path) as runtime:
            config = ServerConfig(
                name="s", url=f"https://rebind.example:{listener.port}/mcp", lazy=True
            )
            call = Call(client=CallingClient(ceiling=10.0))
            admission = await runtime.admission.admit(config, call, add_late=never)
            await runtime.servers.add(admission, runtime.group())
            with pytest.raises(ProxyError):
                await reconnect_server(runtime, ReconnectServer(name="s", era="legacy"), call)
            member = runtime.servers.members.get("s")
            assert member is not None
            assert member.admission.rule is admission.rule
            assert listener.received == b""


@pytest.mark.parametrize("host", ["foo.localhost", "localhost.", "LocalHost", "a.b.localhost."])
async def test_no_name_of_this_machine_is_looked_for_behind_a_proxy(
    monkeypatch: pytest.MonkeyPatch, resolver: Resolver, host: str
) -> None:
    with listening() as listener, listening() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        resolver.names |= {host: [["127.0.0.1"]], host.lower(): [["127.0.0.1"]]}
        url = f"http://{host}:{listener.port}/mcp"
        async with sockets("s", url, {}) as client:
            carrier = Carrier("s", url, client, clock=Clock(), options=HttpOptions())
            async with carrier.post(b"{}", {}) as answer:
                assert answer.status
        assert listener.received
        assert proxy.received == b""


@pytest.mark.parametrize("first", ["server", "proxy"])
async def test_dials_that_overlap_are_judged_each_by_itself(
    monkeypatch: pytest.MonkeyPatch, resolver: Resolver, first: str
) -> None:
    """Here http goes through a proxy of the environment, which may be anywhere, and https not."""
    with listening() as listener, listening() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://proxy.example:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        resolver.names |= {"rebind.example": [["127.0.0.1"]], "proxy.example": [["127.0.0.1"]]}
        slow = {"server": "rebind.example", "proxy": "proxy.example"}[first]
        resolver.held[slow] = threading.Event()
        direct = f"https://rebind.example:{listener.port}/mcp"
        async with sockets("s", direct, {}) as client:
            options = HttpOptions(rule=only(Area.PUBLIC))
            carrier = Carrier("s", direct, client, clock=Clock(), options=options)

            async def call_server() -> None:
                carrier.url = direct
                with pytest.raises(CannotConnect, match="was not called: it leads to 127"):
                    async with carrier.post(b"{}", {}):
                        pass

            async def call_proxy() -> None:
                carrier.url = "http://rebind.example/mcp"
                async with carrier.post(b"{}", {}) as answer:
                    assert answer.status == 404

            calls = [call_server, call_proxy] if first == "server" else [call_proxy, call_server]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(calls[0])
                await anyio.to_thread.run_sync(lambda: until(lambda: slow in resolver.asked))
                try:
                    await calls[1]()
                finally:
                    resolver.held[slow].set()
        await listener.connected_to()
        assert listener.received == b""
        assert proxy.received.startswith(b"POST http://rebind.example/mcp")


def own_address() -> str:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            found = str(probe.getsockname()[0])
        except OSError:
            found = "127.0.0.1"
    if found.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    return found


async def test_a_name_of_this_machine_that_leads_elsewhere_hears_nothing_from_us(
    tmp_path: Path, resolver: Resolver
) -> None:
    address = own_address()
    resolver.names["app.localhost"] = [[address]]
    with listening(address) as listener:
        async with session(tmp_path) as runtime:
            await refused_before_a_byte(
                runtime, listener, f"http://app.localhost:{listener.port}/mcp"
            )


async def test_what_a_person_agreed_to_is_called_wherever_it_leads(
    tmp_path: Path, resolver: Resolver
) -> None:
    resolver.names["inside.example"] = [["127.0.0.1"]]
    person = Agreeing()
    with listening() as listener:
        async with session(tmp_path) as runtime:
            url = f"http://inside.example:{listener.port}/mcp"
            error = await add(runtime, url, person)
            assert error is not None, "it is no MCP server"
            assert "The address leads to this machine." in person.shown[0]
            assert b"POST /mcp" in listener.received


async def test_configured_servers_are_not_restricted(tmp_path: Path, resolver: Resolver) -> None:
    resolver.names["inside.example"] = [["127.0.0.1"]]
    with listening() as listener:
        async with session(tmp_path, "deny") as runtime:
            url = f"http://inside.example:{listener.port}/mcp"
            config = ServerConfig(name="s", url=url)
            link = await runtime.servers.add(Admission.configured(config), runtime.group())
            with pytest.raises(ProxyError):
                await link.connect(within=10.0)
            assert b"POST /mcp" in listener.received


async def test_allow_does_not_restrict_either(tmp_path: Path, resolver: Resolver) -> None:
    resolver.names["inside.example"] = [["127.0.0.1"]]
    with listening() as listener:
        async with session(tmp_path, "allow") as runtime:
            await add(runtime, f"http://inside.example:{listener.port}/mcp")
            assert b"POST /mcp" in listener.received


# Redirects, with the real proxy


REDIRECT = b"HTTP/1.1 %d Elsewhere\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("elsewhere", ["127.0.0.2", "127.0.0.1"], ids=["host", "port"])
def test_a_redirect_to_another_place_is_not_followed(
    tmp_path: Path, status: int, elsewhere: str
) -> None:
    with listening(elsewhere) as other, socket.create_server(("127.0.0.1", 0)) as server:
        location = f"http://{elsewhere}:{other.port}/mcp"
        answer = REDIRECT % (status, location.encode())
        threading.Thread(target=_answer_all, args=(server, answer), daemon=True).start()
        with host(tmp_path) as client:
            url = f"http://127.0.0.1:{server.getsockname()[1]}/mcp"
            said = client.use("add_server", name="s", url=url)
            assert said.is_error
            assert "not followed" in said.text
            assert location in said.text
            assert client.questions == []
        assert other.came == 0


def _answer_all(server: socket.socket, answer: bytes) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            try:
                connection.recv(65536)
                connection.sendall(answer)
            except OSError:
                continue


async def test_a_url_on_this_machine_is_added_by_the_real_proxy_without_a_word(
    tmp_path: Path,
) -> None:
    async with http_server() as url:

        def run() -> None:
            with host(tmp_path) as client:
                assert client.use("add_server", name="s", url=url).json["phase"] == "connected"
                assert client.servers()["s"]["admitted"] == "policy auto"
                assert client.questions == []

        await anyio.to_thread.run_sync(run)


@pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
def test_a_url_that_needs_a_word_is_put_to_the_person(tmp_path: Path, *, modern: bool) -> None:
    with host(tmp_path, modern=modern) as client:
        proposed = {"name": "s", "url": "http://10.0.0.1:9/mcp", "headers": {"X-Token": "hunter2"}}
        message = client.asked_for(client.start("add_server", **proposed))
        assert message.split("\n") == [
            "http://10.0.0.1:9/mcp",
            "The address leads to a private network.",
            "Server s, headers X-Token",
        ]


async def test_the_rule_stays_when_a_server_is_added_and_removed_at_the_same_time(
    tmp_path: Path,
) -> None:
    call = Call(client=CallingClient(ceiling=10.0))

    async def remove(runtime: Runtime) -> None:
        with suppress(ProxyError):
            await remove_server(runtime, RemoveServer(name="s"), call)

    async with http_server() as url, session(tmp_path) as runtime:
        for _ in range(10):
            assert await add(runtime, url) is None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(add, runtime, url)
                tasks.start_soon(remove, runtime)
            for member in runtime.servers.members.values():
                assert member.admission is not None
                assert member.admission.rule is not None
                assert member.admission.rule("169.254.169.254") is not None
