"""Profiles: names, the merge with the default plugins, arguments, and conditions across profiles."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bayplan.config.defaults import DEFAULT_MULTIPOINT, merge_plugin_set
from bayplan.config.load import load
from bayplan.config.model import EXTENSION_POINTS, PluginRef, PluginSet, ProfileConfig
from bayplan.plugins.args_kinds import ARGS_KINDS
from bayplan.plugins.inter_pod_affinity.args import InterPodAffinityArgs

Refusal = Callable[..., str]
DEFAULT_NAMES = [plugin.name for plugin in DEFAULT_MULTIPOINT]


def profiles_of(*profiles: dict[str, Any]) -> tuple[ProfileConfig, ...]:
    header = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    return load(json.dumps(header | {"profiles": list(profiles)}), ARGS_KINDS).profiles


def plugin_set(enabled: str = "", disabled: str = "") -> PluginSet:
    """`"A B:3"` enables A without and B with a weight."""
    refs = [name.partition(":") for name in enabled.split()]
    return PluginSet(
        tuple(PluginRef(name, int(weight or 0)) for name, _, weight in refs),
        tuple(PluginRef(name) for name in disabled.split()),
    )


@pytest.mark.parametrize(
    ("custom", "expected"),
    [
        pytest.param(plugin_set(), "A B:2 C", id="nothing said"),
        pytest.param(plugin_set("D"), "A B:2 C D", id="added at the end"),
        pytest.param(plugin_set("B:7"), "A B:7 C", id="weight changed in place"),
        pytest.param(plugin_set("B"), "A B C", id="listed again without weight loses it"),
        pytest.param(plugin_set("B:1 D B:3"), "A B:3 C B:1 D", id="of equal names the last replaces, the rest stays"),
        pytest.param(plugin_set(disabled="B"), "A C", id="disabled"),
        pytest.param(plugin_set("A", "A"), "B:2 C A", id="disabled and enabled moves to the end"),
        pytest.param(plugin_set("D A", "*"), "D A", id="all disabled"),
        pytest.param(plugin_set("D D"), "A B:2 C D D", id="a new one twice is left for the profile to refuse"),
    ],
)
def test_merge_of_enabled(custom: PluginSet, expected: str) -> None:
    assert merge_plugin_set(plugin_set("A B:2 C"), custom).enabled == plugin_set(expected).enabled


def test_merge_of_disabled_puts_custom_ones_first_and_drops_weights() -> None:
    custom = PluginSet(disabled=(PluginRef("X", 5),))
    assert merge_plugin_set(plugin_set("A", "Y"), custom).disabled == (PluginRef("X"), PluginRef("Y"))


def test_the_default_set_fills_multipoint_only() -> None:
    (profile,) = profiles_of({})
    assert profile.scheduler_name == "default-scheduler"
    assert [plugin.name for plugin in profile.plugins.multi_point.enabled] == DEFAULT_NAMES
    assert len(DEFAULT_NAMES) == 20
    assert all(profile.plugins.at(point) == PluginSet() for point in EXTENSION_POINTS)


def test_points_are_found_by_their_name_in_the_file() -> None:
    (profile,) = profiles_of({"plugins": {"preFilter": {"enabled": [{"name": "X", "weight": 2}]}}})
    assert profile.plugins.at("preFilter").enabled == (PluginRef("X", 2),)
    assert dict(profile.plugins.items())["multiPoint"] == profile.plugins.multi_point
    assert "X" in profile.plugins.enabled_names()
    assert len(EXTENSION_POINTS) == 14


def test_every_enabled_plugin_with_arguments_gets_them() -> None:
    (profile,) = profiles_of({})
    assert list(profile.plugin_config) == sorted(ARGS_KINDS)
    assert profile.plugin_config["InterPodAffinity"] == InterPodAffinityArgs()


def test_a_plugin_that_is_not_enabled_gets_no_arguments() -> None:
    (profile,) = profiles_of({"plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": [{"name": "Foo"}]}}})
    assert profile.plugin_config == {}


def test_given_arguments_come_first_and_unknown_ones_stay_raw() -> None:
    entries = [
        {"name": "Foo", "args": {"a": [1, 2.5, None]}},
        {"name": "Bar"},
        {"name": "InterPodAffinity", "args": {"hardPodAffinityWeight": 7}},
        {"name": "DefaultBinder", "args": "whatever"},
    ]
    (profile,) = profiles_of({"pluginConfig": entries})
    assert list(profile.plugin_config)[:4] == ["Foo", "Bar", "InterPodAffinity", "DefaultBinder"]
    assert profile.plugin_config["Foo"] == {"a": [1, 2.5, None]}
    assert profile.plugin_config["Bar"] is None
    assert profile.plugin_config["InterPodAffinity"].hard_pod_affinity_weight == 7
    assert profile.plugin_config["DefaultBinder"] == "whatever"


def queue_sort(name: str, *plugins: Any, args: Any = None) -> dict[str, Any]:
    profile: dict[str, Any] = {"schedulerName": name, "plugins": {"queueSort": {"enabled": list(plugins)}}}
    return profile if args is None else profile | {"pluginConfig": [{"name": plugins[0]["name"], "args": args}]}


SORT = {"name": "PrioritySort"}
AFFINITY = {"name": "InterPodAffinity"}
REMOVED = (
    'Invalid value: "EBSLimits": was invalid in version "v1" '
    '(KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")'
)


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        pytest.param([{"schedulerName": ""}], "profiles[0].schedulerName: Required value", id="empty name"),
        pytest.param(
            [{"schedulerName": "a"}, {}], "profiles[1].schedulerName: Required value", id="no default among several"
        ),
        pytest.param(
            [{}, {}],
            "[profiles[0].schedulerName: Required value, profiles[1].schedulerName: Required value, "
            "profiles[1].schedulerName: Duplicate value: {}]",
            id="two without a name",
        ),
        pytest.param(
            [{"schedulerName": "a"}, {"schedulerName": "b"}, {"schedulerName": "a"}],
            "profiles[2].schedulerName: Duplicate value: {}",
            id="name given twice",
        ),
        pytest.param(
            [{"percentageOfNodesToScore": 101}],
            "profiles[0].percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
            id="percentage",
        ),
        pytest.param(
            [{"plugins": {"filter": {"enabled": [{"name": "NodeName"}, {"name": "EBSLimits"}]}}}],
            f"profiles[0].plugins.filter.enabled[1]: {REMOVED}",
            id="removed plugin at a point",
        ),
        pytest.param(
            [{"pluginConfig": [{"name": "EBSLimits"}]}],
            f"profiles[0].pluginConfig[0]: {REMOVED}",
            id="arguments of a removed plugin",
        ),
        pytest.param(
            [{"pluginConfig": [{"name": "X"}, {"name": "X"}, {"name": "X"}]}],
            '[profiles[0].pluginConfig[1]: Duplicate value: "X", profiles[0].pluginConfig[2]: Duplicate value: "X"]',
            id="arguments given twice",
        ),
        pytest.param(
            [
                {
                    "pluginConfig": [
                        {"name": "VolumeBinding"},
                        {"name": "VolumeBinding", "args": {"bindTimeoutSeconds": -1}},
                    ]
                }
            ],
            '[profiles[0].pluginConfig[1]: Duplicate value: "VolumeBinding", '
            "profiles[0].pluginConfig[1].args.bindTimeoutSeconds: Invalid value: -1: "
            "invalid BindTimeoutSeconds, should not be a negative value]",
            id="arguments given twice are checked twice",
        ),
        pytest.param(
            [{"pluginConfig": [{"name": "NodeResourcesFitArgs", "args": {"a": 1}}]}],
            'profiles[0].pluginConfig[0].args: Invalid value: {"a":1}: has to match plugin args',
            id="the name under which the fit validator is misplaced",
        ),
        pytest.param(
            [queue_sort("a", SORT, {"name": "Foo"})],
            "profiles[0].plugins.queueSort.Enabled: Invalid value: 2: only one queue sort plugin can be enabled",
            id="two sorters",
        ),
        pytest.param(
            [queue_sort("a"), queue_sort("b", SORT | {"weight": 2})],
            'profiles[1].plugins.queueSort: Invalid value: {"Enabled":[{"Name":"PrioritySort","Weight":2}],'
            '"Disabled":null}: must be the same for all profiles',
            id="sorters differ",
        ),
        pytest.param(
            [queue_sort("a", AFFINITY), queue_sort("b", AFFINITY, args={"hardPodAffinityWeight": 4})],
            'profiles[1].pluginConfig.args: Invalid value: {"HardPodAffinityWeight":4,'
            '"IgnorePreferredTermsOfExistingPods":false}: queueSort must be the same for all profiles',
            id="arguments of the sorter differ",
        ),
        pytest.param(
            [queue_sort("a", SORT, args={"a": 1}), queue_sort("b", SORT, args={"a": "<x>"})],
            'profiles[1].pluginConfig.args: Invalid value: {"a":"\\u003cx\\u003e"}: '
            "queueSort must be the same for all profiles",
            id="raw arguments of the sorter differ",
        ),
    ],
)
def test_invalid_profiles_are_refused(refusal: Refusal, profiles: list[dict[str, Any]], message: str) -> None:
    assert refusal(profiles=profiles) == f"invalid: {message}"


@pytest.mark.parametrize(
    "profiles",
    [
        pytest.param([{"plugins": {"multiPoint": {"enabled": [{"name": "EBSLimits"}]}}}], id="removed, in multiPoint"),
        pytest.param([{"plugins": {"placementScore": {"enabled": [{"name": "EBSLimits"}]}}}], id="removed, placement"),
        pytest.param([{"plugins": {"filter": {"disabled": [{"name": "EBSLimits"}]}}}], id="removed, but disabled"),
        pytest.param([queue_sort("a", SORT), queue_sort("b", SORT)], id="the same sorter"),
        pytest.param(
            [
                {"schedulerName": "a", "plugins": {"queueSort": {"disabled": [{"name": "x", "weight": 1}]}}},
                {"schedulerName": "b", "plugins": {"queueSort": {"disabled": [{"name": "x", "weight": 2}]}}},
            ],
            id="weights of disabled sorters do not count",
        ),
        pytest.param(
            [queue_sort("a", SORT), queue_sort("b", SORT) | {"pluginConfig": [{"name": "PrioritySort"}]}],
            id="no arguments equal none given",
        ),
        pytest.param(
            [{"pluginConfig": [{"name": "NodeResourcesFit", "args": {"ignoredResources": ["not a name"]}}]}],
            id="arguments of NodeResourcesFit wait until it is built",
        ),
    ],
)
def test_valid_profiles_are_accepted(refusal: Refusal, profiles: list[dict[str, Any]]) -> None:
    assert refusal(profiles=profiles) == ""
