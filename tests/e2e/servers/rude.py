"""A legacy server that misbehaves in one way; `echo` and all else is well.

Usage: rude.py MODE [ARGUMENT]

Where a mode misbehaves on a tool call, it does so for every tool but `echo`: call `misbehave`.
With FIXTURE_LOG set it writes down what it hears (see `rpc`).

Opening and ending:
  exit-at-once CODE        writes to stderr and exits before it reads anything
  exit-after-init          exits with code 3 right after answering initialize
  crash-loop               initialises well and dies 50 ms later with code 1
  silent                   never answers anything
  silent-after-init        answers initialize and nothing else
  wrong-version            answers initialize with version 1999-01-01
  init-error               answers initialize with error -32603
  init-wrong-shape SHAPE   answers initialize with a `list`, `null`, or `no-capabilities`
  dies-on-discover         exits with code 1 on a first message other than initialize
  ignores-unknown          does not answer methods that it does not know
  modern-refuses CODE      refuses initialize with that code, and serves the modern era well
  modern-silent            does not answer initialize, and serves the modern era well
  slow-start SECONDS [S]   reads nothing for that long, and dies on anything but initialize then,
                           which it answers S seconds later
  modern-only              refuses initialize with -32022, and serves the modern era well
  stubborn                 ignores EOF, SIGTERM and SIGINT
  slow-exit SECONDS        takes that long to exit after EOF
Noise:
  banner                   prints words for people on stdout, before and amid its frames
  garbage                  writes binary, broken UTF-8 and broken JSON amid its frames
On a tool call:
  crash-on-call            exits with code 1, unanswered
  grandchild-holds-stdout  dies by SIGKILL (tool `die`) while a grandchild keeps stdout open
  never-reads              answers, and never reads stdin again
  huge-line BYTES          answers in one line of at least that size, its newline last
  endless BYTES            answers with a line of that size and no end
  duplicate-answers        answers twice, and once to an id that nobody used
  late-answers SECONDS     answers that much later, cancelled or not
  string-id-answers        answers "1" to 1
  float-id                 answers 1.0 to 1
  no-jsonrpc               leaves `jsonrpc` out of the answer
  result-and-error         answers with both
  result-null              answers with a null result
  batch                    answers inside an array
  deep                     answers with 100,000 nested arrays
  dup-keys                 answers with two `result` keys
  lone-surrogate           answers with half of a surrogate pair
  nan                      answers with NaN and Infinity
  flood COUNT              sends that many log notifications, then answers
  ping-client              pings the client, then answers with the reply
  unknown-request          asks the client `x/y`; the next call is answered with its reply
  withdraw SECONDS         asks for elicitation, cancels it that much later, then answers
"""

import json
import os
import signal
import subprocess
import sys

import dual
import rpc
from calls import Call, Tool
from rpc import Message, text
from rude_base import ANSWERS, HELLO, Rude, answer, framed

SHAPES = {
    "list": [HELLO],
    "null": None,
    "no-capabilities": {key: value for key, value in HELLO.items() if key != "capabilities"},
}
GARBAGE = (
    b"\x00\x01\x02\xff\xfe\n"
    b"caf\xe9 {\xc3\x28}\n"
    b'{"jsonrpc":"2.0","id":99999,"resu\n'
    b"{ this is not JSON }\n"
    b'{"level":"info"\n'
    b"\r\n"
    b'42\n"words"\nnull\n'
)
QUESTION = {"message": "Still there?", "requestedSchema": {"type": "object", "properties": {}}}


