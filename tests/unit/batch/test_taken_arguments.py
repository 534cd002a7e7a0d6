"""Defaults of declared arguments equal Volcano's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bayplan.batch.actions import default_actions
from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.plugins import default_batch_plugins

DEFAULTS: dict[str, dict[str, Any]] = {
    "capacity": {"capacity.DynamicResourceAllocationEnable": True},
    "overcommit": {"overcommit-factor": 1.2},
    "predicates": {
        "predicate.NodeAffinityEnable": True,
        "predicate.TaintTolerationEnable": True,
        "predicate.NodePortsEnable": True,
        "predicate.PodAffinityEnable": True,
        "predicate.NodeVolumeLimitsEnable": True,
        "predicate.VolumeZoneEnable": True,
        "predicate.PodTopologySpreadEnable": True,
        "predicate.VolumeBindingEnable": True,
        "volumebinding.bindTimeoutSeconds": 600,
    },
    "nodeorder": {
        "leastrequested.weight": 1,
        "balancedresource.weight": 1,
        "nodeaffinity.weight": 2,
        "podaffinity.weight": 2,
        "tainttoleration.weight": 3,
        "podtopologyspread.weight": 2,
        "imagelocality.weight": 1,
    },
    "tdm": {"tdm.evict.period": "1m"},
    "rescheduling": {"interval": "5m", "metricsPeriod": "5m"},
    "binpack": {"binpack.weight": 1, "binpack.cpu": 1, "binpack.memory": 1, "binpack.resources.<resource>": 1},
    "resource-strategy-fit": {"resourceStrategyFitWeight": 10},
    "usage": {"usage.weight": 5, "cpu.weight": 1, "memory.weight": 1},
    "nodegroup": {"strict": True},
    "network-topology-aware": {
        "weight": 1,
        "hypernode.binpack.cpu": 1,
        "hypernode.binpack.memory": 1,
        "hypernode.binpack.resources.<resource>": 1,
        "hypernode.binpack.normal-pod.enable": True,
        "hypernode.binpack.normal-pod.fading": 0.8,
        "hypernode.gradient.evict.max-hypernodes": 8,
    },
    "numa-aware": {"weight": 1},
    "task-topology": {"task-topology.weight": 1},
    "allocate": {"predicateErrorCacheEnable": True},
    "preempt": {
        "predicateErrorCacheEnable": True,
        "minCandidateNodesPercentage": 10,
        "minCandidateNodesAbsolute": 1,
        "maxCandidateNodesAbsolute": 100,
    },
    "gangpreempt": {"maxDomains": 8, "allowWholeBundle": True},
    "gangreclaim": {"maxDomains": 8, "allowWholeBundle": True},
}
"""By plugin or action. Empty, false and zero defaults are left out; `map/field` names the field of a map."""


def declared_defaults(arguments: tuple[Argument, ...], within: str = "") -> Iterator[tuple[str, Any]]:
    for each in arguments:
        if each.default not in (None, "", False, 0):
            yield within + each.name, each.default
        yield from declared_defaults(each.fields, f"{within}{each.name}/")


def all_plugins_and_actions() -> list[Any]:
    return [*default_batch_plugins()._classes.values(), *default_actions().actions.values()]


@pytest.mark.parametrize("each", [pytest.param(each, id=each.name) for each in all_plugins_and_actions()])
def test_declared_defaults_equal_volcanos(each: Any) -> None:
    assert dict(declared_defaults(getattr(each, "takes", ()))) == DEFAULTS.get(each.name, {})
