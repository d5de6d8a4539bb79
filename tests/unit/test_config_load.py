import json
import sys
from pathlib import Path

import platformdirs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emceepee_stdio.config.load import default_path, load_file, load_text
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Config, Settings
from emceepee_stdio.errors import ConfigInvalid

SECRET = "hunter2-hunter2"

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
WORDS = [
    "mcpServers",
    "servers",
    "context_servers",
    "emceepee",
    "name",
    "command",
    "args",
    "env",
    "url",
    "type",
    "enabled",
    "disabled",
    "transport",
    "restart",
    "restartConfig",
    "limits",
    "timeouts",
    "events",
    "call_ms",
    "roots",
    "logging",
    "headers",
    "${A}",
    "${",
]
words = st.sampled_from(WORDS)
documents = st.recursive(
    leaves | words,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(words | st.text(), inner, max_size=6)
    ),
    max_leaves=30,
)


def load(text: str, **environ: str) -> Config:
    return load_text(text, environ=environ, source="config.json")


def refusal(text: str) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        load(text)
    return caught.value.fact


def said(text: str, **environ: str) -> str:
    """Everything that a person may be shown about a document."""
    try:
        config = load(text, **environ)
    except ConfigInvalid as error:
        return str(error)
    return "\n".join([*config.warnings, *(broken.reason for broken in config.disabled)])


@settings(deadline=None)
@given(st.text() | documents.map(json.dumps))
@example("[" * 100_000)
@example('{"mcpServers": {"a": {"command": "x", "env": ' + "[" * 900 + "]" * 900 + "}}}")
@example('{"emceepee": {"timeouts": {"call_ms": ' + "9" * 5_000 + "}}}")
@example('{"emceepee": {"timeouts": {"call_ms": ' + "9" * 4_000 + "}}}")
@example('{"emceepee": {"restart": {"base_ms": NaN, "cap_ms": Infinity}}}')
@example('{"mcpServers": {"\\ud800": {"\\ud800": "\\ud800"}}, "mcp\\u001bServers": 1}')
def test_any_text_is_a_config_or_config_invalid(text: str):
    try:
        config = load(text, A="a")
    except ConfigInvalid:
        return
    assert isinstance(config.settings, Settings)
    assert all(server.command or server.url for server in config.servers)
    assert "".join([*config.warnings, *(broken.reason for broken in config.disabled)]).isprintable()


@settings(deadline=None)
@given(st.dictionaries(words | st.text(), documents, max_size=4))
def test_a_broken_entry_never_raises_and_never_costs_another(entry: dict[str, object]):
    config = load(json.dumps({"mcpServers": {"broken": entry, "well": {"command": "x"}}}))
    assert config.servers[-1] == ServerConfig(name="well", command="x")


@settings(deadline=None)
@given(documents)
def test_broken_settings_never_raise(settings: object):
    assert isinstance(load(json.dumps({"emceepee": settings})), Config)


secret_values = st.sampled_from(
    [SECRET, "${TOKEN}", [SECRET], {"x": SECRET}, [[SECRET]], "${" + SECRET]
)


@settings(deadline=None)
@given(
    entry=st.dictionaries(st.sampled_from(WORDS), secret_values, max_size=5),
    settings=st.dictionaries(
        st.sampled_from(["policy", "limits", "timeouts", "roots", "logging", "promote_on_input"]),
        secret_values
        | st.dictionaries(st.sampled_from(["mode", "events", "level"]), secret_values),
    ),
    cut=st.integers(min_value=0),
)
def test_no_message_shows_a_value(entry: object, settings: object, cut: int):
    text = json.dumps({"mcpServers": {"a": entry}, "emceepee": settings}, indent=1)
    assert SECRET not in said(text, TOKEN=SECRET)
    assert SECRET not in said(text[: cut % len(text)], TOKEN=SECRET)


@pytest.mark.parametrize(
    "line",
    [
        f'"env": {{"TOKEN": "{SECRET}" "B": 1}}',
        f'"env": {{"TOKEN": "{SECRET}',
        f'"env": {{"TOKEN": {SECRET}}}',
        f'"env": {{"TOKEN": \'{SECRET}\'}}',
        f'"env": {{"TOKEN": {SECRET}", "B": "{SECRET}"}}',
        f'"args": ["--token", "{SECRET}": "b"]',
        f'"args": ["--token", "\\{SECRET}"]',
    ],
)
def test_a_syntax_error_beside_a_secret_does_not_show_it(line: str):
    fact = refusal('{"mcpServers": {"a": {\n' + line + "\n}}}")
    assert "at line 2," in fact
    assert SECRET not in fact


def test_a_syntax_error_is_told_with_its_line_and_column():
    fact = refusal('{\n  "mcpServers": {\n    "a": {"command": "x" "args": []}\n  }\n}')
    place = "config.json is not valid JSON at line 3, column 26: "
    assert fact == f"{place}expecting ',' delimiter."


@pytest.mark.parametrize("text", ["", " \n", "\ufeff", "// {}\n"])
def test_an_empty_document_is_refused(text: str):
    assert refusal(text) == "config.json is empty; expected a JSON object."