class Modes(Rude):
    """One method for each mode that needs more than an odd answer."""

    def exit_at_once(self, code: str = "1") -> None:
        rpc.complain("rude: cannot start: the license file is missing")
        rpc.leave(int(code))

    def exit_after_init(self) -> None:
        def greet_and_go(message: Message) -> None:
            answer(message, HELLO)
            rpc.complain("rude: leaving after initialize")
            rpc.leave(3)

        self.initialize = greet_and_go

    def crash_loop(self) -> None:
        def greet_and_die(message: Message) -> None:
            answer(message, HELLO)
            rpc.later(0.05, rpc.leave, 1)

        self.initialize = greet_and_die

    def silent(self) -> None:
        self.answer = lambda _: None

    def silent_after_init(self) -> None:
        self.only_initialize = True

    def wrong_version(self) -> None:
        self.initialize = lambda m: answer(m, HELLO | {"protocolVersion": "1999-01-01"})

    def init_error(self) -> None:
        error = {"code": -32603, "message": "the database is not there"}
        self.initialize = lambda m: rpc.send({"id": m["id"], "error": error})

    def init_wrong_shape(self, shape: str = "list") -> None:
        result = SHAPES[shape]
        self.initialize = lambda m: rpc.send({"id": m["id"], "result": result})

    def dies_on_discover(self) -> None:
        self.dies_unless_greeted = True

    def ignores_unknown(self) -> None:
        self.unknown = lambda _: None

    def modern_only(self) -> None:
        _modern().run()

    def modern_refuses(self, code: str) -> None:
        server = _modern()
        refusal = rpc.RpcError(int(code), "what is initialize?")
        server._unsupported = lambda _: refusal
        server.run()

    def modern_silent(self) -> None:
        server = _modern()
        server.mute = {"initialize"}
        server.run()

    def slow_start(self, seconds: str, answering: str = "0") -> None:
        rpc.pause(float(seconds))
        self.unknown = lambda _: rpc.leave(1)
        self.initialize = lambda m: rpc.later(float(answering), answer, m, HELLO)

    def stubborn(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.ended = rpc.pause_for_ever

    def slow_exit(self, seconds: str = "3") -> None:
        self.ended = lambda: rpc.pause(float(seconds))

    def banner(self) -> None:
        rpc.write(b"Rude server 1.0, listening on stdio\n\n")
        self.before_frame = lambda: rpc.write(b"INFO: handling a request\n")

    def garbage(self) -> None:
        self.before_frame = lambda: rpc.write(GARBAGE)

    def crash_on_call(self) -> None:
        def crash(_: Message) -> None:
            rpc.complain("rude: out of cheese")
            rpc.leave(1)

        self.misbehave = crash

    def grandchild_holds_stdout(self) -> None:
        child = subprocess.Popen(["sleep", "300"], stdin=subprocess.DEVNULL)
        rpc.record("spawned", child=child.pid)
        self.misbehave = lambda _: os.kill(os.getpid(), signal.SIGKILL)

    def never_reads(self) -> None:
        def answer_and_stop(message: Message) -> None:
            answer(message)
            rpc.pause_for_ever()

        self.misbehave = answer_and_stop

    def huge_line(self, size: str = "1000000") -> None:
        def answer_hugely(message: Message) -> None:
            head, tail = framed(text("|"))(message).split(b"|")
            rpc.write(head)
            for start in range(0, int(size), 65536):
                rpc.write(b"x" * min(65536, int(size) - start))
            rpc.write(tail)

        self.misbehave = answer_hugely

    def endless(self, size: str = "1000000") -> None:
        def write_without_end(_: Message) -> None:
            for _ in range(0, int(size), 65536):
                rpc.write(b"x" * 65536)

        self.misbehave = write_without_end

    def late_answers(self, seconds: str = "1") -> None:
        self.misbehave = lambda m: rpc.later(float(seconds), answer, m)

    def flood(self, count: str = "10000") -> None:
        def notify_then_answer(message: Message) -> None:
            for i in range(int(count)):
                rpc.notify("notifications/message", {"level": "info", "data": i})
            answer(message)

        self.misbehave = notify_then_answer

    def ping_client(self) -> None:
        def ping(message: Message) -> None:
            self.replied = lambda reply: answer(message, text(json.dumps(reply)))
            rpc.send({"id": "ping-1", "method": "ping"})

        self.misbehave = ping

    def unknown_request(self) -> None:
        replies: list[Message] = []
        self.replied = replies.append

        def ask_or_tell(message: Message) -> None:
            if not replies:
                rpc.send({"id": "x-1", "method": "x/y", "params": {"z": 1}})
            answer(message, text(json.dumps(replies.pop()) if replies else "asked"))

        self.misbehave = ask_or_tell

    def withdraw(self, seconds: str = "0.3") -> None:
        def ask_and_cancel(message: Message) -> None:
            rpc.send({"id": "w-1", "method": "elicitation/create", "params": QUESTION})
            rpc.pause(float(seconds))
            rpc.notify("notifications/cancelled", {"requestId": "w-1", "reason": "never mind"})
            answer(message, text("withdrawn"))

        self.misbehave = ask_and_cancel


def _modern() -> dual.Server:
    def echo(_: Call, *, message: str = "") -> Message:
        return text(message)

    server = dual.Server("rude", era="modern")
    server.tools["echo"] = Tool(echo)
    return server


def main(argv: list[str]) -> None:
    mode, *arguments = argv
    server = Modes()
    if mode in ANSWERS:
        server.misbehave = lambda message: rpc.write(ANSWERS[mode](message))
    elif f"  {mode} " in str(__doc__):
        getattr(server, mode.replace("-", "_"))(*arguments)
    else:
        sys.exit(f"rude: no mode {mode}")
    server.run()
    server.ended()
    rpc.leave(0)


if __name__ == "__main__":
    main(sys.argv[1:])
