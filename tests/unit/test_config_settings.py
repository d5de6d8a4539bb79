import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from emceepee_stdio.config.load import load_text
from emceepee_stdio.config.server import RestartOverrides, ServerConfig
from emceepee_stdio.config.settings import Config, RestartConfig, Settings, SettingsSection


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

    yield from walk(inspect.type_info(SettingsSection), ())


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
    assert len(BOUNDED) > 15
    assert all(low is not None and high is not None for _, low, high in BOUNDED)


def test_every_default_survives_a_round_trip():
    config = load(msgspec.to_builtins(SettingsSection()))
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
    timeouts, limits, fixed = Settings().timeouts, Settings().limits, Settings().fixed
    assert (timeouts.call_ms, timeouts.client_ceiling_ms) == (120_000, 45_000)
    assert (timeouts.task_ttl_ms, fixed.task_ttl_max_s) == (1_800_000, 86_400)
    assert fixed.promotion_grace_s == 0.1
    assert (fixed.events, fixed.response_events, fixed.response_event_bytes) == (1000, 20, 8192)
    assert (limits.stored_bytes, fixed.client_line_bytes) == (67_108_864, 8_388_608)
    assert limits.result_bytes is None


@pytest.mark.parametrize("old", ["result_chars", "resultChars"])
def test_a_former_name_still_counts_with_a_warning_that_says_the_new_one(old: str):
    config = load({"limits": {old: 7_000}})
    warning = f"emceepee.limits.{old} is now called result_bytes; rename it."
    assert (config.settings.limits.result_bytes, config.warnings) == (7_000, (warning,))
    both = load({"limits": {"result_bytes": 8_000, old: 7_000}})
    assert (both.settings.limits.result_bytes, both.warnings) == (8_000, (warning,))


def test_one_wrong_value_costs_only_itself():
    config = load({"limits": {"servers": "many", "tasks": 7}, "promote_on_input": False})
    assert config.settings.limits.servers == 100
    assert config.settings.limits.tasks == 7
    assert config.settings.promote_on_input is False
    assert config.warnings == (
        (
            "emceepee.limits.servers: expected an integer from 1 to 10000, got a string."
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
    config = load({"limts": {}, "limits": {"task": 5, "zzz": 1, "_comment": "hi"}})
    assert config.warnings == (
        "emceepee.limts is not a known key and is ignored; did you mean 'limits'?",
        "emceepee.limits.task is not a known key and is ignored; did you mean 'tasks'?",
        "emceepee.limits.zzz is not a known key and is ignored.",
    )


def test_settings_that_are_null_are_the_defaults_without_a_word():
    assert load(None) == Config()


def test_a_command_restarts_by_the_settings_and_its_own_entry():
    settings = RestartConfig(attempts=9, base_ms=10)
    server = ServerConfig(name="a", command="x", restart=RestartOverrides(base_ms=20))
    assert settings.for_server(server, http_cap_s=180) == RestartConfig(attempts=9, base_ms=20)


def test_a_url_has_a_longer_cap_unless_its_entry_names_one():
    patient = ServerConfig(name="a", url="https://example.org")
    hasty = ServerConfig(
        name="b", url="https://example.org", restart=RestartOverrides(cap_ms=5_000)
    )
    assert RestartConfig().for_server(patient, http_cap_s=180).cap_ms == 180_000
    assert RestartConfig().for_server(hasty, http_cap_s=180).cap_ms == 5_000


# Every setting that there was once, as a person wrote it, and what the warning says of it.
FORMER = {
    "timeouts.call_max_ms": (
        "a call may ask for 900 s at most, and timeouts.call_ms counts as it is written"
    ),
    "timeouts.promotion_grace_ms": "it is always 100 ms",
    "timeouts.question_pending_ms": "it is always 1 s",
    "timeouts.probe_ms": "it is always 5 s",
    "timeouts.await_ms": "it is always 30 s",
    "timeouts.task_ttl_max_ms": "it is always 86400 s",
    "timeouts.result_retention_ms": "it is always 300 s",
    "timeouts.health_interval_ms": "it is always 120 s",
    "timeouts.health_ms": "it is always 60 s",
    "timeouts.stop_term_ms": "it is always 2 s",
    "timeouts.stop_kill_ms": "it is always 4 s",
    "timeouts.eof_term_ms": "it is always 500 ms",
    "timeouts.eof_kill_ms": "it is always 1.2 s",
    "timeouts.signal_kill_ms": "it is always 250 ms",
    "timeouts.exit_drain_ms": "it is always 100 ms",
    "timeouts.config_poll_ms": "it is always 1 s",
    "timeouts.pattern_ms": "it is always 100 ms",
    "limits.events": "it is always 1000",
    "limits.response_events": "it is always 20",
    "limits.response_event_bytes": "it is always 8192",
    "limits.event_data_bytes": "it is always 1024",
    "limits.notifications": "it is always 100",
    "limits.log_lines": "it is always 500",
    "limits.finished_tasks": "it is always 1000",
    "limits.timers": "it is always 100",
    "limits.pending_requests": "it is always 100",
    "limits.question_chars": "it is always 2000",
    "limits.question_bytes": "it is always 32768",
    "limits.server_questions": "it is always 20",
    "limits.sampling_preview_chars": "it is always 200",
    "limits.output_lines": "it is always 3000",
    "limits.unread_bytes": "it is always 67108864",
    "limits.client_line_bytes": "it is always 8388608",
    "limits.pattern_chars": "it is always 500",
    "limits.stderr_tail_lines": "it is always 10",
    "limits.health_misses": "it is always 3",
    "limits.rounds": "it is always 10",
    "restart.factor": "it is always 2",
    "restart.jitter": "it is always 0.1",
    "restart.stable_ms": "it is always 60 s",
    "restart.http_cap_ms": "it is always 180 s",
}


@pytest.mark.parametrize("key", FORMER)
def test_a_former_setting_is_a_warning_that_says_what_holds_now(key: str):
    config = load(nested(tuple(key.split(".")), 7))
    assert config.settings == Settings()
    assert config.warnings == (f"emceepee.{key} is no longer a setting: {FORMER[key]}.",)


def test_a_former_setting_is_known_in_camel_case_and_costs_no_other():
    config = load({"timeouts": {"promotionGraceMs": "x", "call_ms": 5}})
    assert config.settings.timeouts.call_ms == 5
    assert config.warnings == (
        "emceepee.timeouts.promotionGraceMs is no longer a setting: it is always 100 ms.",
    )


def test_no_fixed_value_can_be_written_in_the_file():
    config = load({"fixed": {"events": 5}})
    assert config.settings == Settings()
    assert config.warnings == ("emceepee.fixed is not a known key and is ignored.",)
