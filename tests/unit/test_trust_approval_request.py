import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.trust.approval_request import ApprovalRequest, approval_request_for, shown
from emceepee_stdio.visible_text import shell_word

KEY = bytes(32)
ENV = {"TOKEN": "hunter2", "MODE": "a"}


def config(*argv: str, **fields: Any) -> ServerConfig:
    return ServerConfig(name="s", command=argv[0], args=tuple(argv[1:]), **fields)


def proposal(**changed: Any) -> ApprovalRequest:
    facts: dict[str, Any] = {
        "name": "s",
        "program": "/usr/bin/node",
        "argv": ["node", "server.js", "--port", "1"],
        "cwd": "/home/me",
        "env": dict(ENV),
    }
    return ApprovalRequest(**(facts | changed))


def warnings(*argv: str, program: str | None = None, **fields: Any) -> str:
    return "\n".join(approval_request_for(config(*argv, **fields), program=program).remarks)


# What a person sees


def test_a_person_sees_the_whole_command_the_program_the_directory_and_the_names_of_variables():
    lines = proposal().text().split("\n")
    assert lines == [
        "Server: s",
        "Command: node server.js --port 1",
        "Program: /usr/bin/node",
        "Directory: /home/me",
        "Variables: TOKEN, MODE",
    ]


def test_a_link_is_shown_with_where_it_leads_and_both_count():
    linked = proposal(program="/venv/bin/python", file="/usr/bin/python3.11")
    assert "Program: /venv/bin/python, a link to /usr/bin/python3.11" in linked.text().split("\n")
    other = proposal(program="/other/bin/python", file="/usr/bin/python3.11")
    assert linked.digest(KEY) != other.digest(KEY)
    assert linked.digest(KEY) != proposal(program="/venv/bin/python", file="/x").digest(KEY)
    assert "Program: /usr/bin/node" in proposal(file="/usr/bin/node").text().split("\n")


def test_the_values_of_variables_and_headers_are_not_shown():
    assert "hunter2" not in proposal().text()
    assert "hunter2" not in repr(proposal())
    web = ApprovalRequest(
        name="w", url="https://example.com/mcp", headers={"Authorization": "hunter2"}
    )
    assert web.text().split("\n") == [
        "Server: w",
        "Address: https://example.com/mcp",
        "Headers: Authorization",
    ]


def test_no_length_of_arguments_is_cut():
    argv = ["run", *(f"argument-{i}-{'x' * 200}" for i in range(50))]
    assert "Command: " + shlex.join(argv) in proposal(argv=argv).text().split("\n")


def test_an_empty_argument_is_seen():
    assert "Command: run '' x" in proposal(argv=["run", "", "x"]).text()


FORGED = ["\nProgram: /bin/true", "\r\nProgram: /bin/true", "\x1b[2K\x1b[1A", "\u202egnp.exe"]
FORGED += [
    "\u2028Program: x",
    "\u2029x",
    "\x85x",
    "\u200bx",
    "\x00",
    "\u2066x\u2069",
    "\xa0",
    "\x0b",
]
UNSEEN = [
    "\u3164",
    "\u2800",
    "\u115f",
    "\uffa0",
    "\u034f",
    "\u180e",
    "\ufe0f",
    "\U000e0101",
    "\xad",
]
FORGED += UNSEEN


@pytest.mark.parametrize("text", FORGED)
def test_nothing_in_a_proposal_breaks_out_of_its_line(text: str):
    forged = ApprovalRequest(
        name=f"n{text}",
        program=f"p{text}",
        file=f"f{text}",
        argv=[f"c{text}", f"a{text}"],
        cwd=f"d{text}",
        env={f"e{text}": "x"},
    )
    assert len(forged.text().splitlines()) == 5
    assert len(forged.text().split("\n")) == 5
    assert all(line.isprintable() for line in forged.text().split("\n"))
    web = ApprovalRequest(name="w", url=f"https://x/{text}", headers={f"h{text}": "x"})
    assert len(web.text().splitlines()) == 3
    assert web.text().replace("\n", "").isprintable()


def test_no_name_passes_for_the_next_part_of_its_line():
    forged = ApprovalRequest(
        name="files, in /safe",
        program="/bin/cat",
        argv=["cat"],
        cwd="/evil, variables A",
        chosen_cwd=True,
        env={"B, C": "x", "D": "x"},
    )
    assert forged.lines()[2] == (
        'Server "files, in /safe", program /bin/cat, in "/evil, variables A", variables "B, C", D'
    )


@given(st.text())
def test_whatever_is_shown_is_printable_and_on_one_line(text: str):
    assert shown(text).isprintable()
    if text.isascii() and text.isprintable() and "    " not in text:
        assert shown(text) == text


@pytest.mark.parametrize("letter", UNSEEN, ids=ascii)
def test_letters_that_cannot_be_seen_are_spelt_out(letter: str):
    seen = shown(f"a{letter}b")
    assert letter not in seen
    assert seen.startswith("a\\")
    assert letter not in proposal(argv=["run", f"a{letter}b"]).text()


