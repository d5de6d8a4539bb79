import json
import sys
import tomllib
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.config import toml_tables
from emceepee_stdio.config.clients import (
    CLIENTS,
    Client,
    ClientKey,
    NameTaken,
    is_ours,
    leave_alone,
    register,
    unregister,
)
from emceepee_stdio.config.jsonc import CannotEdit, Unreadable
from emceepee_stdio.config.own_file import (
    Outcome,
    judge,
    places,
    put_server,
    remove_server,
    take_over,
)
from emceepee_stdio.errors import ConfigInvalid

POSIX, WINDOWS = PurePosixPath("/home/ada"), PureWindowsPath(r"C:\Users\ada")
APPDATA = {
    "APPDATA": r"C:\Users\ada\AppData\Roaming",
    "LOCALAPPDATA": r"C:\Users\ada\AppData\Local",
}
TABLE = ("mcp_servers", "emceepee")
ENTRY: dict[str, Any] = {"command": "/bin/emceepee", "args": ["serve"], "env": {"PATH": "/a\x7f"}}

every_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)


def place(client: str, platform: str, home: PurePath, **environ: str) -> str:
    return str(CLIENTS[client].places(platform, environ, home)[-1])  # type: ignore[index]


@pytest.mark.parametrize(
    ("client", "darwin", "win32", "linux"),
    [
        (
            "claude-desktop",
            "Library/Application Support/Claude/claude_desktop_config.json",
            r"AppData\Roaming\Claude\claude_desktop_config.json",
            ".config/Claude/claude_desktop_config.json",
        ),
        ("claude-code", ".claude.json", ".claude.json", ".claude.json"),
        ("cursor", ".cursor/mcp.json", r".cursor\mcp.json", ".cursor/mcp.json"),
        (
            "vscode",
            "Library/Application Support/Code/User/mcp.json",
            r"AppData\Roaming\Code\User\mcp.json",
            ".config/Code/User/mcp.json",
        ),
        (
            "windsurf",
            ".codeium/windsurf/mcp_config.json",
            r".codeium\windsurf\mcp_config.json",
            ".codeium/windsurf/mcp_config.json",
        ),
        (
            "zed",
            ".config/zed/settings.json",
            r"AppData\Roaming\Zed\settings.json",
            ".config/zed/settings.json",
        ),
        ("codex", ".codex/config.toml", r".codex\config.toml", ".codex/config.toml"),
        ("gemini", ".gemini/settings.json", r".gemini\settings.json", ".gemini/settings.json"),
        ("qwen", ".qwen/settings.json", r".qwen\settings.json", ".qwen/settings.json"),
        (
            "opencode",
            ".config/opencode/opencode.json",
            r".config\opencode\opencode.json",
            ".config/opencode/opencode.json",
        ),
        ("lm-studio", ".lmstudio/mcp.json", r".lmstudio\mcp.json", ".lmstudio/mcp.json"),
    ],
)
def test_each_client_keeps_its_file_where_its_platform_has_it(
    client: str, darwin: str, win32: str, linux: str
):
    assert place(client, "darwin", POSIX) == f"/home/ada/{darwin}"
    assert place(client, "linux", POSIX) == f"/home/ada/{linux}"
    assert place(client, "win32", WINDOWS) == rf"C:\Users\ada\{win32}"
    assert place(client, "win32", WINDOWS, **APPDATA) == rf"C:\Users\ada\{win32}"


@pytest.mark.parametrize(
    ("client", "platform", "variable", "path"),
    [
        ("claude-desktop", "linux", "XDG_CONFIG_HOME", "/o/Claude/claude_desktop_config.json"),
        ("vscode", "linux", "XDG_CONFIG_HOME", "/o/Code/User/mcp.json"),
        ("zed", "linux", "XDG_CONFIG_HOME", "/o/zed/settings.json"),
        ("vscode", "win32", "APPDATA", "/o/Code/User/mcp.json"),
        ("claude-code", "darwin", "CLAUDE_CONFIG_DIR", "/o/.claude.json"),
        ("codex", "linux", "CODEX_HOME", "/o/config.toml"),
        ("gemini", "linux", "GEMINI_CLI_HOME", "/o/.gemini/settings.json"),
    ],
)
def test_a_variable_moves_the_file(client: str, platform: str, variable: str, path: str):
    assert place(client, platform, POSIX, **{variable: "/o"}) == path
    assert place(client, platform, POSIX, **{variable: ""}).startswith("/home/ada/")


