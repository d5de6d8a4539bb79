"""What a person is told to run about a tool that a rule switched off."""

import pytest

from emceepee_stdio.config.tool_rules import ToolRules
from emceepee_stdio.errors import ProxyError


def refusal(tool: object) -> ProxyError | None:
    return ToolRules({"*": "off"}).refusal(tool, server="it", listed={}, permitted=True)


@pytest.mark.parametrize("tool", ["echo", "a.b-c_D9"])
def test_a_person_is_given_the_line_that_allows_the_tool(tool: str) -> None:
    refused = refusal(tool)
    assert refused is not None
    assert refused.command == f"emceepee config rules it {tool} allow"
    assert "`emceepee config rules it`." in refused.next_step, "the model gets no ready line"


@pytest.mark.parametrize("tool", ["a b", "*", "$(id)", "--config", "a\n", "", "é"])
def test_no_other_name_becomes_part_of_a_command(tool: object) -> None:
    refused = refusal(tool)
    assert refused is not None
    assert refused.command == "emceepee config rules it"
