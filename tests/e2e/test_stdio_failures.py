"""Servers that cannot be connected to, or that answer badly: each a typed error, and we go on."""

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from emceepee_stdio.backends.interface import LogSource, RemoteError
from emceepee_stdio.errors import (
    CallTimeout,
    ProxyError,
    ResultTooLarge,
    ServerDisconnected,
    ServerFailed,
    ServerUnavailable,
)
from emceepee_stdio.state.phases import Phase, RestartPolicy
from tests.e2e.harness import FAST, WAIT_S, Rig, backend
from tests.peers import plain, rude

ONCE = RestartPolicy(limit=0)


async def refusal(argv: list[str], tmp_path: Path, **kwargs: object) -> ProxyError:
    """The error that a caller gets, once the backend was given up."""
    async with backend(argv, tmp_path, restarts=ONCE, **kwargs) as rig:  # type: ignore[arg-type]
        with pytest.raises(ProxyError) as caught:
            await rig.supervisor.connection(within=WAIT_S)
        assert rig.supervisor.phase is Phase.FAILED
        assert rig.supervisor.snapshot().last_error
    return caught.value


async def test_a_command_that_does_not_exist_names_the_path_that_was_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere:/neither")
    error = await refusal(["no-such-command"], tmp_path)
    assert isinstance(error, ServerFailed)
    assert "'no-such-command' was not found on the PATH /nowhere:/neither" in str(error)
    assert "Then call reconnect_server" in str(error)


