"""`emceepee tail-logs` as a person and a program use it, beside real proxies."""

import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.journal import JournalEvent
from tests.e2e.clients.raw import PROXY, WAIT_S, Proxy, entry, proxy, surroundings, until
from tests.fork_server import own_the_terminal
from tests.peers import plain

# Far more than is promised: a busy machine is no fault of ours.
LIVE_SECONDS = 5.0
START_SECONDS = 10.0
SGR = re.compile(r"\x1b\[[\d;]*m")

Message = dict[str, Any]


class Tail:
    """The command under way; whatever it says is kept."""

    def __init__(
        self,
        tmp_path: Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        columns: int | None = None,
    ) -> None:
        self.said = b""
        self.over = False
        self._errors = tmp_path / "tail-stderr.txt"
        ours, theirs = _terminal(columns) if columns else os.pipe()
        self.fd = ours
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*PROXY, "tail-logs", *arguments],
                stdin=theirs if columns else subprocess.DEVNULL,
                stdout=theirs,
                stderr=errors,
                env=_environment(tmp_path, env),
                start_new_session=columns is not None,
                preexec_fn=own_the_terminal if columns else None,  # noqa: PLW1509 - there are no threads
            )
        os.close(theirs)

    @property
    def text(self) -> str:
        """So far: a terminal may give the half of a character."""
        return self.said.decode(errors="replace").replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """The whole lines so far."""
        return self.text.split("\n")[:-1]

    @property
    def objects(self) -> list[Message]:
        return [json.loads(line) for line in self.lines]

    def errors(self) -> str:
        return self._errors.read_text()

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert not self.over, f"it ended before {what}: {self.text} {self.errors()}"
            left = deadline - time.monotonic()
            assert left > 0, f"waited in vain for {what}: {self.text} {self.errors()}"
            self._read(min(left, 0.1))

    def until_said(self, text: str) -> None:
        self.until(lambda: text in self.text, f"{text!r}")

    def wait(self) -> int:
        self.until(lambda: self.over, "its end")
        return self.process.wait(WAIT_S)

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def close_pipe(self) -> None:
        os.close(self.fd)
        self.fd = -1

    def clear_away(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.fd >= 0:
            os.close(self.fd)

    def _read(self, seconds: float) -> None:
        if not select.select([self.fd], [], [], seconds)[0]:
            return
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:  # how a terminal says that nobody has it open any more
            data = b""
        self.over = not data
        self.said += data


def _terminal(columns: int) -> tuple[int, int]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return ours, theirs


def _environment(tmp_path: Path, more: Mapping[str, str] | None) -> dict[str, str]:
    where = {
        "EMCEEPEE_CONFIG": str(tmp_path / "config.json"),
        "EMCEEPEE_LOG_DIR": str(tmp_path / "journal"),
        "EMCEEPEE_STATE_DIR": str(tmp_path / "state"),
    }
    changing = {"COLUMNS", "NO_COLOR", "PYTHONIOENCODING", "PYTHONUNBUFFERED"}
    kept = {key: value for key, value in os.environ.items() if key not in changing}
    return {**kept, "TERM": "xterm-256color", "TZ": "UTC", **where, **(more or {})}


@contextmanager
def tail(tmp_path: Path, *arguments: str, **options: Any) -> Iterator[Tail]:
    made = Tail(tmp_path, *arguments, **options)
    try:
        yield made
    finally:
        made.clear_away()


def run(tmp_path: Path, *arguments: str, **options: Any) -> list[str]:
    """What it shows of the past; it ends well and without a word beside."""
    with tail(tmp_path, "--no-follow", *arguments, **options) as made:
        assert made.wait() == 0, made.errors()
        assert made.errors() == ""
        return made.lines


def record(n: int, **fields: Any) -> bytes:
    """The n-th line of a journal, of a day long gone."""
    time_of_day = f"{n // 3_600_000:02}:{n // 60_000 % 60:02}:{n // 1000 % 60:02}.{n % 1000:03}"
    base: Message = {
        "timestamp": f"2020-02-02T{time_of_day}Z",
        "level": "info",
        "event": "server_connected",
        "session": "01SESSION",
        "data": {"n": n},
    }
    return json.dumps({**base, **fields}).encode() + b"\n"


def journal(tmp_path: Path, content: bytes, *, pid: int = 1) -> Path:
    path = tmp_path / "journal" / f"emceepee-20200202T000000Z-{pid}-S.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def append(path: Path, line: bytes) -> None:
    with path.open("ab") as file:
        file.write(line)


@contextmanager
def talkative(tmp_path: Path, **logging: Any) -> Iterator[Proxy]:
    """A proxy that keeps everything, with a server `git` that is connected."""
    servers = {"git": entry(plain(), tmp_path, "git")}
    settings = {"logging": {"level": "debug", **logging}}
    with proxy(tmp_path, servers=servers, settings=settings, arguments=["serve"]) as made:
        made.greet()
        made.run("git", "echo", message="hello")
        place = Path(logging.get("directory", tmp_path / "journal"))
        until(lambda: list(place.glob("*.jsonl*")), "its journal, which nobody waits for")
        yield made


def say(client: Proxy, text: str, n: int = 1) -> None:
    client.run("git", "stderr", text=text, n=n)


def outputs(objects: Sequence[Message]) -> list[str]:
    return [found["data"]["text"] for found in objects if found["event"] == "server_output"]


# Beside a running proxy


def test_lines_of_a_running_proxy_are_shown_as_they_come(tmp_path: Path):
    with talkative(tmp_path) as client, tail(tmp_path, "--source", "stderr") as shown:
        say(client, "first")
        shown.until_said("stderr: first")
        say(client, "second word")
        shown.until_said("stderr: second word")
        pattern = r"\d\d:\d\d:\d\d\.\d{3} \w+ +git        stderr: (first|second word)"
        assert all(re.fullmatch(pattern, line) for line in shown.lines), shown.text
        assert len(shown.lines) == 2
        assert shown.interrupt() == 0
        assert shown.errors() == ""


def test_a_line_is_shown_soon_after_it_is_written(tmp_path: Path):
    path = journal(tmp_path, record(0))
    with tail(tmp_path) as shown:
        shown.until_said("n=0")
        for n in range(1, 4):
            began = time.monotonic()
            append(path, record(n))
            shown.until_said(f"n={n}\n")
            assert time.monotonic() - began < LIVE_SECONDS


def test_nothing_is_lost_or_doubled_by_rotation_while_following(tmp_path: Path):
    with (
        talkative(tmp_path, max_bytes=2_048, files=500) as client,
        tail(tmp_path, "--json", "--source", "stderr", "--since", "1d") as shown,
    ):
        for n in range(30):
            say(client, f"line {n}", n=10)
        expected = [f"line {n}" for n in range(30) for _ in range(10)]
        shown.until(lambda: len(shown.lines) >= len(expected), "all lines")
        assert outputs(shown.objects) == expected
        assert len(list((tmp_path / "journal").iterdir())) > 10
        assert shown.interrupt() == 0
    assert outputs(list(map(json.loads, run(tmp_path, "--json", "--since", "1d")))) == expected


def test_a_proxy_that_starts_again_is_followed(tmp_path: Path):
    with tail(tmp_path, "--json") as shown:
        for text in ("first", "second"):
            with talkative(tmp_path) as client:
                say(client, text)
                shown.until_said(f'"text":"{text}"')
                client.close_stdin()
                assert client.wait() == 0
        shown.until(lambda: shown.text.count("registry_shutdown_complete") == 2, "both ends")
        assert outputs(shown.objects) == ["first", "second"]
        sessions = list(dict.fromkeys(found["session"] for found in shown.objects))
        assert len(sessions) == 2
        assert shown.interrupt() == 0
    first, second = sessions
    whole = [json.loads(line) for line in run(tmp_path, "--json", "-n", "1000")]
    assert [found["session"] for found in whole] == sorted(
        (found["session"] for found in whole), key=sessions.index
    )
    of_second = [json.loads(line) for line in run(tmp_path, "--json", "--session", second.lower())]
    assert {found["session"] for found in of_second} == {second}
    assert first != second


def test_several_proxies_are_shown_as_one_by_time(tmp_path: Path):
    one, two = tmp_path / "one", tmp_path / "two"
    for home in (one, two):
        home.mkdir()
    with talkative(one) as first, talkative(two, directory=str(one / "journal")) as second:
        with tail(one, "--json") as shown:
            for n in range(5):
                say(first, f"first {n}")
                shown.until_said(f"first {n}")
                say(second, f"second {n}")
                shown.until_said(f"second {n}")
            assert shown.interrupt() == 0
        said = [json.loads(line) for line in run(one, "--json", "-n", "1000")]
        assert said == sorted(said, key=lambda found: found["timestamp"])
        assert len({found["session"] for found in said}) == 2
        words = [text for n in range(5) for text in (f"first {n}", f"second {n}")]
        assert outputs(said) == words


def test_the_directory_of_the_configuration_is_used(tmp_path: Path):
    path = journal(tmp_path, record(7))
    elsewhere = path.parent.rename(tmp_path / "elsewhere")
    surroundings(tmp_path, settings={"logging": {"directory": str(elsewhere)}})
    assert "n=7" in run(tmp_path)[0]
    options = ["--log-dir", str(elsewhere)]
    assert "n=7" in run(tmp_path, *options, env={"EMCEEPEE_CONFIG": os.devnull})[0]


# Before there is anything


def test_without_a_journal_it_says_so_once_and_waits(tmp_path: Path):
    with tail(tmp_path) as shown:
        deadline = time.monotonic() + WAIT_S
        while "No journal" not in shown.errors():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        journal(tmp_path, record(1))
        shown.until_said("n=1")
        assert shown.interrupt() == 0
        assert shown.errors() == (
            f"No journal in {tmp_path / 'journal'}: waiting for a proxy to start.\n"
        )


def test_without_a_journal_and_without_following_it_ends_well(tmp_path: Path):
    with tail(tmp_path, "--no-follow") as shown:
        assert shown.wait() == 0
        assert shown.text == ""
        assert shown.errors().count("\n") == 1
        assert "No journal in" in shown.errors()


def test_an_event_that_does_not_exist_is_answered_with_the_names(tmp_path: Path):
    with tail(tmp_path, "--no-follow", "--event", "zzz") as shown:
        assert shown.wait() == 0
        said = shown.errors().partition("No journal")[0]
    assert said.startswith("There is no event zzz; there are:\n")
    assert all(name in said.replace(",", "").split() for name in map(str, JournalEvent))
    assert max(map(len, said.split("\n"))) < 80


def test_a_directory_that_is_none_is_named(tmp_path: Path):
    (tmp_path / "journal").write_text("a file")
    with tail(tmp_path) as shown:
        assert shown.wait() == 1
        assert "cannot be read: Not a directory." in shown.errors()
        assert "--log-dir" in shown.errors()
        assert "Traceback" not in shown.errors()


# What is shown

MIXED = [
    record(
        0, level="debug", server="git", event="server_output", data={"n": 0, "source": "stderr"}
    ),
    record(
        1, level="debug", server="git", event="server_output", data={"n": 1, "source": "stdout"}
    ),
    record(2, level="info", server="git"),
    record(3, level="warning", server="time", event="server_reconnecting"),
    record(4, level="error", server="time", event="task_failed", data={"n": 4, "error": "a b"}),
    b"this is n=5, not JSON\n",
    record(6, level="error", event="config_invalid", session="02OTHER", request_id="r-9"),
    record(7, level="info", server="time", data={"n": 7, "source": "stderr"}),
]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "01234567"),
        ("-n 3", "567"),
        ("-n 0", ""),
        ("-n 2 --server git", "12"),
        ("--server git", "012"),
        ("--server git --server time", "012347"),
        ("--level warning", "346"),
        ("--level ERROR -n 1", "6"),
        ("--source stderr", "0"),
        ("--source stdout", "1"),
        ("--source protocol", ""),
        ("--event task_failed --event config_invalid", "46"),
        ("--session 01", "0123 47"),
        ("--session 02other", "6"),
        ("--session other", "6"),
        ("--grep not.json", "5"),
        ("--grep (n=3|failed:.a.b)", "34"),
        ("--grep request_id=r-9", "6"),
        ("--since 2020-02-02T00:00:00.003Z", "34567"),
        ("--since 2020-02-02T00:00:00.003Z -n 1", "7"),
        ("--since 2020-02-02T00:00:00.004", "4567"),
        ("--since 10m", ""),
        ("--since 9999d --level error", "46"),
        ("--json", "0123467"),
        ("--json --since 2020-01-01 --server time --level info", "347"),
    ],
)
def test_filters(tmp_path: Path, arguments: str, expected: str):
    journal(tmp_path, b"".join(MIXED))
    shown = run(tmp_path, *arguments.split())
    found = [re.search(r'\bn"?[=:]\s?(\d)', line) for line in shown]
    assert [match[1] for match in found if match] == list(expected.replace(" ", ""))
    assert len(found) == len(expected.replace(" ", ""))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--server", "tme"], "no line of server 'tme' is on record. Last seen: time and git."),
        (["--session", "zzz"], "no line of session 'zzz' is on record. Last seen: "),
    ],
)
def test_a_name_that_is_in_no_line_is_told_with_those_that_are(
    tmp_path: Path, arguments: list[str], said: str
):
    path = journal(tmp_path, record(1, server="git") + record(2, server="time"))
    with tail(tmp_path, "--no-follow", *arguments) as shown:
        assert shown.wait() == 2
        assert said in shown.errors()
    with tail(tmp_path, *arguments) as shown:
        until(lambda: said in shown.errors(), "the note")
        append(path, record(3, server="tme", session="zzz"))
        shown.until_said("n=3")
        assert shown.interrupt() == 0
        assert shown.errors().count("\n") == 1


