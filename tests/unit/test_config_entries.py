import json

import pytest

from emceepee_stdio.config.entries import Entries
from emceepee_stdio.config.load import load_text
from emceepee_stdio.config.server import OAuthConfig, RestartOverrides, ServerConfig
from emceepee_stdio.config.settings import Config
from emceepee_stdio.errors import ConfigInvalid


def load(document: object, **environ: str) -> Config:
    return load_text(json.dumps(document), environ=environ, source="config.json")


def one(entry: object, **environ: str) -> ServerConfig:
    """The only server of a file whose entry gives no cause for complaint."""
    config = load({"mcpServers": {"a": entry}}, **environ)
    assert (config.disabled, config.warnings) == ((), ())
    (server,) = config.servers
    return server


def reason(entry: object, name: str = "a") -> str:
    config = load({"mcpServers": {name: entry, "well": {"command": "x"}}})
    assert [server.name for server in config.servers] == ["well"]
    (broken,) = config.disabled
    assert not broken.switched_off
    return broken.reason


def test_a_map_of_any_client_is_read_in_its_order():
    config = load({"mcpServers": {"b": {"command": "x", "args": ["-y"]}, "a": {"url": "http://h"}}})
    assert config.servers == (
        ServerConfig(name="b", command="x", args=("-y",)),
        ServerConfig(name="a", url="http://h"),
    )


@pytest.mark.parametrize("section", ["mcpServers", "servers", "context_servers"])
def test_every_section_may_be_a_map_or_a_list(section: str):
    wanted = (ServerConfig(name="a", command="x"),)
    assert load({section: {"a": {"command": "x"}}}).servers == wanted
    assert load({section: [{"name": "a", "command": "x"}]}).servers == wanted


def test_a_list_with_restart_settings_is_read():
    config = load(
        {
            "servers": [
                {"name": "remote", "url": "http://localhost:3001/mcp"},
                {
                    "name": "local",
                    "type": "stdio",
                    "command": "node",
                    "args": ["server.js"],
                    "env": {"DEBUG": "true"},
                    "cwd": "/srv",
                    "restartConfig": {
                        "maxAttempts": 3,
                        "baseDelayMs": 10,
                        "maxDelayMs": 20,
                        "backoffMultiplier": 3,
                    },
                },
            ]
        }
    )
    where = "servers.local.restartConfig.backoffMultiplier"
    assert config.warnings == (f"{where} is no longer a setting: it is always 2.",)
    assert config.servers == (
        ServerConfig(name="remote", url="http://localhost:3001/mcp"),
        ServerConfig(
            name="local",
            transport="stdio",
            command="node",
            args=("server.js",),
            env={"DEBUG": "true"},
            cwd="/srv",
            restart=RestartOverrides(attempts=3, base_ms=10, cap_ms=20),
        ),
    )


def test_an_older_entry_of_zed_holds_its_command_line_in_command():
    server = one({"command": {"path": "x", "args": ["1"], "env": {"A": "b"}}, "settings": {}})
    assert (server.command, server.args, server.env) == ("x", ("1",), {"A": "b"})
    assert "neither command nor url" in reason({"command": {"args": []}})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("http", "http"),
        ("sse", "sse"),
        ("streamable-http", "http"),
        ("streamableHttp", "http"),
        ("streamable_http", "http"),
        ("remote", "auto"),
    ],
)
def test_types_of_other_clients_are_understood(written: str, meant: str):
    assert one({"type": written, "url": "http://h"}).transport == meant


def test_a_local_type_is_stdio():
    assert one({"type": "local", "command": "x"}).transport == "stdio"


@pytest.mark.parametrize("key", ["url", "serverUrl", "httpUrl"])
def test_urls_are_found_under_the_names_that_clients_use(key: str):
    assert one({key: "https://example.org/mcp"}).url == "https://example.org/mcp"


def test_camel_case_of_our_own_keys_is_understood():
    assert one({"command": "x", "passEnv": ["A"]}).pass_env == ("A",)
    assert one({"command": "x", "restart": {"baseMs": 7}}).restart.base_ms == 7


