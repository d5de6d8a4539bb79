"""The options of `serve` are the same for the client that starts it and for the person who asks."""

from typing import Any

import pytest
from typer.main import get_command

from emceepee_stdio.cli.command_line import app
from emceepee_stdio.cli.serve import HTTP_OPTIONS, OPTIONS, ServeParser


def command_of_typer() -> Any:
    commands: Any = get_command(app)
    return commands.commands["serve"]


def test_people_are_shown_every_option_that_a_client_can_give():
    shown = {param.name: param for param in command_of_typer().params}
    options = (*OPTIONS, *HTTP_OPTIONS)
    assert list(shown) == [option.name.replace("-", "_") for option in options]
    assert [option.name for option in OPTIONS] == ["config", "server", "policy"]
    for option in options:
        param = shown[option.name.replace("-", "_")]
        assert param.opts == [option.flag]
        assert param.metavar == option.metavar
        assert param.help
        assert param.multiple == option.repeatable
        assert not param.required


def test_a_client_can_give_every_option():
    words = ["--config", "x.json", "--server", "a=b", "--policy", "deny", "--server", "c=d"]
    given = vars(ServeParser(OPTIONS).parse_args(words))
    assert given == {"config": "x.json", "server": ["a=b", "c=d"], "policy": "deny"}


def test_a_client_can_give_no_option():
    given = vars(ServeParser(OPTIONS).parse_args([]))
    assert given == {"config": None, "server": [], "policy": None}


@pytest.mark.parametrize(
    ("begun", "completed"),
    [("", ["auto", "ask", "allow", "deny"]), ("a", ["auto", "ask", "allow"]), ("x", [])],
)
def test_the_shell_completes_the_policies(begun: str, completed: list[str]):
    serve = command_of_typer()
    context = serve.make_context("serve", [], resilient_parsing=True)
    (policy,) = [param for param in serve.params if param.name == "policy"]
    assert [item.value for item in policy.shell_complete(context, begun)] == completed


def test_a_client_with_an_unknown_policy_is_told_the_known_ones(
    capsys: pytest.CaptureFixture[str],
):
    with pytest.raises(SystemExit, match="2"):
        ServeParser(OPTIONS).parse_args(["--policy", "perhaps"])
    said = capsys.readouterr().err
    assert "See: emceepee serve --help" in said
    for known in ("auto", "ask", "allow", "deny"):
        assert known in said