def test_a_name_whose_lines_do_not_fit_otherwise_is_no_mistake(tmp_path: Path):
    journal(tmp_path, record(1, server="git") + record(2, server="time"))
    for arguments in (["--level", "error"], ["-n", "0"], ["--since", "2099-01-01"]):
        assert run(tmp_path, "--server", "git", *arguments) == []


def test_filters_hold_for_lines_to_come(tmp_path: Path):
    path = journal(tmp_path, record(0, server="git"))
    with tail(tmp_path, "--server", "git", "--level", "warning") as shown:
        for n in range(1, 30):
            server, level = ("git", "time")[n % 2], ("info", "error")[n % 3 == 0]
            append(path, record(n, server=server, level=level))
        append(path, record(99, server="git", level="error"))
        shown.until_said("n=99")
        assert re.findall(r"n=(\d+)", shown.text) == ["6", "12", "18", "24", "99"]


def test_json_is_the_lines_to_the_letter_behind_the_version_of_their_shape(tmp_path: Path):
    journal(tmp_path, b"".join(MIXED))
    shown = run(tmp_path, "--json")
    version = '{"schema_version":1,'
    assert [b"{" + line.removeprefix(version).encode() + b"\n" for line in shown] == [
        line for line in MIXED if line.startswith(b"{")
    ]


