"""Loading of a volcano-scheduler.conf: what is loaded, what is rejected with which message, what stays in force."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from bayplan.batch.config.scheduler_conf import (
    BUILT_IN_ACTIONS,
    DEFAULTED_FLAGS,
    FLAGS,
    BatchConfiguration,
    PluginOption,
    SchedulerConfLoader,
    conf_to_dict,
    load_conf,
    load_default_conf,
    to_conf_text,
)
from bayplan.errors import ConfigError

RUN = "actions: allocate\n"
ALL_ON = dict.fromkeys(DEFAULTED_FLAGS, True)


def plugin(text: str) -> PluginOption:
    """The only plugin of a configuration; `text` is its content in flow style."""
    ((found,),) = load_conf(f"{RUN}tiers: [{{plugins: [{{{text}}}]}}]").tiers
    return found


def arguments(text: str) -> dict[str, Any]:
    return dict(plugin(f"name: p, arguments: {text}").arguments)


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_conf(text)
    return str(caught.value)


def type_faults(text: str) -> list[str]:
    head, *lines = refusal(text).split("\n  ")
    assert head == "yaml: unmarshal errors:"
    return lines


# Loading


def test_the_default_configuration() -> None:
    found = load_default_conf()
    assert found.actions == ("enqueue", "allocate", "backfill")
    assert [[each.name for each in tier] for tier in found.tiers] == [
        ["priority", "gang", "conformance"],
        ["overcommit", "drf", "predicates", "proportion", "nodeorder"],
    ]
    assert all(each.flags == ALL_ON for tier in found.tiers for each in tier)
    assert (found.configurations, found.metrics) == ((), None)


def test_missing_flags_are_on_except_two() -> None:
    found = plugin("name: gang, enablePreemptable: false")
    assert found.flags == ALL_ON | {"enablePreemptable": False}
    assert [key for key in FLAGS if not found.enabled(key)] == [
        "enablePreemptable",
        "enableHierarchy",
        "EnabledClusterOrder",
    ]


def test_a_plugin_built_in_code_has_its_unset_flags_off() -> None:
    found = PluginOption("gang", {"enableJobReady": True})
    assert found.enabled("enableJobReady")
    assert not found.enabled("enableJobOrder")


@pytest.mark.parametrize("word", ["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"])
def test_words_that_turn_a_flag_on(word: str) -> None:
    assert plugin(f"name: p, enableHierarchy: {word}").enabled("enableHierarchy")


@pytest.mark.parametrize("word", ["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"])
def test_words_that_turn_a_flag_off(word: str) -> None:
    assert plugin(f"name: p, enableJobOrder: {word}").flags["enableJobOrder"] is False


@pytest.mark.parametrize(
    ("word", "value"),
    [
        pytest.param("~", True, id="tilde-unsets"),
        pytest.param("null", True, id="null-unsets"),
        pytest.param("", True, id="nothing-unsets"),
        pytest.param("Null", False, id="Null-turns-off"),
        pytest.param("NULL", False, id="NULL-turns-off"),
    ],
)
def test_nulls_of_a_flag(word: str, value: bool) -> None:
    assert plugin(f"name: p, enableJobOrder: {word}").flags["enableJobOrder"] is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("+5", 5),
        ("-3", -3),
        ("010", 8),
        ("0o10", 8),
        ("08", 8.0),
        ("0x1F", 31),
        ("0X_1f", 31),
        ("0b11", 3),
        ("-0b11", -3),
        ("1_000", 1000),
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", 2.0**64),
        ("1.0", 1.0),
        ("1.", 1.0),
        (".5", 0.5),
        (".5_0", 0.5),
        ("._5", "._5"),
        ("1e3", 1000.0),
        ("1e400", "1e400"),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("yes", True),
        ("tRue", "tRue"),
        ('"yes"', "yes"),
        ("~", None),
        ("NULL", None),
        ("2024-01-01", "2024-01-01"),
        ("12:30", "12:30"),
        ("5m", "5m"),
        ("plain text", "plain text"),
        ("!!str 5", "5"),
        ('!!int "5"', 5),
        ("!!float 5", 5.0),
        ("!!binary aGk=", "hi"),
        ("!own 5", "5"),
        ("[1, two, 3.0, ~]", [1, "two", 3.0, None]),
        ("{a: 1, 5: {c: d}}", {"a": 1, 5: {"c": "d"}}),
    ],
)
def test_arguments_keep_the_types_of_the_file(text: str, value: Any) -> None:
    found = arguments(f"{{a: {text}}}")["a"]
    assert (type(found), found) == (type(value), value)


def test_nan_is_loaded_as_nan() -> None:
    assert math.isnan(arguments("{a: .NaN}")["a"])


def test_keys_of_arguments_are_strings_as_written() -> None:
    assert arguments("{5: a, yes: b, 1.50: c, ~: d}") == {"5": "a", "yes": "b", "1.50": "c", "": "d"}


def test_strings_are_loaded_as_written() -> None:
    found = load_conf(f"{RUN}metrics: {{type: 5, interval: 1.50, a: yes, b: 010, c: ~, 7: x}}")
    assert found.metrics == {"type": "5", "interval": "1.50", "a": "yes", "b": "010", "c": "", "7": "x"}


@pytest.mark.parametrize(
    ("text", "tiers"),
    [
        pytest.param("tiers: ~", [], id="no-tiers"),
        pytest.param("tiers: [~, {}]", [[], []], id="empty-tiers"),
        pytest.param("tiers: [{plugins: ~}]", [[]], id="no-plugins"),
        pytest.param("tiers: [{plugins: [~, {}]}]", [["", ""]], id="plugins-without-name"),
        pytest.param("tiers: [{plugins: [{name: gang}, {name: gang}]}]", [["gang", "gang"]], id="twice"),
        pytest.param("tiers: [{plugins: [{name: unknown}]}]", [["unknown"]], id="unknown"),
        pytest.param("tiers: [{plugins: [{name: 5}]}]", [["5"]], id="number"),
        pytest.param("tiers: [{plugins: [{name: a}]}]\ntiers: [{plugins: [{name: b}]}]", [["b"]], id="last-one-counts"),
        pytest.param("{}\n---\ntiers: x", None, id="only-the-first-document"),
    ],
)
def test_tiers(text: str, tiers: list[list[str]] | None) -> None:
    if tiers is None:
        assert refusal(text) == "failed to find Action "
    else:
        assert [[each.name for each in tier] for tier in load_conf(RUN + text).tiers] == tiers


def test_duplicate_maps_are_merged() -> None:
    assert plugin("name: p, arguments: {a: 1, b: 1}, arguments: {b: 2, c: 2}").arguments == {"a": 1, "b": 2, "c": 2}
    assert plugin("name: p, arguments: {a: 1}, arguments: ~").arguments == {}
    assert load_conf(f"{RUN}metrics: {{a: 1}}\nmetrics: {{b: 2}}").metrics == {"a": "1", "b": "2"}


def test_anchors_and_merges() -> None:
    text = """
