import pytest

from emceepee_stdio.tools.resource_tools import fits_template


@pytest.mark.parametrize(
    ("template", "uri", "fits"),
    [
        ("file:///{+path}", "file:///a/b", True),
        ("item://{id}/part/{n}", "item://7/part/2", True),
        ("item://{id}/part/{n}", "item://7", False),
        ("item://{id}.json", "item://7.json", True),
        ("item://{id}.json", "item://7.txt", False),
        ("a:{x}a", "a:", False),
        ("{+any}", "item://7", False),
        ("{scheme}://7", "item://7", False),
        ("ite{m}://7", "item://7", False),
        ("item://7", "item://7", False),
        (7, "item://7", False),
        (None, "item://7", False),
    ],
)
def test_a_urifits_template_a_template_where_its_literal_parts_do(
    template: object, uri: str, *, fits: bool
) -> None:
    assert fits_template(template, uri) is fits