async def test_a_file_that_is_not_executable_says_how_to_make_it_so(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text("print()")
    error = await refusal([str(script)], tmp_path)
    assert f"{script} is not executable" in str(error)
    assert f"chmod +x {script}" in str(error)


async def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    script = tmp_path / "server"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    error = await refusal([str(script)], tmp_path)
    assert "cannot be started" in str(error)
    assert "interpreter" in str(error)


async def test_exit_at_once_shows_the_code_and_the_last_words(tmp_path: Path) -> None:
    error = await refusal(rude("exit-at-once", "7"), tmp_path)
    assert isinstance(error, ServerFailed)
    assert "exited with code 7" in str(error)
    assert "the license file is missing" in str(error)


async def test_a_server_that_never_answers_is_told_apart_from_one_that_died(tmp_path: Path) -> None:
    error = await refusal(rude("silent"), tmp_path, options=replace(FAST, connect=0.5))
    assert "did not answer initialize within 0.5 s" in str(error)


async def test_a_wrong_protocol_version_names_the_known_ones(tmp_path: Path) -> None:
    error = await refusal(rude("wrong-version"), tmp_path)
    assert '"1999-01-01"' in str(error)
    assert "2025-11-25" in str(error)


async def test_an_error_to_initialize_is_shown(tmp_path: Path) -> None:
    error = await refusal(rude("init-error"), tmp_path)
    assert "-32603" in str(error)
    assert "the database is not there" in str(error)


@pytest.mark.parametrize("shape", ["list", "null", "no-capabilities"])
async def test_a_handshake_of_the_wrong_shape_is_refused(tmp_path: Path, shape: str) -> None:
    error = await refusal(rude("init-wrong-shape", shape), tmp_path)
    assert "initialize" in str(error)
    assert "not an MCP server" in str(error)


async def test_a_missing_working_directory_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    async with backend(plain(), tmp_path, restarts=ONCE) as rig:
        await rig.call("echo", message="x")
        channel = rig.supervisor.channel
        channel.command = replace(channel.command, cwd=str(gone))  # type: ignore[attr-defined]
        with pytest.raises(ProxyError, match="does not exist"):
            await rig.supervisor.reconnect(within=WAIT_S)


async def test_a_banner_on_stdout_is_noise_and_the_session_is_well(tmp_path: Path) -> None:
    async with backend(rude("banner"), tmp_path) as rig:
        assert await rig.text("echo", message="hello") == "hello"
        noise = [text for source, text in rig.sink.logs if source is LogSource.STDOUT]
        assert noise
        assert rig.sink.received == ["connecting", "process started", "connected"]


async def test_garbage_amid_frames_costs_nothing_but_log_lines(tmp_path: Path) -> None:
    async with backend(rude("garbage"), tmp_path) as rig:
        for n in range(20):
            assert await rig.text("echo", message=f"hello {n}") == f"hello {n}"
        assert any(source is LogSource.STDOUT for source, _ in rig.sink.logs)
        assert rig.supervisor.snapshot().starts == 1


async def test_an_answer_in_one_huge_line_ends_its_call_and_the_next_one_works(
    tmp_path: Path,
) -> None:
    options = replace(FAST, max_line=100_000)
    async with backend(rude("huge-line", "200000"), tmp_path, options=options) as rig:
        with pytest.raises(ResultTooLarge, match="bytes in one message"):
            await rig.call("misbehave")
        assert await rig.text("echo", message="on") == "on"
        assert rig.supervisor.snapshot().starts == 1


async def test_a_64_mb_line_is_refused_at_the_default_limit_without_being_kept(
    tmp_path: Path,
) -> None:
    async with backend(rude("huge-line", str(65 << 20)), tmp_path) as rig:
        with pytest.raises(ResultTooLarge):
            await rig.call("misbehave")
        assert await rig.text("echo", message="on") == "on"


async def test_a_line_that_never_ends_costs_its_writer_the_connection(tmp_path: Path) -> None:
    options = replace(FAST, max_line=100_000)
    async with backend(rude("endless", "1000000"), tmp_path, options=options) as rig:
        await rig.call("echo", message="connected")
        with pytest.raises(ServerDisconnected, match="a line of over 400000 bytes without an end"):
            await rig.call("misbehave")
        assert await rig.text("echo", message="on") == "on"
        assert rig.supervisor.snapshot().starts == 2


async def test_a_50_mb_line_passes(tmp_path: Path) -> None:
    async with backend(rude("huge-line", str(50 << 20)), tmp_path) as rig:
        result = await rig.call("misbehave")
        assert len(str(result["content"])) >= 50 << 20


@pytest.mark.parametrize(
    "mode",
    ["duplicate-answers", "string-id-answers", "float-id", "no-jsonrpc", "batch", "dup-keys"],
)
async def test_a_slightly_wrong_envelope_still_answers_its_call(tmp_path: Path, mode: str) -> None:
    async with backend(rude(mode), tmp_path) as rig:
        assert (await rig.call("misbehave"))["content"]
        assert await rig.text("echo", message="on") == "on"


@pytest.mark.parametrize(
    ("mode", "shown"), [("result-and-error", "answered with error"), ("deep", "not valid JSON")]
)
async def test_an_answer_that_cannot_be_read_ends_its_call_with_an_error(
    tmp_path: Path, mode: str, shown: str
) -> None:
    async with backend(rude(mode), tmp_path) as rig:
        with pytest.raises(RemoteError, match=shown):
            await rig.call("misbehave")
        assert await rig.text("echo", message="on") == "on"


async def test_a_null_result_is_handed_on_as_it_is(tmp_path: Path) -> None:
    async with backend(rude("result-null"), tmp_path) as rig:
        assert await rig.call("misbehave") is None
        assert await rig.text("echo", message="on") == "on"


@pytest.mark.parametrize("mode", ["lone-surrogate", "nan"])
async def test_what_no_client_could_read_is_repaired(tmp_path: Path, mode: str) -> None:
    async with backend(rude(mode), tmp_path) as rig:
        result = await rig.request("tools/call", {"name": "misbehave"})
        assert b"NaN" not in bytes(result)
        assert b"\\ud8" not in bytes(result).lower()
        assert await rig.text("echo", message="on") == "on"


async def test_a_call_that_is_never_answered_ends_at_its_limit_and_tells_the_server(
    tmp_path: Path,
) -> None:
    async with backend(plain(), tmp_path) as rig:
        await rig.call("echo", message="connected")
        with pytest.raises(CallTimeout, match=r"within 0\.3 s"):
            await rig.call("slow", within=0.3, seconds=300)
        assert await rig.text("echo", message="on") == "on"
        (cancel,) = rig.messages("notifications/cancelled")
        (call,) = [m for m in rig.messages("tools/call") if m["params"]["name"] == "slow"]
        assert cancel["params"]["requestId"] == call["id"]


async def test_an_answer_after_the_limit_is_dropped_quietly(tmp_path: Path) -> None:
    async with backend(rude("late-answers", "0.5"), tmp_path) as rig:
        await rig.call("echo", message="connected")
        with pytest.raises(CallTimeout):
            await rig.call("misbehave", within=0.1)
        assert (await rig.call("misbehave"))["content"]
        assert rig.sink.logs == []


async def test_a_server_that_stops_reading_is_refused_before_memory_grows_without_bound(
    tmp_path: Path,
) -> None:
    bound = 1 << 20
    async with backend(
        rude("never-reads"), tmp_path, options=replace(FAST, max_unread=bound)
    ) as rig:
        await rig.call("misbehave")
        with pytest.raises(ServerUnavailable, match=r"does not read: \d{7} bytes") as refused:
            await _call_in_vain(rig, "x" * bound)
    (waiting,) = re.findall(r"\d{7}", str(refused.value))
    assert bound < int(waiting) < 3 * bound


async def _call_in_vain(rig: Rig, message: str) -> None:
    """On a busy machine some calls give up before they are written, so it is more than three."""
    for _ in range(100):
        with suppress(CallTimeout):
            await rig.call("echo", within=0.1, message=message)


async def test_an_unknown_question_of_the_server_is_refused_politely(tmp_path: Path) -> None:
    async with backend(rude("unknown-request"), tmp_path) as rig:
        await rig.call("misbehave")
        assert "-32601" in str(await rig.call("misbehave"))


async def test_a_ping_of_the_server_is_answered(tmp_path: Path) -> None:
    async with backend(rude("ping-client"), tmp_path) as rig:
        answer = await rig.text("misbehave")
        assert '"result": {}' in answer or '"result":{}' in answer


async def test_a_question_that_the_server_takes_back_is_withdrawn(tmp_path: Path) -> None:
    async with backend(rude("withdraw", "0.1"), tmp_path) as rig:
        await rig.call("misbehave")
        assert rig.sink.received[-2:] == [
            "asked elicitation/create",
            "withdrawn elicitation/create",
        ]
        assert not rig.sink.questions[0].respond(b'{"action":"decline"}')


async def test_ten_thousand_notifications_arrive_in_order_and_delay_no_answer(
    tmp_path: Path,
) -> None:
    async with backend(rude("flood", "10000"), tmp_path) as rig:
        await rig.call("misbehave")
        numbers = [params["data"] for _, params in rig.sink.notifications]
        assert numbers == list(range(10_000))
