import json
from typing import Any

import pytest

from emceepee_stdio.config.fields import filled_in, needed_secrets
from emceepee_stdio.config.load import load_text
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Config
from emceepee_stdio.errors import ConfigInvalid

SECRETS = {"one": "s3cret-1", "two": "s3cret-2"}


def loaded(entry: Any, environ: dict[str, str] | None = None) -> Config:
    text = json.dumps({"mcpServers": {"a": entry}})
    return load_text(text, environ=environ or {}, source="config.json")


def server(entry: Any, environ: dict[str, str] | None = None) -> ServerConfig:
    config = loaded(entry, environ)
    assert config.disabled == ()
    return config.servers[0]


def test_env_headers_url_and_the_secret_of_a_sign_in_may_refer_to_the_keyring():
    command = server({"command": "x", "env": {"A": "${keyring:one}", "B": "b"}})
    assert needed_secrets(command) == ["one"]
    assert filled_in(command, SECRETS).env == {"A": "s3cret-1", "B": "b"}
    url = server(
        {
            "serverUrl": "https://example.org/${keyring:two}/mcp",
            "headers": {"X-Key": "${keyring:one}", "Y": "Bearer ${keyring:two}"},
            "oauth": {"clientId": "me", "clientSecret": "${keyring:one}"},
        }
    )
    assert sorted(needed_secrets(url)) == ["one", "two"]
    full = filled_in(url, SECRETS)
    assert full.url == "https://example.org/s3cret-2/mcp"
    assert full.headers == {"X-Key": "s3cret-1", "Y": "Bearer s3cret-2"}
    assert (full.oauth.client_id, full.oauth.client_secret) == ("me", "s3cret-1")
    assert needed_secrets(full) == []


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "${keyring:one}"},
        {"command": "x", "args": ["--token", "${keyring:one}"]},
        {"command": "x", "cwd": "/${keyring:one}"},
        {"command": "x", "pass_env": ["${keyring:one}"]},
        {"command": "x", "tools": {"*": "${keyring:one}"}},
        {"url": "https://example.org", "oauth": {"client_id": "${keyring:one}"}},
    ],
)
def test_nothing_else_of_an_entry_may(entry: Any):
    broken = loaded(entry).disabled[0]
    assert "refers to the keyring" in broken.reason


def test_no_setting_may():
    text = json.dumps({"emceepee": {"logging": {"directory": "/${keyring:one}"}}})
    config = load_text(text, environ={}, source="config.json")
    assert "refers to the keyring" in config.warnings[0]


def test_what_a_variable_holds_and_what_is_escaped_is_no_reference():
    environ = {"SLY": "${keyring:one}"}
    sly = server({"command": "x", "env": {"A": "${SLY}", "B": "$${keyring:one}"}}, environ)
    assert needed_secrets(sly) == []
    assert filled_in(sly, SECRETS).env == {"A": "${keyring:one}", "B": "${keyring:one}"}
    both = server({"command": "x", "env": {"A": "${SLY}${keyring:two}"}}, environ)
    assert needed_secrets(both) == ["two"]
    assert filled_in(both, SECRETS).env == {"A": "${keyring:one}s3cret-2"}


def test_a_secret_that_cannot_be_passed_on_is_named_by_its_place_and_not_shown():
    url = server({"url": "https://example.org", "headers": {"X-Key": "${keyring:one}"}})
    with pytest.raises(ConfigInvalid) as caught:
        filled_in(url, {"one": "s3cret\r\nX-Other: 1"})
    assert "headers.X-Key" in caught.value.fact
    assert "s3cret" not in str(caught.value)