def test_lines_as_json_do_not_steer_a_terminal_and_stay_the_same_json(tmp_path: Path):
    said = "\x9b2J\u202ebye\U000e0041"
    line = json.dumps({**json.loads(record(1)), "data": {"text": said}}, ensure_ascii=False)
    journal(tmp_path, line.encode() + b"\n")
    (shown,) = run(tmp_path, "--json")
    assert r'"\u009b2J\u202ebye\udb40\udc41"' in shown
    assert json.loads(shown) == {"schema_version": 1, **json.loads(line)}


def test_a_line_for_people(tmp_path: Path):
    data = {"attempt": 2, "error": "it said \x1b[31mno\x1b[0m\u202e", "argv": ["a", "b"]}
    content = record(
        45_296_789, level="warning", server="git", event="server_reconnecting", data=data
    )
    journal(tmp_path, content + b"foreign \x1b]0;title\x07 \xff\n" + record(45_296_790))
    first, foreign, last = run(tmp_path)
    assert first == (
        "2020-02-02 12:34:56.789 warning  git        server_reconnecting: "
        r'it said \x1b[31mno\x1b[0m\u202e attempt=2 argv=["a","b"]'
    )
    assert foreign == r"foreign \x1b]0;title\x07 \xff"
    assert last == "2020-02-02 12:34:56.790 info     -          server_connected n=45296790"