def test_zed_on_a_mac_does_not_follow_the_variable_of_linux():
    assert (
        place("zed", "darwin", POSIX, XDG_CONFIG_HOME="/o") == "/home/ada/.config/zed/settings.json"
    )


def test_claude_desktop_as_a_windows_package_is_looked_for_first():
    first, last = CLIENTS["claude-desktop"].places("win32", APPDATA, WINDOWS)
    assert r"AppData\Local\Packages\Claude_" in str(first)
    assert str(last) == r"C:\Users\ada\AppData\Roaming\Claude\claude_desktop_config.json"


def test_the_table_has_every_name_that_the_command_line_takes():
    assert tuple(CLIENTS) == get_args(ClientKey)


def test_what_shows_that_a_client_is_there():
    code, cursor = CLIENTS["claude-code"], CLIENTS["cursor"]
    assert code.home(POSIX / ".claude.json", {}, POSIX) == POSIX / ".claude"
    assert code.home(POSIX / "x", {"CLAUDE_CONFIG_DIR": "/o"}, POSIX) == PurePosixPath("/o")
    assert cursor.home(POSIX / ".cursor/mcp.json", {}, POSIX) == POSIX / ".cursor"


@every_client
def test_an_entry_has_the_shape_that_its_client_reads(client: Client):
    entry = client.entry("/bin/emceepee", ["serve"], {"PATH": "/bin"})
    text = register(client, None, None, name="emceepee", entry=entry).text or ""
    document = tomllib.loads(text) if client.key == "codex" else json.loads(text)
    section = {"vscode": "servers", "zed": "context_servers", "codex": "mcp_servers"}
    section |= {"opencode": "mcp"}
    found = document[section.get(client.key, "mcpServers")]["emceepee"]
    marks = {"vscode": {"type": "stdio"}, "claude-code": {"type": "stdio"}}
    marks |= {"cursor": {"type": "stdio"}, "zed": {"source": "custom"}}
    settings: dict[str, dict[str, object]] = {
        "claude-code": {"timeout": 660_000},
        "codex": {
            "startup_timeout_sec": 30,
            "tool_timeout_sec": 300,
            "supports_parallel_tool_calls": True,
            "omit_tools_from": ["deferred"],
        },
    }
    if client.key == "opencode":
        line, env = ["/bin/emceepee", "serve"], {"PATH": "/bin"}
        assert found == {"type": "local", "command": line, "environment": env}
        return
    assert found == {
        **marks.get(client.key, {}),
        **settings.get(client.key, {}),
        "command": "/bin/emceepee",
        "args": ["serve"],
        "env": {"PATH": "/bin"},
    }
    assert is_ours(found)


@pytest.mark.parametrize(
    ("entry", "ours"),
    [
        ({"command": "/x/emceepee", "args": ["serve"]}, True),
        ({"command": "emceepee.exe"}, True),
        ({"command": "/x/python", "args": ["-m", "emceepee_stdio"]}, True),
        ({"command": {"path": "uvx", "args": ["emceepee-stdio"]}}, True),
        ({"command": "npx", "args": ["other"]}, False),
        ({"command": {"path": 1}}, False),
        ({"command": "emceepee", "args": "x"}, False),
        ({"url": "https://emceepee"}, False),
        ("emceepee", False),
    ],
)
def test_our_own_entries_are_known(entry: object, *, ours: bool):
    assert is_ours(entry) is ours


def texts(client: Client) -> list[str | None]:
    if client.key == "codex":
        return [
            None,
            "",
            'model = "x"',
            '# mine\nmodel = "x"\r\n',
            'a = "x"\n\n[mcp_servers.time] # here\ncommand = "uvx"\n\n# t\n[profiles.a]\nb = 1\n',
            "[mcp_servers]\n",
        ]
    s = client.section
    return [
        None,
        "",
        "{}",
        "{\n}\n",
        f'{{"{s}":{{}}}}',
        '\ufeff{\r\n\t"a": 1\r\n}\r\n',
        f'// top\n{{\n  "{s}": {{\n    "t": {{"command": "x"}}, // mine\n  }},\n  "z": [1,],\n}}',
        f'{{\n  "{s}": {{ // none\n  }}\n}}\n',
        f'{{"{s}": null}}',
    ]


@every_client
def test_what_was_registered_is_undone_to_the_byte(client: Client):
    for before in texts(client):
        edited = register(client, before, None, name="emceepee", entry=ENTRY)
        assert edited.backs_up
        again = register(client, edited.text, before, name="emceepee", entry=ENTRY)
        assert again.text == edited.text
        renewed = register(
            client, edited.text, before, name="emceepee", entry={**ENTRY, "args": ["serve", "-x"]}
        )
        # The first backup still shows the way back.
        assert not renewed.backs_up
        for text in (edited.text, renewed.text):
            assert unregister(client, text or "", before, name="emceepee").text == before