@pytest.mark.parametrize("text", ["[]", "5", "null", '"x"'])
def test_the_top_must_be_an_object(text: str):
    assert refusal(text) == "config.json: expected a JSON object at the top."


@pytest.mark.parametrize("section", ["mcpServers", "servers", "context_servers"])
def test_servers_that_are_neither_a_map_nor_a_list_are_refused(section: str):
    assert section in refusal(json.dumps({section: 5}))
    assert load(json.dumps({section: None})) == Config()


def test_nesting_that_is_too_deep_is_refused():
    fact = refusal('{"a":\n' + "[" * 100_000)
    assert "at line 2, column 100: this is nested too deeply." in fact


def test_a_number_without_end_is_refused():
    fact = refusal('{"a": ' + "9" * 5_000 + "}")
    assert "at line 1, column 7: this number has too many digits." in fact


def test_comments_and_trailing_commas_are_no_mistake():
    text = """// mine
    {
      "mcpServers": { /* two: */
        "a": {"command": "x", "args": ["//", "/*",],}, // "b": {"command": "y"},
        "c": {"url": "https://example.com/mcp"},
      },
    }"""
    assert [server.name for server in load(text).servers] == ["a", "c"]
    assert load(text).servers[0].args == ("//", "/*")
    assert load(text).warnings == ()


def test_a_comment_beside_a_mistake_is_not_shown():
    fact = refusal(f'{{"mcpServers": {{}} /* {SECRET} */ 1 // {SECRET}\n}}')
    assert "at line 1, column 41" in fact
    assert SECRET not in fact


def test_a_byte_order_mark_is_no_mistake():
    assert load("\ufeff{}") == Config()


def test_foreign_keys_at_the_top_are_not_ours_to_judge():
    foreign = {"globalShortcut": "", "preferences": {}, "$schema": "", "inputs": [], "theme": 1}
    assert load(json.dumps(foreign)) == Config()


@pytest.mark.parametrize(
    ("written", "meant"),
    [("mcpServer", "mcpServers"), ("mcpservers", "mcpServers"), ("emcepee", "emceepee")],
)
def test_a_slip_of_the_pen_at_the_top_is_noticed(written: str, meant: str):
    assert load(json.dumps({written: {}})).warnings == (
        f"{written} is not a known key and is ignored; did you mean '{meant}'?",
    )


@pytest.mark.parametrize("key", ["policy", "logging", "timeouts", "limits", "restart", "roots"])
def test_a_setting_beside_its_section_is_noticed(key: str):
    assert load(json.dumps({key: {}, "mcpServers": {}})).warnings == (
        f"{key} is ignored where it stands: it belongs inside 'emceepee'.",
    )


def test_a_file_is_read(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text('{"mcpServers": {"a": {"command": "${X}"}}}', encoding="utf-8-sig")
    assert load_file(path, environ={"X": "y"}).servers == (ServerConfig(name="a", command="y"),)


def test_the_variable_names_the_file(tmp_path: Path):
    path = tmp_path / "other.json"
    path.write_text('{"emceepee": {"limits": {"tasks": 5}}}')
    environ = {"EMCEEPEE_CONFIG": str(path)}
    assert default_path(environ) == path
    assert load_file(environ=environ).settings.limits.tasks == 5


def test_the_variable_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert default_path({"EMCEEPEE_CONFIG": "~/a.json"}) == tmp_path / "a.json"


@pytest.mark.posix_only("Windows takes any name for that of a neighbouring home")
def test_the_variable_cannot_begin_at_nobodys_home():
    with pytest.raises(ConfigInvalid, match="EMCEEPEE_CONFIG names a home directory"):
        default_path({"EMCEEPEE_CONFIG": "~nobody-of-this-name/a.json"})


@pytest.mark.parametrize("environ", [{}, {"EMCEEPEE_CONFIG": ""}])
def test_else_the_platform_names_the_file(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(platformdirs, "user_config_path", lambda app, **_: tmp_path / app)
    assert default_path(environ) == tmp_path / "emceepee" / "config.json"


def test_the_default_file_need_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platformdirs, "user_config_path", lambda app, **_: tmp_path / app)
    assert load_file(environ={}) == Config()
    assert load_file(default_path({}), environ={}) == Config()


def test_a_file_that_somebody_named_must_exist(tmp_path: Path):
    path = tmp_path / "missing.json"
    with pytest.raises(ConfigInvalid, match=r"missing\.json does not exist"):
        load_file(path, environ={})
    with pytest.raises(ConfigInvalid, match=r"missing\.json does not exist"):
        load_file(environ={"EMCEEPEE_CONFIG": str(path)})


def test_a_file_that_is_no_text_is_refused(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigInvalid, match="is not UTF-8 text at byte 7"):
        load_file(path, environ={})


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path):
    with pytest.raises(ConfigInvalid, match=r"cannot be read: .+"):
        load_file(tmp_path, environ={})
    with pytest.raises(ConfigInvalid, match="its name is not valid"):
        load_file(Path("a\0b"), environ={})


def test_platformdirs_is_not_needed_for_a_named_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "config.json"
    path.write_text("{}")
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert load_file(path, environ={}) == Config()