def test_what_the_output_cannot_spell_is_escaped(tmp_path: Path):
    journal(tmp_path, record(1, data={"text": "größe"}))
    shown = run(tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert shown[0].endswith(r"server_connected: gr\xf6\xdfe")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--grep", "("], "--grep"),
        (["--since", "yesterday"], "--since"),
        (["--since", "0001-01-01"], "--since"),
        (["--level", "loud"], "--level"),
        (["--source", "disk"], "--source"),
        (["-n", "-1"], "--lines"),
    ],
)
def test_a_mistake_in_the_options_is_named(tmp_path: Path, arguments: list[str], word: str):
    with tail(tmp_path, *arguments) as shown:
        assert shown.wait() == 2
        assert word in shown.errors()
        assert "Traceback" not in shown.errors()


# A hundred thousand lines, and how it ends


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return journal(tmp_path, b"".join(record(n, server="git") for n in range(100_000)))


def test_the_end_of_a_large_journal_is_shown_soon(tmp_path: Path, large: Path):
    began = time.monotonic()
    with tail(tmp_path) as shown:
        shown.until_said("n=99980\n")
        assert time.monotonic() - began < START_SECONDS
        shown.until_said("n=99999\n")
        assert len(shown.lines) == 20
        append(large, record(100_000))
        shown.until_said("n=100000\n")