@every_client
def test_without_its_backup_only_the_entry_goes(client: Client):
    for before in texts(client)[2:]:
        text = register(client, before, None, name="emceepee", entry=ENTRY).text or ""
        undone = unregister(client, text, None, name="emceepee").text or ""
        assert client.servers(undone) == client.servers(before or "")
        assert "emceepee" not in undone


@every_client
def test_what_was_changed_since_is_kept(client: Client):
    for before in texts(client):
        text = register(client, before, None, name="emceepee", entry=ENTRY).text or ""
        other = {"command": "npx"}
        text = client.language.put(text, (client.section, "later"), other)
        undone = unregister(client, text, before, name="emceepee")
        assert undone.backs_up
        assert client.servers(undone.text or "") == {**client.servers(before or ""), "later": other}


@every_client
def test_a_backup_that_cannot_be_trusted_is_not_restored(client: Client):
    text = register(client, None, None, name="emceepee", entry=ENTRY).text or ""
    for backup in (text, "{[", "[broken"):
        undone = unregister(client, text, backup, name="emceepee")
        assert undone.text is not None
        assert client.servers(undone.text) == {}
        assert register(client, text, backup, name="emceepee", entry={**ENTRY, "args": []}).backs_up


def test_a_reformatted_file_that_holds_nothing_else_is_removed():
    client = CLIENTS["cursor"]
    text = json.dumps({"mcpServers": {"emceepee": ENTRY}}, indent=4)
    assert unregister(client, text, None, name="emceepee") == (None, True)
    assert unregister(client, text, "{}", name="emceepee") == ("{}", True)


@every_client
def test_another_server_of_our_name_is_left_alone(client: Client):
    text = client.language.put("", (client.section, "emceepee"), {"command": "x"})
    for call in (
        lambda: register(client, text, None, name="emceepee", entry=ENTRY),
        lambda: unregister(client, text, None, name="emceepee"),
        lambda: leave_alone(client, text, name="emceepee", entry=ENTRY, others=()),
    ):
        with pytest.raises(NameTaken):
            call()
    assert unregister(client, text, None, name="x") == (text, False)


@every_client
def test_the_servers_behind_us_leave_the_client(client: Client):
    text = ""
    for name in ("a", "b", "c"):
        text = client.language.put(text, (client.section, name), {"command": name})
    left = leave_alone(
        client,
        text,
        name="emceepee",
        entry=ENTRY,
        others=[(client.section, name) for name in ("a", "c")],
    )
    assert client.servers(left) == {"b": {"command": "b"}, "emceepee": ENTRY}