base: &base {name: gang, enableJobOrder: no, arguments: {a: 1}}
actions: allocate
tiers:
- plugins:
  - *base
  - <<: *base
    name: other
    arguments: {b: 2}
  - name: first
    <<: [{enableJobReady: no}, *base]
"""
    ((same, other, first),) = load_conf(text).tiers
    assert (same.name, same.flags["enableJobOrder"], same.arguments) == ("gang", False, {"a": 1})
    assert (other.name, other.arguments) == ("other", {"a": 1, "b": 2})
    assert (first.name, first.flags["enableJobReady"]) == ("gang", False)


def test_arguments_of_an_action_are_those_of_its_first_entry() -> None:
    entries = "[{name: preempt, arguments: {a: 1}}, {name: preempt, arguments: {a: 2}}, ~, {name: x}]"
    found = load_conf(f"{RUN}configurations: {entries}")
    assert found.action_arguments("preempt").get_int("a") == 1
    assert len(found.action_arguments("x")) == len(found.action_arguments("reclaim")) == 0
    assert [each.name for each in found.configurations] == ["preempt", "preempt", "", "x"]


# Errors


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "failed to find Action ", id="empty"),
        pytest.param("~", "failed to find Action ", id="null"),
        pytest.param("Actions: allocate", "failed to find Action ", id="another-case"),
        pytest.param("actions: ''", "failed to find Action ", id="no-action"),
        pytest.param("actions: 'allocate, '", "failed to find Action  ", id="trailing-comma"),
        pytest.param("actions: allocate, reserve , x", "failed to find Action  reserve ", id="untrimmed"),
        pytest.param("actions: 1.50", "failed to find Action 1.50", id="number"),
        pytest.param(
            "tiers: [{plugins: [{name: proportion}, {name: drf, enableHierarchy: true}]}]",
            "proportion and drf with hierarchy enabled conflicts",
            id="conflict-before-actions",
        ),
    ],
)
def test_invalid_configurations_are_rejected(text: str, words: str) -> None:
    assert refusal(text) == words


def test_the_conflict_exists_only_within_one_tier() -> None:
    hierarchical = "{name: drf, enableHierarchy: true}"
    assert load_conf(f"{RUN}tiers: [{{plugins: [{{name: proportion}}]}}, {{plugins: [{hierarchical}]}}]")
    assert load_conf(f"{RUN}tiers: [{{plugins: [{{name: proportion}}, {{name: drf}}]}}]")


FLAG_PLACE = "tiers: [{plugins: [{name: p, enableJobOrder: %s}]}]"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("maybe", "!!str `maybe` into bool"),
        ('"true"', "!!str `true` into bool"),
        ("tRue", "!!str `tRue` into bool"),
        ("1", "!!int `1` into bool"),
        ("1.0", "!!float `1.0` into bool"),
        ("2024-01-01", "!!timestamp `2024-01-01` into bool"),
        ("2024-02-30", "!!str `2024-02-30` into bool"),
        ("[true]", "!!seq into bool"),
        ("{a: true}", "!!map into bool"),
        ('"null"', "!!str `null` into *bool"),
        ("'~'", "!!str `~` into *bool"),
        ("more than ten bytes", "!!str `more th...` into bool"),
        ("!!str yes", "!!str `yes` into bool"),
        ("!own yes", "!own `yes` into bool"),
    ],
)
def test_values_that_are_not_flags(value: str, words: str) -> None:
    assert type_faults(FLAG_PLACE % value) == [f"line 1: cannot unmarshal {words}"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("just text", "!!str `just text` into conf.SchedulerConfiguration"),
        ("[a]", "!!seq into conf.SchedulerConfiguration"),
        ("actions: [allocate]", "!!seq into string"),
        ("actions: {a: b}", "!!map into string"),
        ("tiers: text", "!!str `text` into []conf.Tier"),
        ("tiers: {plugins: []}", "!!map into []conf.Tier"),
        ("tiers: [gang]", "!!str `gang` into conf.Tier"),
        ("tiers: [[]]", "!!seq into conf.Tier"),
        ("tiers: [{plugins: gang}]", "!!str `gang` into []conf.PluginOption"),
        ("tiers: [{plugins: [gang]}]", "!!str `gang` into conf.PluginOption"),
        ("tiers: [{plugins: [{name: [a]}]}]", "!!seq into string"),
        ("tiers: [{plugins: [{arguments: text}]}]", "!!str `text` into map[string]interface {}"),
        ("tiers: [{plugins: [{arguments: [a]}]}]", "!!seq into map[string]interface {}"),
        ("configurations: text", "!!str `text` into []conf.Configuration"),
        ("configurations: [text]", "!!str `text` into conf.Configuration"),
        ("metrics: text", "!!str `text` into map[string]string"),
        ("metrics: {a: {b: c}}", "!!map into string"),
        ("metrics: {[a]: b}", "!!seq into string"),
    ],
)
def test_values_of_the_wrong_type(text: str, words: str) -> None:
    assert type_faults(text) == [f"line 1: cannot unmarshal {words}"]


def test_all_type_errors_are_reported_with_their_lines() -> None:
    text = "actions: []\ntiers:\n- plugins:\n  - name: p\n    enableJobOrder: maybe\n    arguments: text\n"
    assert [fault.split(":")[0] for fault in type_faults(text)] == ["line 1", "line 5", "line 6"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("actions: [", "did not find expected node content", id="open-list"),
        pytest.param("a: b: c", "mapping values are not allowed in this context", id="two-colons"),
        pytest.param("a: *x", "unknown anchor 'x' referenced", id="anchor"),
        pytest.param("metrics: {<<: x}", "map merge requires map or sequence of maps as the value", id="merge"),
        pytest.param(FLAG_PLACE % "!!int 5.0", "cannot decode !!float `5.0` as a !!int", id="tag"),
        pytest.param(FLAG_PLACE % "!!timestamp 5", "cannot decode !!int `5` as a !!timestamp", id="date"),
        pytest.param("metrics: {a: !!binary '*'}", "!!binary value contains invalid base64 data", id="binary"),
        pytest.param("metrics: &m {a: b, <<: *m}", "anchor 'm' value contains itself", id="itself"),
        pytest.param("tiers: [{plugins: [{arguments: {a: {[x]: 1}}}]}]", "invalid map key", id="key"),
    ],
)
def test_invalid_yaml(text: str, words: str) -> None:
    found = refusal(text)
    assert found.startswith("yaml: ")
    assert words in found


def test_values_of_unknown_keys_are_ignored() -> None:
    assert load_conf(f"{RUN}extra: !!int x\nmore: {{[a]: b}}")


def test_excessive_aliasing_is_rejected() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "excessive aliasing" in refusal("\n".join([*lines, "tiers: [{plugins: [{arguments: {a: *a8}}]}]"]))


# Notes


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        pytest.param("", [], id="nothing"),
        pytest.param(
            "enableVictim: no",
            ["line 2: 'enableVictim' is an unknown key and is ignored; did you mean enabledVictim?"],
            id="close",
        ),
        pytest.param("colour: red", ["line 2: 'colour' is an unknown key and is ignored"], id="far"),
        pytest.param("name: q", ["line 2: name is given twice; the last one counts"], id="twice"),
    ],
)
def test_notes(text: str, notes: list[str]) -> None:
    assert list(load_conf(f"{RUN}tiers: [{{plugins: [{{name: p, {text}}}]}}]").notes) == notes


# Third-party actions, reload, conversion


def test_third_party_actions_are_known_by_name() -> None:
    assert load_conf("actions: mine, allocate", {*BUILT_IN_ACTIONS, "mine"}).actions == ("mine", "allocate")


def test_an_invalid_text_leaves_the_last_valid_configuration_in_force(tmp_path: Path) -> None:
    loader = SchedulerConfLoader()
    assert loader.current == load_default_conf()
    path = tmp_path / "volcano-scheduler.conf"
    assert not loader.apply_file(path)
    assert loader.error is not None
    assert "No such file" in loader.error
    assert loader.error.endswith("; the built-in configuration is in force until the file is corrected")
    path.write_text("\nactions: reclaim\n\t\n", encoding="utf-8")
    assert loader.apply_file(path)
    assert (loader.current.actions, loader.error) == (("reclaim",), None)
    assert not loader.apply_text("actions: nothing")
    assert loader.error is not None
    assert loader.error.startswith("failed to find Action nothing; known actions: enqueue, allocate, ")
    assert loader.error.endswith("; the previous configuration stays in force")
    assert loader.current.actions == ("reclaim",)


def test_a_loader_can_start_with_another_configuration() -> None:
    empty = BatchConfiguration()
    assert SchedulerConfLoader(initial=empty).current is empty


def test_to_conf_text_makes_every_flag_explicit() -> None:
    text = f"{RUN}tiers: [{{plugins: [{{name: p, arguments: {{a: 1.0}}}}]}}]\nmetrics: {{}}"
    found = to_conf_text(load_conf(f"{text}\nconfigurations: [{{name: x}}, {{name: y, arguments: {{z: no}}}}]"))
    assert found == {
        "actions": "allocate",
        "tiers": [{"plugins": [{"name": "p", **ALL_ON, "arguments": {"a": 1.0}}]}],
        "configurations": [{"name": "x"}, {"name": "y", "arguments": {"z": False}}],
        "metrics": {},
    }
    assert to_conf_text(load_conf(RUN)) == {"actions": "allocate", "tiers": []}


def test_conf_to_dict_returns_json_values() -> None:
    text = f"{RUN}tiers: [{{plugins: [{{name: p, arguments: {{a: .inf, b: [1, {{5: -.inf}}]}}}}]}}]"
    assert conf_to_dict(load_conf(text)) == {
        "actions": ["allocate"],
        "tiers": [[{"name": "p", **ALL_ON, "arguments": {"a": "+Inf", "b": [1, {"5": "-Inf"}]}}]],
        "configurations": [],
        "metrics": None,
    }


def test_plugins_of_all_tiers() -> None:
    assert [each.name for each in load_default_conf().plugins][:4] == ["priority", "gang", "conformance", "overcommit"]