@pytest.mark.usefixtures("large")
def test_all_of_a_large_journal_can_be_read(tmp_path: Path):
    shown = run(tmp_path, "--json", "--since", "2020-01-01")
    assert [json.loads(line)["data"]["n"] for line in shown] == list(range(100_000))


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("arguments", [[], ["--since", "2020-01-01"]], ids=["idle", "busy"])
def test_a_closed_pipe_ends_it_quietly(tmp_path: Path, arguments: list[str]):
    with tail(tmp_path, *arguments) as shown:
        shown.until_said("\n")
        if not arguments:
            shown.until_said("n=99999\n")
        shown.close_pipe()
        assert shown.process.wait(WAIT_S) == 0
        assert shown.errors() == ""


PICK = "import json, sys\nfor line in sys.stdin: print(json.loads(line)['data']['n'], flush=True)"


def test_the_lines_to_come_pass_through_a_filter_for_json(tmp_path: Path):
    """Each of them at once: nothing is held back until there is more."""
    jq = [shutil.which("jq"), "--unbuffered", ".data.n"]
    path = journal(tmp_path, record(0))
    with tail(tmp_path, "--json") as shown:
        picked = subprocess.Popen(
            jq if jq[0] else [sys.executable, "-c", PICK],
            stdin=shown.fd,
            stdout=subprocess.PIPE,
        )
        shown.close_pipe()
        assert picked.stdout is not None
        for n in range(4):
            assert picked.stdout.readline() == f"{n}\n".encode()
            append(path, record(n + 1))
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(WAIT_S) == 0
        assert picked.stdout.read() in (b"", b"4\n")
        assert picked.wait(WAIT_S) == 0
        picked.stdout.close()
        assert shown.errors() == ""


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("options", ["", "--since 2020-01-01", "--json -n 50000", "--no-follow"])
def test_the_first_lines_are_enough_for_a_pipeline(tmp_path: Path, options: str):
    line = f"{shlex.join(PROXY)} tail-logs {options} | head -n 3"
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        capture_output=True,
        env=_environment(tmp_path, None),
        timeout=WAIT_S,
        check=True,
    )
    assert done.stdout.count(b"\n") == 3
    assert done.stderr == b""


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("arguments", [[], ["--since", "2020-01-01"]], ids=["idle", "busy"])
def test_an_interrupt_ends_it_quietly(tmp_path: Path, arguments: list[str]):
    with tail(tmp_path, *arguments) as shown:
        shown.until_said("\n")
        assert shown.interrupt() == 0
        assert shown.errors() == ""