@pytest.mark.parametrize(
    "text",
    [
        '[mcp_servers]\nemceepee = { command = "emceepee" }\n',
        "mcp_servers = {}\n",
        'mcp_servers.emceepee.command = "emceepee"\n',
        "mcp_servers = 1\n",
    ],
)
def test_toml_in_another_form_is_refused_rather_than_guessed_at(text: str):
    with pytest.raises(CannotEdit):
        toml_tables.put(text, TABLE, ENTRY)
    if "emceepee" in text:
        with pytest.raises(CannotEdit):
            toml_tables.remove(text, TABLE)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("a = 1\nb = \n", 2, 5), ('a = "x', 1, 7), ("a = 1\n\nb = [\n", 4, 1), ("[a]\n[a]\n", 2, 3)],
)
def test_broken_toml_is_named_with_its_place(text: str, line: int, column: int):
    with pytest.raises(Unreadable) as caught:
        toml_tables.read(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    with pytest.raises(Unreadable):
        toml_tables.read("a = " + "[" * 100_000)


def test_a_header_inside_a_string_is_text():
    text = 'x = """\n[mcp_servers.emceepee]\n"""\n\n[mcp_servers.emceepee]\ncommand = "emceepee"\n'
    assert toml_tables.remove(text, TABLE) == 'x = """\n[mcp_servers.emceepee]\n"""\n'
    again = toml_tables.put(text, TABLE, ENTRY)
    assert toml_tables.read(again) == {
        "x": "[mcp_servers.emceepee]\n",
        "mcp_servers": {"emceepee": ENTRY},
    }


def test_tables_below_go_with_their_table_and_remarks_stay_with_the_next():
    text = (
        '[mcp_servers."emceepee"] # us\ncommand = "emceepee"\n# about env\n'
        "[mcp_servers.emceepee.env]\nA = '1'\n\n# about b\n[[b]]\nc = 1\n"
    )
    assert toml_tables.remove(text, TABLE) == "# about env\n\n# about b\n[[b]]\nc = 1\n"
    changed = toml_tables.put(text, TABLE, {"command": "x"})
    assert changed.startswith('[mcp_servers.emceepee]\ncommand = "x"\n\n# about env\n')


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize(
    "other",
    [
        "",
        "# only a comment\n",
        'mcp_servers.time.command = "x" # dotted\nb   =  1\n',
        "[mcp_servers]\ntime = { command = 't',   args = [ ] } # inline\n",
        "[mcp_servers.time]\ncommand = 't'\n\n[[skills]]\na = 1\n\n  [[skills]]\na = 2\n",
        'x = [\n[1], # [a]\n[2],\n]\ny = """\n[b]\n# \\""""\n[ \'c\' . d ]\n# last\n',
    ],
)
def test_the_bytes_around_a_table_stay_as_they_were(bom: str, other: str, line_break: str):
    before = bom + other.replace("\n", line_break)
    text = toml_tables.put(before, TABLE, ENTRY)
    assert text.startswith(before)
    assert toml_tables.read(text)["mcp_servers"]["emceepee"] == ENTRY  # type: ignore[index]
    if other:
        assert text.count("\n") == text.count(line_break)
    assert toml_tables.remove(text, TABLE) == before
    later = text + f"{line_break}# later{line_break}[later]{line_break}"
    changed = toml_tables.put(later, TABLE, {"command": "x"})
    assert changed.startswith(before)
    assert changed.endswith(later[len(text) :])
    removed = toml_tables.remove(changed, TABLE)
    assert removed == before + later[len(text) :]


def test_a_table_after_a_byte_order_mark_and_arrays_of_tables_below_it_are_found():
    text = '\ufeff[mcp_servers.emceepee]\ncommand = "x"\n[[mcp_servers.emceepee.a]]\n\n# b\n[b]\n'
    assert toml_tables.remove(text, TABLE) == "\ufeff\n# b\n[b]\n"
    changed = toml_tables.put(text, TABLE, {"command": "y"})
    assert changed == '\ufeff[mcp_servers.emceepee]\ncommand = "y"\n\n# b\n[b]\n'


def test_the_library_that_writes_tables_is_not_needed_to_read_or_to_remove(
    monkeypatch: pytest.MonkeyPatch,
):
    text = toml_tables.put("a = 1\n", TABLE, ENTRY)
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    assert toml_tables.put(text, TABLE, ENTRY) == text
    assert toml_tables.remove(text, TABLE) == "a = 1\n"
    with pytest.raises(ImportError):
        toml_tables.put("", TABLE, ENTRY)


@given(st.text(max_size=20), st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=3))
def test_any_text_survives_toml(command: str, env: dict[str, str]):
    entry = {"command": command, "args": [command], "env": env}
    text = toml_tables.put("a = 1\n", TABLE, entry)
    found = tomllib.loads(text)["mcp_servers"]["emceepee"]
    assert found == entry
    assert toml_tables.remove(text, TABLE) == "a = 1\n"


def test_codex_entries_are_put_in_our_words():
    ours = CLIENTS["codex"].our_entry(
        {
            "url": "https://x",
            "http_headers": {"X-A": "1"},
            "env_http_headers": {"X-B": "B_VAR"},
            "bearer_token_env_var": "TOKEN",
            "env_vars": ["HOME", {"name": "LANG"}],
        }
    )
    assert ours == {
        "url": "https://x",
        "headers": {"X-A": "1", "X-B": "${B_VAR}", "Authorization": "Bearer ${TOKEN}"},
        "pass_env": ["HOME", "LANG"],
    }
    assert CLIENTS["codex"].our_entry({"command": "x"}) == {"command": "x"}


def test_opencode_refers_to_variables_in_its_own_way():
    entry = {"type": "remote", "url": "https://x", "headers": {"A": "Bearer {env:T} {file:x}"}}
    shown = CLIENTS["opencode"].our_entry(entry)
    assert shown == {**entry, "headers": {"A": "Bearer ${T} {file:x}"}}


def test_gemini_variables_get_their_braces():
    entry = {"command": "x", "args": ["$A", "${B}", "$$", "a$C/d"], "env": {"K": "$K"}, "n": 1}
    assert CLIENTS["gemini"].our_entry(entry) == {
        "command": "x",
        "args": ["${A}", "${B}", "$$", "a$C/d"],
        "env": {"K": "${K}"},
        "n": 1,
    }
    assert CLIENTS["gemini"].our_entry("x") == "x"


