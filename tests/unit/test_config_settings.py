import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from emceepee_stdio.config import Config, ServerConfig, Settings, load_text
from emceepee_stdio.config.model import RestartConfig, RestartOverrides, RestartSettings


def load(emceepee: object, **environ: str) -> Config:
    return load_text(json.dumps({"emceepee": emceepee}), environ=environ, source="config.json")


def bounded_fields() -> Iterator[tuple[tuple[str, ...], float, float]]:
    """Every number of the settings: where it is, and its bounds."""

    def walk(kind: inspect.Type, path: tuple[str, ...]) -> Iterator[Any]:
        kind = kind.type if isinstance(kind, inspect.Metadata) else kind
        if isinstance(kind, inspect.StructType):
            for field in kind.fields:
                yield from walk(field.type, (*path, field.name))
        elif isinstance(kind, inspect.IntType | inspect.FloatType):
            yield path, kind.ge, kind.le

    yield from walk(inspect.type_info(Settings), ())


def at(settings: object, path: tuple[str, ...]) -> object:
    for name in path:
        settings = getattr(settings, name)
    return settings


def nested(path: tuple[str, ...], value: object) -> object:
    for name in reversed(path):
        value = {name: value}
    return value


BOUNDED = list(bounded_fields())
NAMES = [".".join(path) for path, _, _ in BOUNDED]


def test_every_number_of_the_settings_has_both_bounds():
    assert len(BOUNDED) > 50
    assert all(low is not None and high is not None for _, low, high in BOUNDED)


def test_every_default_survives_a_round_trip():
    config = load(msgspec.to_builtins(Settings()))
    assert config.settings == Settings()
    assert config.warnings == ()


@pytest.mark.parametrize(("path", "low", "high"), BOUNDED, ids=NAMES)
def test_a_number_is_taken_at_its_bounds_and_falls_back_beyond_them(
    path: tuple[str, ...], low: float, high: float
):
    for bound in (low, high):
        config = load(nested(path, bound))
        assert at(config.settings, path) == bound
        assert config.warnings == ()
    for beyond in (low - 1, high + 1):
        config = load(nested(path, beyond))
        assert config.settings == Settings()
        (warning,) = config.warnings
        assert warning.startswith("emceepee." + ".".join(path))
        assert f"from {low} to {high}" in warning
        assert f"got {beyond}" in warning


@pytest.mark.parametrize(("path", "low", "high"), BOUNDED, ids=NAMES)
def test_a_number_of_another_kind_falls_back(path: tuple[str, ...], low: float, high: float):
    del low, high
    kinds = {"a string": "12", "true or false": True, "null": None, "a list": [], "an object": {}}
    for kind, wrong in kinds.items():
        config = load(nested(path, wrong))
        assert config.settings == Settings()
        (warning,) = config.warnings
        assert warning.endswith(f", got {kind}. The default is used.")


@given(st.data())
def test_every_number_within_its_bounds_is_taken_as_it_is(data: st.DataObject):
    path, low, high = data.draw(st.sampled_from(BOUNDED))
    numbers = st.integers if isinstance(at(Settings(), path), int) else st.floats
    value = data.draw(numbers(min_value=low, max_value=high))
    config = load(nested(path, value))
    assert at(config.settings, path) == value
    assert config.warnings == ()


def test_the_defaults_are_those_that_are_promised():
    timeouts, limits = Settings().timeouts, Settings().limits
    assert (timeouts.call_ms, timeouts.call_max_ms) == (120_000, 900_000)
    assert (timeouts.client_ceiling_ms, timeouts.promotion_grace_ms) == (45_000, 100)
    assert (timeouts.task_ttl_ms, timeouts.task_ttl_max_ms) == (1_800_000, 86_400_000)
    assert (limits.events, limits.response_events, limits.response_event_bytes) == (1000, 20, 8192)
    assert (limits.stored_bytes, limits.client_line_bytes) == (67_108_864, 8_388_608)
    assert limits.result_chars == 40_000


