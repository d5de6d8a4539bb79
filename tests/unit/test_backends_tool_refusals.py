"""What a person is told to run about a tool that a rule switched off."""

from dataclasses import dataclass, field

import pytest

from emceepee_stdio.backends.backend import name_refusal
from emceepee_stdio.backends.lists import Lists
from emceepee_stdio.config.tool_rules import ToolRules


@dataclass
class Server:
    name: str = "it"
    lists: Lists = field(default_factory=lambda: None)  # type: ignore[arg-type,return-value]
    rules: ToolRules | None = field(default_factory=lambda: ToolRules({"*": "off"}))


@pytest.mark.parametrize("tool", ["echo", "a.b-c_D9"])
def test_a_person_is_given_the_line_that_allows_the_tool(tool: str) -> None:
    refused = name_refusal(Server(), tool)
    assert refused is not None
    assert refused.command == f"emceepee config rules it {tool} allow"
    assert "`emceepee config rules it`." in refused.next_step, "the model gets no ready line"


@pytest.mark.parametrize("tool", ["a b", "*", "$(id)", "--config", "a\n", "", "é"])
def test_no_other_name_becomes_part_of_a_command(tool: object) -> None:
    refused = name_refusal(Server(), tool)
    assert refused is not None
    assert refused.command == "emceepee config rules it"