def test_null_is_the_same_as_not_given():
    assert one({"command": "x", "url": None, "env": None}) == ServerConfig(name="a", command="x")


def test_what_clients_keep_for_themselves_is_ignored_without_a_word():
    foreign = ("autoApprove", "alwaysAllow", "timeout", "icon", "description", "envFile", "gallery")
    one({"command": "x", "_comment": "${NOPE}", **dict.fromkeys(foreign, "${NOPE}")})


@pytest.mark.parametrize(
    ("given", "kept"), [("for ${NOPE}", "for ${NOPE}"), (7, ""), ({"en": "x"}, ""), (None, "")]
)
def test_a_description_is_words_and_nothing_else_breaks_the_entry(given: object, kept: str):
    assert one({"command": "x", "description": given}).description == kept


def test_an_unknown_key_is_reported_with_its_nearest_neighbour():
    config = load({"mcpServers": {"a": {"command": "x", "agrs": [], "restart": {"atempts": 1}}}})
    assert len(config.servers) == 1
    assert config.warnings == (
        "mcpServers.a.agrs is not a known key and is ignored; did you mean 'args'?",
        "mcpServers.a.restart.atempts is not a known key and is ignored; did you mean 'attempts'?",
    )


def test_variables_are_expanded_in_every_field():
    server = one(
        {"command": "${BIN}", "args": ["${A:-b}"], "env": {"T": "${BIN}"}, "cwd": "${BIN}"},
        BIN="/bin/x",
    )
    assert (server.command, server.args, server.env) == ("/bin/x", ("b",), {"T": "/bin/x"})
    assert server.cwd == "/bin/x"


def test_a_misspelt_key_is_the_reason_where_nothing_says_what_to_run():
    found = load_text(
        '{"mcpServers": {"a": {"comand": "x", "arg": []}, "b": {"comand": "x", "disabled": true}}}',
        environ={},
        source="f",
    )
    a, b = found.disabled
    assert a.fact == (
        "a is broken: mcpServers.a has neither command nor url. mcpServers.a.comand is not a known "
        "key and is ignored; did you mean 'command'? mcpServers.a.arg is not a known key and is "
        "ignored; did you mean 'args'?"
    )
    assert b.switched_off
    assert found.warnings == (
        "mcpServers.b.comand is not a known key and is ignored; did you mean 'command'?",
    )


@pytest.mark.parametrize("off", [{"disabled": True}, {"enabled": False}, {"isActive": False}])
def test_an_entry_that_is_switched_off_is_listed_and_not_examined(off: dict[str, bool]):
    config = load({"mcpServers": {"a": {"command": "x", "env": {"T": "${NOPE}"}, **off}}})
    assert config.servers == ()
    (entry,) = config.disabled
    assert entry.switched_off
    assert entry.reason == "mcpServers.a is disabled in the configuration."