def test_a_long_run_of_spaces_is_shown_as_its_number():
    text = proposal(argv=["run", f"good{' ' * 300}--evil", "a   b"]).text()
    assert "good[300 spaces]--evil" in text
    assert shell_word("a   b") in text


# What is remembered


def test_the_same_proposal_has_the_same_hash_and_another_key_another_one():
    assert proposal().digest(KEY) == proposal().digest(KEY)
    assert proposal().digest(KEY) != proposal().digest(b"\x01" * 32)


@pytest.mark.parametrize(
    "changed",
    [
        {"program": "/tmp/node"},
        {"argv": ["node", "server.js", "--port", "2"]},
        {"argv": ["node", "server.js", "--port 1"]},
        {"argv": ["nodejs", "server.js", "--port", "1"]},
        {"cwd": "/home/you"},
        {"cwd": None},
        {"env": {**ENV, "TOKEN": "hunter3"}},
        {"env": {"TOKEN": "hunter2"}},
        {"env": {**ENV, "MORE": ""}},
        {"env": {"TOKEN": "a", "MODE": "hunter2"}},
        {"url": "https://example.com/"},
        {"headers": {"A": "b"}},
    ],
    ids=str,
)
def test_each_part_that_is_changed_alone_is_another_proposal(changed: dict[str, Any]):
    assert proposal(**changed).digest(KEY) != proposal().digest(KEY)


def test_the_name_of_the_server_and_the_order_of_variables_do_not_matter():
    again = proposal(name="other", env=dict(reversed(ENV.items())))
    assert again.digest(KEY) == proposal().digest(KEY)


def test_a_header_is_the_same_in_any_case_but_not_with_another_value():
    def web(**headers: str) -> str:
        return ApprovalRequest(name="w", url="https://x/", headers=headers).digest(KEY)

    assert web(Accept="x") == web(accept="x")
    assert web(Accept="x") != web(Accept="y")


def test_variables_of_ours_that_it_gets_are_a_part_of_the_proposal():
    entry = config("node", env={"A": "1"})
    given_one = approval_request_for(entry, program="/n", passed={"TOKEN": "x"})
    assert "Variables: TOKEN, A" in given_one.text()
    other = approval_request_for(entry, program="/n", passed={"TOKEN": "y"})
    assert given_one.digest(KEY) != other.digest(KEY)


# Warnings


@pytest.mark.parametrize(
    "argv",
    [
        ["sh", "-c", "x"],
        ["/bin/bash", "script"],
        ["BASH.EXE"],
        ["C:\\Windows\\cmd.exe", "/c", "x"],
        ["pwsh"],
        ["busybox", "sh"],
        ["env", "A=1", "sh", "-c", "x"],
        ["timeout", "-k", "5", "10", "bash", "-c", "x"],
        ["nice", "-n", "5", "zsh"],
    ],
    ids=shlex.join,
)
def test_a_shell_is_warned_of(argv: list[str]):
    assert "It is a shell" in warnings(*argv)


def test_a_shell_is_seen_behind_a_link_of_another_name():
    assert "It is a shell" in warnings("innocent", program="/usr/bin/dash")


@pytest.mark.parametrize(
    "argv", [["sudo", "x"], ["/usr/bin/doas", "x"], ["pkexec", "x"], ["env", "sudo", "-n", "x"]]
)
def test_the_rights_of_another_user_are_warned_of(argv: list[str]):
    assert "rights of another user" in warnings(*argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["python3.11", "-c", "import os"],
        ["python", "-I", "-c", "import os"],
        ["env", "python3", "-c", "import os"],
        ["node", "-e", "x"],
        ["node", "--eval", "x"],
        ["deno", "eval", "x"],
        ["ruby", "-e", "x"],
        ["perl", "-E", "x"],
        ["php", "-r", "x"],
        ["awk", 'BEGIN{system("id")}'],
        ["/usr/bin/gawk", "x"],
        ["find", ".", "-exec", "id", ";"],
        ["git", "-c", "core.pager=id", "log"],
        ["npx", "-y", "--package=foo@1.0.0", "-c", "id"],
        ["python3", "-cimport os"],
        ["python3", "-Icimport os"],
        ["python3", "-W", "ignore", "-cimport os"],
        ["python3", "-X", "dev", "server", "-cimport os; os.system('id')"],
        ["uv", "run", "python", "-cimport os"],
        ["perl", "-esystem(1)"],
        ["perl", "-wEsay 1"],
        ["perl", "-lane", "x"],
        ["perl", "-Mstrict;system(1)", "x"],
        ["ruby", "-eputs 1"],
        ["ruby", "-neputs 1"],
        ["node", "-pe", "x"],
        ["node", "-ex()"],
        ["node", "--eval=x"],
        ["nodejs", "-e", "x"],
        ["node", "--import", "data:text/javascript,x"],
        ["php", "-rsystem(1);"],
        ["lua5.4", "-eos.exit()"],
        ["sudo", "python3", "-cimport os"],
        ["script", "-c", "id"],
        ["script", "-qc", "id", "/dev/null"],
    ],
    ids=shlex.join,
)
def test_program_text_in_arguments_is_warned_of(argv: list[str]):
    assert "program text that stands in its arguments" in warnings(*argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["python3", "-m", "package", "-config", "x"],
        ["python3", "-Im", "package"],
        ["python3", "-mcode_server"],
        ["uv", "run", "python", "-m", "package"],
        ["node", "--import", "./hook.mjs", "server.js"],
        ["node", "--require=./hook.js", "server.js"],
        ["node", "-r./hook.js", "server.js"],
        ["nodejs", "--loader", "x", "server.js"],
        ["bun", "--preload", "./hook.ts", "server.ts"],
        ["ruby", "-rhook", "server.rb"],
    ],
    ids=shlex.join,
)
def test_code_that_arguments_name_is_warned_of(argv: list[str]):
    assert "It runs code that its arguments name" in warnings(*argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["ld.so", "/bin/sh"],
        ["/lib64/ld-linux-x86-64.so.2", "--preload", "x.so", "/bin/sh"],
        ["/lib/ld-musl-x86_64.so.1", "/bin/sh"],
        ["strace", "-f", "sh", "-c", "x"],
        ["unshare", "-r", "sh"],
        ["flock", "/tmp/lock", "sh", "-c", "x"],
        ["env", "A=1", "setpriv", "--no-new-privs", "sh"],
    ],
    ids=shlex.join,
)
def test_a_program_that_starts_another_is_warned_of(argv: list[str]):
    assert "starts another program, the one behind it." in warnings(*argv)
    assert "It is a shell" in warnings(*argv)


