"""Volcano's kinds: decoding from files, defaults and validation as in Volcano's CRDs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bayplan.errors import ObjectError
from bayplan.objects import workloads
from bayplan.objects.defaults import with_all_defaults
from bayplan.objects.field_checks import object_errors
from bayplan.objects.kinds import convert, find_kind
from bayplan.objects.manifests import load_manifests
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano import types as volcano

TOPOLOGY = {"mode": "soft", "highestTierAllowed": 2}
GROUP = {
    "metadata": {"name": "job", "namespace": "ml"},
    "spec": {
        "minMember": 3,
        "minTaskMember": {"ps": 1},
        "queue": "q",
        "priorityClassName": "high",
        "minResources": {"cpu": "3"},
        "networkTopology": TOPOLOGY,
        "subGroupPolicy": [
            {
                "name": "pipe",
                "labelSelector": {"matchLabels": {"kind": "w"}},
                "matchLabelKeys": ["grp"],
                "networkTopology": TOPOLOGY,
                "subGroupSize": 2,
                "minSubGroups": 1,
            }
        ],
    },
    "status": {
        "phase": "Inqueue",
        "conditions": [
            {"type": "Unschedulable", "status": "True", "transitionID": "7", "reason": "NotEnoughResources"}
        ],
        "running": 1,
        "succeeded": 2,
        "failed": 3,
    },
}
GROUPS = {"requiredDuringSchedulingIgnoredDuringExecution": ["g1"]}
QUEUE = {
    "metadata": {"name": "q"},
    "spec": {
        "weight": 2,
        "capability": {"cpu": "4"},
        "deserved": {"cpu": 2},
        "guarantee": {"resource": {"cpu": 1}},
        "reclaimable": False,
        "parent": "root",
        "priority": 5,
        "affinity": {"nodeGroupAffinity": GROUPS, "nodeGroupAntiAffinity": GROUPS},
    },
    "status": {"state": "Open", "allocated": {"cpu": "1"}, "reservation": {"nodes": ["n"]}},
}
HYPERNODE = {
    "metadata": {"name": "s0"},
    "spec": {
        "tier": 1,
        "tierName": "switch",
        "members": [
            {"type": "Node", "selector": {"exactMatch": {"name": "n1"}}},
            {"type": "Node", "selector": {"regexMatch": {"pattern": "^n"}}},
            {"type": "Node", "selector": {"labelMatch": {"matchLabels": {"rack": "r"}}}},
        ],
    },
}
NUMA = {
    "metadata": {"name": "n1"},
    "spec": {
        "policies": {"TopologyManagerPolicy": "best-effort"},
        "resReserved": {"cpu": "1"},
        "numares": {"cpu": {"allocatable": "0-3", "capacity": 4}},
        "cpuDetail": {"1": {"numa": 1, "socket": 1, "core": 1}},
    },
}
QUOTA = {"metadata": {"name": "rq", "namespace": "ml"}, "spec": {"hard": {"cpu": 1}}, "status": {"used": {"cpu": 1}}}

TWO_GROUPS = """
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: job}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: job}
spec: {minMember: 2}
"""


@pytest.mark.parametrize(
    ("api_version", "kind", "raw"),
    [
        ("scheduling.volcano.sh/v1beta1", "PodGroup", GROUP),
        ("scheduling.volcano.sh/v1beta1", "Queue", QUEUE),
        ("topology.volcano.sh/v1alpha1", "HyperNode", HYPERNODE),
        ("nodeinfo.volcano.sh/v1alpha1", "Numatopology", NUMA),
        ("v1", "ResourceQuota", QUOTA),
    ],
)
def test_every_field_is_decoded(api_version: str, kind: str, raw: dict[str, Any]) -> None:
    found = find_kind(api_version, kind)
    assert found is not None
    assert msgspec.json.decode(msgspec.json.encode(convert(raw, found.struct))) == raw


def test_both_kinds_of_pod_groups_are_read(tmp_path: Path) -> None:
    (tmp_path / "groups.yaml").write_text(TWO_GROUPS, encoding="utf-8")
    theirs, ours = load_manifests([tmp_path]).objects
    assert (type(theirs), type(ours)) == (workloads.PodGroup, volcano.PodGroup)


def test_the_error_of_a_pod_group_without_api_version_names_both_versions(tmp_path: Path) -> None:
    (tmp_path / "group.yaml").write_text("kind: PodGroup\nmetadata: {name: job}\n", encoding="utf-8")
    with pytest.raises(ObjectError, match=r"scheduling\.k8s\.io/v1alpha2 or scheduling\.volcano\.sh/v1beta1"):
        load_manifests([tmp_path])


def test_the_error_of_an_old_version_names_the_new_one() -> None:
    with pytest.raises(ObjectError, match=r"use scheduling\.volcano\.sh/v1beta1"):
        find_kind("scheduling.volcano.sh/v1alpha1", "Queue")


def stored(item: KubeObject) -> Any:
    (found,) = with_all_defaults([item])
    return found


def test_defaults_of_the_crds() -> None:
    policy = {"subGroupPolicy": [{"networkTopology": {}}, {"subGroupSize": 3, "minSubGroups": 2}]}
    group = stored(convert({"metadata": {"name": "job"}, "spec": {"networkTopology": {}, **policy}}, volcano.PodGroup))
    assert (group.spec.queue, group.spec.network_topology.mode, group.namespace) == ("default", "hard", "default")
    first, second = group.spec.sub_group_policy
    assert (first.sub_group_size, first.min_sub_groups, first.network_topology.mode) == (1, 0, "hard")
    assert (second.sub_group_size, second.min_sub_groups, second.network_topology) == (3, 2, None)
    queue = stored(convert({"metadata": {"name": "q"}}, volcano.Queue))
    assert (queue.spec.weight, queue.spec.dequeue_strategy, queue.status.state) == (1, "traverse", "Open")


def test_given_values_stay() -> None:
    assert stored(convert(GROUP, volcano.PodGroup)).spec == convert(GROUP, volcano.PodGroup).spec
    assert stored(convert(QUEUE, volcano.Queue)).spec.weight == 2


@pytest.mark.parametrize(
    ("struct", "spec", "words"),
    [
        pytest.param(volcano.PodGroup, {"minMember": -1}, "spec.minMember: -1 is out of range", id="members"),
        pytest.param(volcano.PodGroup, {"minResources": {"cpu": "-1"}}, 'minResources.cpu: "-1" is negative', id="min"),
        pytest.param(volcano.PodGroup, {"networkTopology": {"mode": "firm"}}, "write hard or soft", id="mode"),
        pytest.param(volcano.PodGroup, {"subGroupPolicy": [{"subGroupSize": 0}]}, "subGroupSize: 0 is out", id="size"),
        pytest.param(volcano.Queue, {"weight": 65536}, "write a number from 0 to 65535", id="weight"),
        pytest.param(volcano.Queue, {"capability": {"cpu": "many"}}, '"many" is not a quantity', id="capability"),
        pytest.param(volcano.Queue, {"guarantee": {"resource": {"cpu": "-1"}}}, "is negative", id="guarantee"),
        pytest.param(volcano.HyperNode, {"tier": -1}, "spec.tier: -1 is out of range", id="tier"),
        pytest.param(volcano.HyperNode, {"members": [{"type": "Rack"}]}, "write Node or HyperNode", id="member"),
    ],
)
def test_invalid_objects_are_refused(struct: type[KubeObject], spec: dict[str, Any], words: str) -> None:
    (problem,) = object_errors(convert({"metadata": {"name": "x"}, "spec": spec}, struct))
    assert words in problem