def test_one_wrong_value_costs_only_itself():
    config = load({"limits": {"events": "many", "tasks": 7}, "promote_on_input": False})
    assert config.settings.limits.events == 1000
    assert config.settings.limits.tasks == 7
    assert config.settings.promote_on_input is False
    assert config.warnings == (
        (
            "emceepee.limits.events: expected an integer from 1 to 1000000, got a string."
            " The default is used."
        ),
    )


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({"policy": 5}, "emceepee.policy: expected an object, got an integer."),
        (
            {"policy": {"mode": "hunter2"}},
            "emceepee.policy.mode: expected one of allow, ask, auto, deny, got a string.",
        ),
        ({"promote_on_input": 1}, "emceepee.promote_on_input: expected true or false, got an int"),
        ({"roots": ["/a", "b"]}, "emceepee.roots[1]: expected a file:// URI or an absolute path"),
        ({"roots": "/a"}, "emceepee.roots: expected a list, got a string."),
        (
            {"logging": {"directory": "logs"}},
            "emceepee.logging.directory: expected an absolute path or null, got a string.",
        ),
        (
            {"client_ceilings_ms": {"some-client": 0.5}},
            "emceepee.client_ceilings_ms.some-client: expected an integer from 1 to 86400000,",
        ),
        ({"client_ceilings_ms": []}, "emceepee.client_ceilings_ms: expected an object, got a list"),
        ({"roots": ["${NOPE}"]}, "emceepee.roots[0] needs the environment variable NOPE"),
        ([], "emceepee: expected an object, got a list."),
    ],
)
def test_a_wrong_value_says_where_what_was_given_and_what_is_expected(given: object, warning: str):
    config = load(given)
    assert config.settings == Settings()
    assert len(config.warnings) == 1
    assert config.warnings[0].startswith(warning)
    assert config.warnings[0].endswith("The default is used.")
    assert "hunter2" not in config.warnings[0]


def test_values_are_expanded_and_camel_case_is_understood():
    config = load(
        {
            "roots": ["file://${HOME}/code", "/srv", "C:\\work"],
            "logging": {"maxBytes": 2048, "directory": "${HOME}/logs"},
            "promoteOnInput": False,
            "clientCeilingsMs": {"codex": 240000},
        },
        HOME="/home/ada",
    )
    settings = config.settings
    assert settings.roots == ("file:///home/ada/code", "/srv", "C:\\work")
    assert (settings.logging.max_bytes, settings.logging.directory) == (2048, "/home/ada/logs")
    assert settings.promote_on_input is False
    assert settings.client_ceilings_ms == {"codex": 240000}
    assert config.warnings == ()


def test_our_own_spelling_wins_over_another_one_in_either_order():
    assert load({"timeouts": {"callMs": 1, "call_ms": 2}}).settings.timeouts.call_ms == 2
    assert load({"timeouts": {"call_ms": 2, "callMs": 1}}).settings.timeouts.call_ms == 2


def test_an_unknown_key_is_reported_with_its_nearest_neighbour():
    config = load({"limts": {}, "limits": {"event": 5, "zzz": 1, "_comment": "hi"}})
    assert config.warnings == (
        "emceepee.limts is not a known key and is ignored; did you mean 'limits'?",
        "emceepee.limits.event is not a known key and is ignored; did you mean 'events'?",
        "emceepee.limits.zzz is not a known key and is ignored.",
    )


def test_settings_that_are_null_are_the_defaults_without_a_word():
    assert load(None) == Config()


def test_a_command_restarts_by_the_settings_and_its_own_entry():
    settings = RestartSettings(attempts=9, base_ms=10)
    server = ServerConfig(name="a", command="x", restart=RestartOverrides(base_ms=20))
    assert settings.for_server(server) == RestartConfig(attempts=9, base_ms=20)


def test_a_url_has_a_longer_cap_unless_its_entry_names_one():
    patient = ServerConfig(name="a", url="https://example.org")
    hasty = ServerConfig(
        name="b", url="https://example.org", restart=RestartOverrides(cap_ms=5_000)
    )
    assert RestartSettings().for_server(patient).cap_ms == 180_000
    assert RestartSettings().for_server(hasty).cap_ms == 5_000