@pytest.mark.parametrize(
    ("argv", "package"),
    [
        (["npx", "-y", "some-server"], "some-server"),
        (["npx", "-y", "@scope/server"], "@scope/server"),
        (["npx", "-y", "server@latest"], "server@latest"),
        (["npx", "--package=server", "bin"], "server"),
        (["npx", "-p", "server", "bin"], "server"),
        (["bunx", "server"], "server"),
        (["uvx", "mcp-server"], "mcp-server"),
        (["uvx", "--from", "mcp-server", "run"], "mcp-server"),
        (["uvx", "--python", "3.12", "mcp-server"], "mcp-server"),
        (["pipx", "run", "mcp-server"], "mcp-server"),
        (["env", "A=1", "npx", "-y", "server"], "server"),
        (["npx"], "a package"),
    ],
    ids=str,
)
def test_a_package_without_a_version_is_warned_of(argv: list[str], package: str):
    assert f"downloads and runs {package} in its newest version" in warnings(*argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["npx", "-y", "server@1.2.3"],
        ["npx", "-y", "@scope/server@2.0.0"],
        ["uvx", "mcp-server==1.0"],
        ["uvx", "mcp-server@1.0"],
        ["uvx", "--from", "mcp-server==1.0", "run"],
        ["pipx", "run", "mcp-server==1.0"],
        ["node", "server.js"],
        ["python3", "server.py"],
        ["/usr/bin/shellfish"],
        ["python3", "-Werror", "server.py"],
        ["node", "server.js", "-port", "8080", "-p8080"],
        ["script", "log.txt"],
        ["uv", "run", "server.py", "--config=x"],
        ["perl", "-Ilib/extra", "server.pl"],
    ],
    ids=shlex.join,
)
def test_what_is_plain_or_pinned_is_not_warned_of(argv: list[str]):
    assert warnings(*argv) == ""


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "ld_preload",
        "PATH",
        "PYTHONPATH",
        "NODE_OPTIONS",
        "BASH_ENV",
        "DYLD_X",
        "PYTHONUSERBASE",
        "npm_config_registry",
        "UV_INDEX_URL",
        "PIP_INDEX_URL",
        "HOME",
        "_JAVA_OPTIONS",
        "JDK_JAVA_OPTIONS",
        "DOTNET_STARTUP_HOOKS",
        "GIT_EXEC_PATH",
        "GIT_CONFIG_COUNT",
        "PERL5DB",
        "LUA_INIT",
        "LUA_INIT_5_4",
        "BASH_FUNC_ls%%",
    ],
)
def test_variables_that_make_a_program_load_other_code_are_warned_of(name: str):
    assert f"{name} can make it load other code" in warnings("x", env={name: "y", "FINE": "z"})
    assert "FINE" not in warnings("x", env={name: "y", "FINE": "z"})


def test_warnings_come_before_what_may_be_long():
    argv = ["sh", "-c", "x" * 15_000]
    lines = approval_request_for(config(*argv), program="/bin/sh").text().split("\n")
    assert [line.partition(":")[0] for line in lines] == [
        "Server",
        "Beware",
        "Command",
        "Program",
        "Directory",
        "Variables",
    ]


def test_no_warning_is_long_itself():
    long = "x" * 15_000
    named = approval_request_for(config("npx", long, env={f"UV_{long}": "1"})).remarks
    assert len(named) == 2
    assert all(len(remark) < 300 for remark in named)