def test_an_entry_that_is_said_to_be_on_is_on():
    one({"command": "x", "disabled": False, "enabled": True})


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (5, "mcpServers.a: expected an object, got an integer."),
        ({"command": 5}, "mcpServers.a.command: expected a string or null, got an integer."),
        ({"command": ["x"]}, "mcpServers.a.command: expected a string or null, got a list."),
        ({"command": "x", "args": "-y"}, "mcpServers.a.args: expected a list, got a string."),
        ({"command": "x", "args": ["a", 5]}, "mcpServers.a.args[1]: expected a string, got an int"),
        (
            {"command": "x", "env": {"N": 1}},
            "mcpServers.a.env.N: expected a string, got an integer",
        ),
        (
            {"command": "x", "lazy": "yes"},
            "mcpServers.a.lazy: expected true or false, got a string",
        ),
        ({"command": "x", "enabled": "no"}, "mcpServers.a.enabled: expected true or false, got a"),
        ({"command": "x", "type": "carrier-pigeon"}, "mcpServers.a.type: expected one of auto, "),
        (
            {"command": "x", "era": "stone"},
            "mcpServers.a.era: expected one of auto, legacy, modern",
        ),
        ({"serverUrl": True}, "mcpServers.a.serverUrl: expected a string or null, got true or"),
        ({"command": "x", "restart": []}, "mcpServers.a.restart: expected an object, got a list."),
        (
            {"command": "x", "restartConfig": {"maxAttempts": -1}},
            "mcpServers.a.restartConfig.maxAttempts: expected an integer from 0 to 1000 or null,",
        ),
        ({}, "Server 'a': neither command nor url is given; exactly one of them is expected."),
        ({"command": ""}, "Server 'a': neither command nor url is given;"),
        ({"command": "x", "url": "http://h"}, "Server 'a': command and url are both given;"),
        ({"command": "x", "type": "sse"}, "Server 'a': the transport sse needs a url,"),
        ({"url": "http://h", "type": "stdio"}, "Server 'a': the transport stdio needs a command,"),
        ({"url": "ftp://h"}, "Server 'a': url must begin with http:// or https://."),
        ({"url": "example.org"}, "Server 'a': url must begin with http:// or https://."),
        ({"url": "http://"}, "Server 'a': url is not a valid address."),
        ({"url": "http://a b"}, "Server 'a': url is not a valid address."),
        ({"url": "http://[::1"}, "Server 'a': url is not a valid address."),
        ({"url": "http://h:99999"}, "Server 'a': url is not a valid address."),
        ({"command": "x", "env": {"A=B": "c"}}, "Server 'a': env has a variable whose name is"),
        ({"command": "x", "env": {"": "c"}}, "Server 'a': env has a variable whose name is empty"),
        ({"command": "x", "args": ["\0"]}, "Server 'a': args[0] holds a character that cannot"),
        ({"command": "x", "cwd": "\ud800"}, "Server 'a': cwd holds a character that cannot"),
        ({"url": "http://h", "headers": {"a b": ""}}, "Server 'a': headers.a b is not a header"),
        ({"url": "http://h", "headers": {"X": "a\nb"}}, "Server 'a': headers.X is not a header"),
        ({"command": "x", "env": {"T": "${NOPE}"}}, "mcpServers.a.env.T needs the environment var"),
        ({"command": "x", "args": ["${input:t}"]}, "mcpServers.a.args[0] has a ${ that is neither"),
    ],
)
def test_a_broken_entry_costs_only_itself_and_says_what_is_expected(entry: object, said: str):
    assert reason(entry).startswith(said)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 65, "\u200b", "a\u0000"])
def test_a_name_must_be_printable_and_of_reasonable_length(name: str):
    said = reason({"command": "x"}, name)
    assert said.endswith("its name must be 1 to 64 printable characters.")
    assert said.isprintable()
    assert len(said) < 200


def test_a_name_of_64_letters_of_any_script_is_fine():
    assert load({"mcpServers": {"é" * 64: {"command": "x"}}}).servers[0].name == "é" * 64


def test_the_second_server_of_a_name_is_broken_across_sections():
    config = load(
        {
            "mcpServers": {"a": {"command": "first"}},
            "servers": [{"name": "a", "command": "second"}],
        }
    )
    assert [server.command for server in config.servers] == ["first"]
    (broken,) = config.disabled
    assert broken.name == "a"
    assert broken.reason == "servers.a: a server of this name is defined above; rename this one."


def test_of_a_key_that_is_written_twice_the_last_one_is_used_with_a_warning():
    text = '{"mcpServers": {"a": {"command": "first"}, "a": {"command": "second"}}}'
    config = load_text(text, environ={}, source="config.json")
    assert [server.command for server in config.servers] == ["second"]
    assert config.disabled == ()
    assert config.warnings == ("mcpServers.a is written more than once: the last one is used.",)


@pytest.mark.parametrize("name", ["emceepee", "Emceepee"])
def test_the_reserved_name_is_skipped_with_a_warning(name: str):
    config = load({"mcpServers": {name: {"command": "x"}}})
    assert (config.servers, config.disabled) == ((), ())
    assert config.warnings == (
        f"mcpServers.{name} is skipped: the name emceepee is reserved for the proxy itself.",
    )