@pytest.mark.usefixtures("large")
def test_an_interrupt_ends_it_even_when_nobody_reads_the_pipe(tmp_path: Path):
    with tail(tmp_path, "--since", "2020-01-01") as shown:
        # The pipe is full by then, and the command waits for somebody to read it.
        deadline = time.monotonic() + WAIT_S
        while _state(shown.process.pid) != "S" or not _is_full(shown.fd):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(WAIT_S) == 0
        assert shown.errors() == ""


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _is_full(fd: int) -> bool:
    waiting = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0]
    return waiting > 40_000  # of 64 KB in pages, of which writes may leave the ends free


# On a terminal

WIDE = record(3, server="a-long-name", data={"text": "日本語" * 30})


def test_on_a_terminal_lines_are_coloured_and_fit_the_width(tmp_path: Path):
    path = journal(tmp_path, b"".join(MIXED) + record(8, data={"text": "x" * 500}) + WIDE)
    with tail(tmp_path, columns=80) as shown:
        shown.until_said("日")
        append(path, record(9, level="error", server="git"))
        shown.until_said("n=9")
        assert "\x1b[1;38;5;160m E\x1b[0m" in shown.text
        assert "\x1b[38;5;243mthis is n=5, not JSON\x1b[0m" in shown.text
        plain_lines = [SGR.sub("", line) for line in shown.lines]
        assert all("\x1b" not in line for line in plain_lines)
        assert [_columns(line) for line in plain_lines if line.endswith("…")] == [80, 80]
        assert max(map(_columns, plain_lines)) == 80
        styles = {
            re.search(r"\x1b\[([\d;]+)m git ", line)[1] for line in shown.lines if " git " in line
        }
        assert len(styles) == 1
        os.write(shown.fd, b"\x03")
        assert shown.wait() == 0
        assert shown.errors() == ""


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_on_a_terminal_without_colours_there_are_none(tmp_path: Path, env: dict[str, str]):
    journal(tmp_path, b"".join(MIXED) + record(8, data={"text": "x" * 500}))
    lines = run(tmp_path, columns=60, env=env)
    assert "\x1b" not in "".join(lines)
    assert max(map(len, lines)) == 60
    assert len(lines) == 9


def _columns(line: str) -> int:
    return len(line) + sum(character in "日本語" for character in line)


# Its help

OPTIONS = (
    *("-n", "--lines", "--no-follow", "--server", "--level", "--source", "--event", "--grep"),
    *("--since", "--session", "--json", "--log-dir"),
)
LOADED = """
import sys
sys.argv = ["emceepee", "tail-logs", "--help"]
from emceepee_stdio.__main__ import main
try:
    main()
except SystemExit as end:
    print("code", end.code)
heavy = {"mcp", "httpx2", "regex"}
print("loaded", sorted(heavy.intersection(name.partition(".")[0] for name in sys.modules)))
"""


def test_help_has_an_example_and_loads_nothing_heavy(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        capture_output=True,
        text=True,
        env={**_environment(tmp_path, None), "NO_COLOR": "1", "COLUMNS": "80"},
        timeout=WAIT_S,
        check=True,
    )
    assert "code 0" in done.stdout
    assert "loaded []" in done.stdout
    assert "Examples:\n  emceepee tail-logs" in done.stdout
    for option in OPTIONS:
        assert option in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
