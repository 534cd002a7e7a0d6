"""The effective configuration: changes by extenders, and the arguments of plugins that run."""

from __future__ import annotations

import json
from typing import Any

from bayplan.config.effective_configuration import built_configuration, effective_configuration
from bayplan.config.load import dump, load
from bayplan.config.model import Configuration
from bayplan.plugins.args_kinds import ARGS_KINDS

HEADER = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
BARE = {"multiPoint": {"disabled": [{"name": "*"}], "enabled": [{"name": "PrioritySort"}, {"name": "DefaultBinder"}]}}


def configuration(*profiles: dict[str, Any], extenders: tuple[dict[str, Any], ...] = ()) -> Configuration:
    return load(json.dumps(HEADER | {"profiles": list(profiles), "extenders": list(extenders)}), ARGS_KINDS)


def args_entry(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def ignored(found: Configuration) -> list[tuple[str, ...]]:
    return [profile.plugin_config["NodeResourcesFit"].ignored_resources for profile in found.profiles]


def test_ignored_resources_of_extenders_replace_the_given_ones() -> None:
    managed = ({"name": "x.com/gpu", "ignoredByScheduler": True}, {"name": "x.com/seen"})
    given = configuration(
        {"schedulerName": "one", "pluginConfig": [args_entry("NodeResourcesFit", ignoredResources=["x.com/other"])]},
        {"schedulerName": "two"},
        extenders=({"urlPrefix": "u", "managedResources": list(managed)},),
    )
    assert ignored(given) == [("x.com/other",), ()]
    for found in (effective_configuration(given), built_configuration(given)):
        assert ignored(found) == [("x.com/gpu",), ("x.com/gpu",)]


def test_extenders_keep_their_order_and_have_their_timeout() -> None:
    extenders = ({"urlPrefix": "first", "ignorable": True}, {"urlPrefix": "second", "httpTimeout": "1s"})
    found = dump(effective_configuration(configuration({}, extenders=extenders)))["extenders"]
    assert [(each["urlPrefix"], each["httpTimeout"]) for each in found] == [("first", "5s"), ("second", "1s")]


def test_arguments_are_sorted_by_name_and_only_of_running_plugins() -> None:
    entries = [args_entry("VolumeBinding", bindTimeoutSeconds=5), args_entry("NoSuch", a=1), {"name": "NodeName"}]
    given = configuration({"pluginConfig": [*entries, args_entry("NodePorts", b=1)]})
    names = {"DefaultPreemption", "DynamicResources", "InterPodAffinity", "NodeAffinity", "NodePorts"}
    names |= {"NodeResourcesBalancedAllocation", "NodeResourcesFit", "PodTopologySpread", "VolumeBinding"}
    (shown,), (written,) = (
        dump(effective_configuration(given))["profiles"],
        dump(built_configuration(given))["profiles"],
    )
    assert [each["name"] for each in shown["pluginConfig"][:3]] == ["VolumeBinding", "NoSuch", "NodeName"]
    assert [each["name"] for each in written["pluginConfig"]] == sorted(names)
    assert written["pluginConfig"][-1]["args"]["bindTimeoutSeconds"] == 5


def test_a_profile_without_arguments_has_no_list_of_them() -> None:
    (profile,) = dump(built_configuration(configuration({"plugins": BARE})))["profiles"]
    assert "pluginConfig" not in profile