def test_an_entry_that_would_start_the_proxy_again_is_skipped_with_a_warning():
    config = load({"mcpServers": {"me": {"command": "${BIN}"}}}, BIN="/opt/bin/emceepee")
    assert (config.servers, config.disabled) == ((), ())
    assert config.warnings == ("mcpServers.me is skipped: it would start emceepee behind itself.",)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (5, "servers[1]: expected an object with a name."),
        ({"command": "x"}, "servers[1]: name: expected a string."),
        ({"name": 5, "command": "x"}, "servers[1]: name: expected a string."),
    ],
)
def test_an_entry_of_a_list_without_a_name_is_called_by_its_place(entry: object, said: str):
    config = load({"servers": [{"name": "a", "command": "x"}, entry]})
    assert len(config.servers) == 1
    assert [(broken.name, broken.reason) for broken in config.disabled] == [("servers[1]", said)]


def test_a_wrong_server_cannot_be_made_in_code_either():
    with pytest.raises(ConfigInvalid, match="exactly one of them"):
        ServerConfig(name="a")
    with pytest.raises(ConfigInvalid, match="printable"):
        ServerConfig(name="", command="x")


def test_a_server_prints_its_name_and_no_secret():
    server = ServerConfig(name="a", command="x", env={"TOKEN": "hunter2"}, args=("hunter2",))
    assert repr(server) == "<ServerConfig a command>"
    assert repr(ServerConfig(name="b", url="http://u:p@h")) == "<ServerConfig b url>"


def test_entries_print_what_came_of_them():
    entries = Entries({})
    entries.add("a", {"command": "x"}, section="servers")
    entries.add("b", {}, section="servers")
    assert repr(entries) == "<Entries 1 usable 1 unused>"


# Signing in

URL = "https://mcp.example/mcp"


def test_how_to_sign_in_is_read_in_our_spelling_and_in_that_of_clients():
    ours = {
        "client_id": "c",
        "client_secret": "${SECRET}",
        "scope": "a b",
        "redirect_port": 8765,
        "resource": False,
        "issuer": "https://id.example",
    }
    server = one({"url": URL, "auth": "oauth", "oauth": ours}, SECRET="hidden")
    assert server.auth == "oauth"
    assert server.oauth == OAuthConfig(
        client_id="c",
        client_secret="hidden",
        scope="a b",
        redirect_port=8765,
        resource=False,
        issuer="https://id.example",
    )
    theirs = {"enabled": True, "clientId": "c", "callbackPort": 8765, "scopes": ["a", "b"]}
    server = one({"url": URL, "oauth": theirs})
    assert server.oauth == OAuthConfig(client_id="c", scope="a b", redirect_port=8765)
    assert one({"url": URL, "oauth": False}).auth == "none"


def test_what_clients_keep_under_the_same_names_for_themselves_does_no_harm():
    config = load({"mcpServers": {"a": {"url": URL, "auth": {"type": "x"}, "oauth": "later"}}})
    assert config.servers == (ServerConfig(name="a", url=URL),)
    assert config.warnings == (
        "mcpServers.a.auth is not understood and is ignored.",
        "mcpServers.a.oauth is not understood and is ignored.",
    )


def test_a_key_of_oauth_that_is_not_known_stops_the_server():
    found = reason(
        {"url": URL, "oauth": {"client_secret": "hidden", "isuer": "https://id.example"}}
    )
    assert found == "mcpServers.a.oauth.isuer is not a known key; did you mean 'issuer'?"
    theirs = {"enabled": True, "tokenUrl": "https://id.example/token", "audiences": ["a"]}
    assert one({"url": URL, "oauth": {**theirs, "_remark": "ours"}}).oauth == OAuthConfig()


def test_signing_in_is_for_servers_behind_a_url():
    assert "auth needs a url" in reason({"command": "x", "auth": "oauth"})
    assert "oauth needs a url" in reason({"command": "x", "oauth": {"client_id": "c"}})
    assert "redirect_port: expected an integer from 1 to 65535" in reason(
        {"url": URL, "oauth": {"redirect_port": 70_000}}
    )


def test_a_client_secret_is_not_shown():
    assert "hidden" not in repr(one({"url": URL, "oauth": {"client_secret": "hidden"}}).oauth)
