import inspect
import json
from typing import Any

import jsonschema
import msgspec
import pytest

from emceepee_stdio.config import server, settings
from emceepee_stdio.config.load import load_text
from emceepee_stdio.config.settings import ServerEntry, SettingsSection, config_schema
from emceepee_stdio.visible_text import docstring_parts

SCHEMA = config_schema()
DEFINITIONS: Any = SCHEMA["$defs"]

FULL = {
    "mcpServers": {"a": {"command": "x", "args": ["y"], "env": {"A": "b"}, "cwd": "/"}},
    "servers": [{"name": "b", "url": "https://example.org", "headers": {"A": "b"}}],
    "context_servers": {"c": {"command": "x", "restart": {"attempts": 1, "base_ms": 5}}},
    "emceepee": json.loads(msgspec.json.encode(SettingsSection())),
}


def test_the_schema_is_a_schema_and_can_be_printed():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


def test_a_file_with_everything_fits_the_schema_and_the_loader():
    jsonschema.validate(FULL, SCHEMA)
    config = load_text(json.dumps(FULL), environ={}, source="config.json")
    assert (len(config.servers), config.disabled, config.warnings) == (3, (), ())


@pytest.mark.parametrize(
    "wrong",
    [
        {"emceepee": {"limits": {"tasks": 0}}},
        {"emceepee": {"policy": {"mode": "maybe"}}},
        {"emceepee": {"roots": ["relative"]}},
        {"emceepee": {"logging": {"directory": "relative"}}},
        {"mcpServers": {"a": {"command": 5}}},
        {"servers": [{"command": "x"}]},
    ],
)
def test_what_the_loader_complains_about_does_not_fit_the_schema(wrong: object):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)
    config = load_text(json.dumps(wrong), environ={}, source="config.json")
    assert config.warnings or config.disabled


def test_every_key_has_a_description_or_is_a_section_that_has_one():
    for definition in DEFINITIONS.values():
        assert definition["description"]
        for key, schema in definition["properties"].items():
            assert "description" in str(schema) or "$ref" in schema, key


def test_the_schema_knows_every_field_of_an_entry():
    fields = {field.name for field in msgspec.structs.fields(ServerEntry)}
    assert DEFINITIONS["ServerEntry"]["properties"].keys() == fields
    assert DEFINITIONS["NamedEntry"]["properties"].keys() == fields | {"name"}


@pytest.mark.parametrize("struct", [*DEFINITIONS])
def test_a_docstring_names_fields_alone(struct: str):
    kind: Any = getattr(settings, struct, None) or getattr(server, struct)
    _, texts = docstring_parts(inspect.cleandoc(kind.__doc__))
    assert texts.keys() <= DEFINITIONS[struct]["properties"].keys()