def test_servers_are_found_in_every_form_of_our_file():
    text = json.dumps(
        {
            "mcpServers": {"a": {"command": "a"}},
            "servers": [{"name": "b", "command": "b"}, {"command": "?"}, 1],
            "context_servers": {"c": {"command": "c"}},
        }
    )
    assert [(place.name, place.steps) for place in places(text)] == [
        ("a", ("mcpServers", "a")),
        ("b", ("servers", 0)),
        ("c", ("context_servers", "c")),
    ]
    changed = put_server(text, "b", {"command": "new"}, source="x")
    assert json.loads(changed)["servers"][0] == {"name": "b", "command": "new"}
    removed = remove_server(changed, "b", source="x") or ""
    assert json.loads(removed)["servers"] == [{"command": "?"}, 1]
    assert remove_server(changed, "z", source="x") is None
    assert remove_server(None, "z", source="x") is None
    with pytest.raises(ConfigInvalid, match="line 1"):
        put_server("{ no\n}", "b", {}, source="x")


def test_comments_in_our_file_stay_when_it_is_changed():
    text = '{\n  // mine\n  "mcpServers": {\n    "a": {"command": "a"}, // first\n  }\n}\n'
    changed = put_server(text, "b", {"command": "b"}, source="x")
    assert [place.name for place in places(changed)] == ["a", "b"]
    assert "// mine" in changed
    assert remove_server(changed, "b", source="x") == text


def test_an_entry_is_judged_before_it_is_kept():
    assert judge("a", {"command": "x"}, environ={}) is None
    assert judge("a", {"command": "x", "disabled": True}, environ={}) is None
    assert "NOPE" in (judge("a", {"command": "${NOPE}"}, environ={}) or "")
    assert "nmae" in (judge("a", {"command": "x", "nmae": 1}, environ={}) or "")
    for name, entry in (
        ("a", {}),
        ("a", {"command": "${"}),
        ("a", {"command": "emceepee"}),
        ("Emceepee", {"command": "x"}),
        ("a", 1),
    ):
        with pytest.raises(ConfigInvalid):
            judge(name, entry, environ={})


def test_what_became_of_each_server_is_told():
    servers: dict[str, object] = {
        "time": {"command": "uvx", "args": ["t"], "env": {"A": "1"}},
        "proxy": {"command": "/x/emceepee"},
        "same": {"command": "s"},
        "other": {"command": "o"},
        "input": {"command": "x", "env": {"K": "${input:key}"}},
        "folder": {"command": "x", "args": ["${workspaceFolder}/a"]},
        "broken": {"command": 1},
        "odd": [],
        "token": {"url": "https://x", "headers": {"A": "${NOPE}"}},
        "off": {"command": "x", "disabled": True},
    }
    own = json.dumps({"mcpServers": {"same": {"command": "s"}, "other": {"command": "mine"}}})
    text: str | None = own
    outcomes: dict[str, Outcome] = {}
    for name, entry in servers.items():
        text, outcomes[name] = take_over(
            CLIENTS["vscode"], name, entry, text, environ={}, source="x"
        )
    assert {name: one.result for name, one in outcomes.items()} == {
        "time": "taken",
        "proxy": "itself",
        "same": "there",
        "other": "skipped",
        "input": "skipped",
        "folder": "skipped",
        "broken": "skipped",
        "odd": "skipped",
        "token": "taken",
        "off": "taken",
    }
    kept = json.loads(text or "")["mcpServers"]
    assert kept["time"] == servers["time"]
    assert list(kept) == ["same", "other", "time", "token", "off"]
    assert "${input:key}" in outcomes["input"].reason
    assert "NOPE" in outcomes["token"].reason
    assert all(one.reason for one in outcomes.values() if one.result == "skipped")


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "x", "env": {"TOKEN": "${keyring:github.TOKEN}"}},
        {"url": "https://x", "headers": {"A": "Bearer ${keyring:github.TOKEN}"}},
        {"command": "x", "args": ["a"], "metadata": {"deep": ["${keyring:github.TOKEN}"]}},
    ],
)
def test_a_file_of_somebody_else_does_not_reach_into_the_keyring(entry: object):
    text, outcome = take_over(CLIENTS["vscode"], "sly", entry, None, environ={}, source="x")
    assert text is None
    assert outcome.result == "skipped"
    assert "keyring" in outcome.reason
