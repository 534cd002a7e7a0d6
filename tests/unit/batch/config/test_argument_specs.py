"""Plugins and actions read exactly the arguments that they declare; configured arguments are checked against them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from bayplan.app import build_batch_engine
from bayplan.batch import engine
from bayplan.batch.actions import default_actions
from bayplan.batch.config.argument_specs import Argument, argument_problems, argument_specs_of
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.config.scheduler_conf import ActionConfiguration, BatchConfiguration, PluginOption
from bayplan.batch.node_usage.metrics_sources import metrics_problems
from bayplan.batch.plugins import default_batch_plugins
from bayplan.cache import Cache

PLUGINS, ACTIONS = default_batch_plugins(), default_actions()
GIVEN = {
    "binpack": {"binpack.resources": "x"},
    "network-topology-aware": {"hypernode.binpack.resources": "x"},
    "tdm": {"tdm.revocable-zone.x": "10:00-21:00"},
}
"""Settings that make a plugin read names that depend on another argument."""


class Spy(Arguments):
    """Records each key that is read, with its type and default."""

    arguments_read: dict[str, tuple[Any, Any]]

    def __init__(self, values: Any = None, *, owner: str = "") -> None:
        super().__init__(values, owner=owner)
        self.reads = {}

    def __contains__(self, key: str) -> bool:
        self.reads.setdefault(key, (object, None))
        return super().__contains__(key)

    def get_int(self, key: str, default: int = 0) -> int:
        self.reads[key] = (int, default)
        return super().get_int(key, default)

    def get_float(self, key: str, default: float = 0.0) -> float:
        self.reads[key] = (float, default)
        return super().get_float(key, default)

    def get_bool(self, key: str, default: bool = False) -> bool:
        self.reads[key] = (bool, default)
        return super().get_bool(key, default)

    def get_str(self, key: str, default: str = "") -> str:
        self.reads[key] = (str, default)
        return super().get_str(key, default)

    def get(self, key: str, kind: Any) -> Any:
        self.reads[key] = (object, None)
        return super().get(key, kind)


def arguments_read(monkeypatch: pytest.MonkeyPatch, configuration: BatchConfiguration) -> dict[str, tuple[Any, Any]]:
    spies: list[Spy] = []

    def spy(values: Any = None, *, owner: str = "") -> Spy:
        spies.append(Spy(values, owner=owner))
        return spies[-1]

    monkeypatch.setattr(engine, "Arguments", spy)
    monkeypatch.setattr("bayplan.batch.config.scheduler_conf.Arguments", spy)
    build_batch_engine(configuration, Cache()).run_session()
    return {key: found for each in spies for key, found in each.reads.items()}


def as_declared(argument: Argument) -> tuple[Any, Any]:
    """What a spy records for a declared argument: durations are strings, and the type of other kinds is unknown."""
    kind = str if argument.kind is timedelta else argument.kind
    return (kind, argument.default) if kind in (int, float, bool) else (kind if kind is str else object, None)


def differences(takes: tuple[Argument, ...], seen: dict[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """By key, the declaration and the read, where they differ; None: missing."""
    keys = {f"{each.prefix}x" if each.prefix else each.name: each for each in takes}
    declared = {key: as_declared(each) for key, each in keys.items()}
    reads = {key: (kind, default if kind in (int, float, bool) else None) for key, (kind, default) in seen.items()}
    idle = {key for key, each in keys.items() if each.no_effect_reason}
    both = {key: (declared.get(key), reads.get(key)) for key in (declared.keys() | reads.keys()) - idle}
    return {key: (mine, theirs) for key, (mine, theirs) in both.items() if mine != theirs}


@pytest.mark.parametrize("name", list(PLUGINS))
def test_a_plugin_reads_what_it_declares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    option = PluginOption(name, arguments=GIVEN.get(name, {})).with_default_flags()
    seen = arguments_read(monkeypatch, BatchConfiguration(("enqueue",), ((option,),)))
    assert differences(argument_specs_of(PLUGINS.get(name)) or (), seen) == {}


@pytest.mark.parametrize("name", list(ACTIONS))
def test_an_action_reads_what_it_declares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = BatchConfiguration((name,), configurations=(ActionConfiguration(name),))
    assert differences(argument_specs_of(ACTIONS.get(name)) or (), arguments_read(monkeypatch, configuration)) == {}


def problems_of(plugin: str, given: dict[str, Any]) -> list[str]:
    return [
        text.removeprefix(f"{plugin}: ")
        for text in argument_problems(plugin, argument_specs_of(PLUGINS.get(plugin)) or (), given)
    ]


UNUSED = [
    (
        "binpack",
        {"binpack.wieght": 1},
        "'binpack.wieght' is not an argument and is ignored; did you mean binpack.weight?",
    ),
    ("gang", {"anything": 1}, "'anything' is not an argument and is ignored"),
    ("binpack", {"binpack.cpu": "5"}, "Could not parse argument: 5 for key binpack.cpu to int; 1 is used"),
    (
        "binpack",
        {"binpack.resources": "a, b", "binpack.resources.b": 2, "binpack.resources.c": 2},
        "binpack.resources.c is not read, because binpack.resources does not list c",
    ),
    (
        "tdm",
        {"tdm.revocable-zones.rz1": "1:00-2:00"},
        "'tdm.revocable-zones.rz1' is not an argument and is ignored; did you mean tdm.revocable-zone.rz1?",
    ),
    ("sla", {"sla-waiting-time": "1"}, 'sla-waiting-time: time: missing unit in duration "1"; write it like 1h30m'),
    ("predicates", {"volumebinding.weight": 2}, "volumebinding.weight has no effect: volumes are not scored"),
    (
        "usage",
        {"thresholds": {"cpu": 80, "memo": 1}},
        "thresholds: 'memo' is not an argument and is ignored; did you mean mem?",
    ),
    ("usage", {"thresholds": {"mem": "x"}}, "thresholds: Could not parse argument: x for key mem to int; 0 is used"),
    (
        "resource-strategy-fit",
        {"resources": {"cpu": {"Type": "MostAllocated", "wieght": 1}}},
        "resources.cpu: 'wieght' is an unknown key and is ignored; did you mean weight?",
    ),
    (
        "rescheduling",
        {"strategies": [{"name": "lowNodeUtilization", "params": {"targetThreshold": {}}}]},
        "strategies[0].params: 'targetThreshold' is an unknown key and is ignored; did you mean targetThresholds?",
    ),
]


@pytest.mark.parametrize(("plugin", "given", "message"), UNUSED, ids=[message[:40] for _, _, message in UNUSED])
def test_an_argument_that_is_not_read_is_reported(plugin: str, given: dict[str, Any], message: str) -> None:
    assert problems_of(plugin, given) == [message]


@pytest.mark.parametrize(
    ("plugin", "given"),
    [
        pytest.param("usage", {"thresholds": {"cpu": 80, "mem": 60}}, id="map"),
        pytest.param("binpack", {"binpack.resources": "a", "binpack.resources.a": 2}, id="listed"),
        pytest.param("nodegroup", {"strict": "T"}, id="truth as text"),
        pytest.param("resource-strategy-fit", {"resourceStrategyFitWeight": 2.5}, id="float that is cut"),
        pytest.param("resource-strategy-fit", {"sra": {"RESOURCEWEIGHT": {"a": 1}}}, id="key in capitals"),
        pytest.param("overcommit", {"overcommit-factor": 2}, id="integer for a float"),
        pytest.param("extender", {"extender.httpTimeout": "2s", "extender.managedResources": ["a"]}, id="list"),
    ],
)
def test_a_valid_argument_is_not_reported(plugin: str, given: dict[str, Any]) -> None:
    assert problems_of(plugin, given) == []


@pytest.mark.parametrize(
    ("metrics", "problems"),
    [
        pytest.param({"type": "prometheus", "address": "http://a", "interval": "1m"}, [], id="good"),
        pytest.param({}, [], id="none"),
        pytest.param({"type": "prometheus"}, ["metrics: metrics address is empty"], id="no address"),
        pytest.param(
            {"adress": "a"}, ["metrics: 'adress' is not an argument and is ignored; did you mean address?"], id="key"
        ),
        pytest.param(
            {"type": "elasticsaerch"},
            [
                (
                    "metrics: data cannot be collected from the elasticsaerch monitoring system. The supported "
                    "monitoring systems are elasticsearch, prometheus, and prometheus_adaptor; "
                    "did you mean elasticsearch?"
                )
            ],
            id="type",
        ),
    ],
)
def test_errors_in_the_metrics_section_are_reported(metrics: dict[str, str], problems: list[str]) -> None:
    assert list(metrics_problems(metrics)) == problems
