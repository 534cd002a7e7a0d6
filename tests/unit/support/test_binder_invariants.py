"""Each violation that a crash may cause is detected by the invariants."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from support.e2e.binder_invariants import ClusterState
from support.e2e.scheduler_process import node, pod

Tree = dict[str, Any]
GROUP = {"runai-gpu-group": "g"}


def placed(name: str, where: str = "n1", **more: Any) -> Tree:
    tree = pod(name, "default", nodeName=where, **more)
    tree["metadata"]["uid"] = name
    return tree


def request(name: str, where: str = "n1", **spec: Any) -> Tree:
    return {
        "metadata": {"name": name, "annotations": {}},
        "spec": {"podName": name, "podUID": name, "selectedNode": where, "backoffLimit": 3, **spec},
        "status": {"phase": "Succeeded"},
    }


def in_order() -> ClusterState:
    """A plain pod, one that shares a device, one with a claim, one with a volume: no violation."""
    room = node("n1", cpu="4")
    room["status"]["allocatable"]["nvidia.com/gpu"] = "1"
    shared, holder = placed("shared"), placed("holder")
    shared["metadata"]["labels"] = holder["metadata"]["labels"] = dict(GROUP)
    told = {"runai/shared-gpu-configmap": "shared-gpu", "received-resource-type": "Fraction"}
    shared["metadata"]["annotations"] = told
    holder["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "1"}}
    part = {"receivedResourceType": "Fraction", "selectedGPUGroups": ["g"], "receivedGPU": {"portion": "0.60"}}
    claiming = placed("claiming", resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])
    device = {"driver": "d", "pool": "n1", "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [device]}}, "reservedFor": [{"uid": "claiming"}]}
    storing = placed("storing", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    return ClusterState(
        nodes=[room],
        pods=[placed("plain"), shared, claiming, storing],
        requests=[request("plain"), request("shared", **part), request("claiming"), request("storing")],
        reservations=[holder],
        config_maps=[{"metadata": {"name": name}} for name in ("shared-gpu-0", "shared-gpu-0-evar")],
        claims=[{"metadata": {"name": "c"}, "status": status}],
        volumes=[volume("v", "n1")],
        volume_claims=[{"metadata": {"name": "data", "uid": "data"}, "spec": {"volumeName": "v"}}],
    )


def volume(name: str, where: str) -> Tree:
    there = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [where]}]}
    affinity = {"required": {"nodeSelectorTerms": [there]}}
    return {"metadata": {"name": name}, "spec": {"claimRef": {"uid": "data"}, "nodeAffinity": affinity}}


def test_a_consistent_state_has_no_faults() -> None:
    assert in_order().faults() == []


def second_share(scene: ClusterState) -> None:
    another = copy.deepcopy(scene.pods[1])
    another["metadata"].update(name="second", uid="second")
    scene.pods.append(another)
    scene.requests.append(request("second", **{**scene.requests[1]["spec"], "podUID": "second", "podName": "second"}))


def waiting(scene: ClusterState) -> None:
    """A pod with a request for a node without room for it."""
    large = placed("large", "", cpu="4")
    scene.pods.append(large)
    scene.requests.append({**request("large"), "status": {}})


def only_from(scene: ClusterState, **term: Any) -> None:
    """The devices of the claim can be used from some nodes only."""
    scene.claims[0]["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [term]}


def on(key: str, value: str) -> list[Tree]:
    return [{"key": key, "operator": "In", "values": [value]}]


ELSEWHERE = "pod claiming is on n1, where claim c cannot be used"


FAULTS: dict[str, tuple[Callable[[ClusterState], Any], str]] = {
    "two-requests": (lambda scene: scene.requests.append(request("plain")), "pod plain has 2 live requests"),
    "other-node": (
        lambda scene: scene.requests[0]["spec"].update(selectedNode="n2"),
        'pod plain is on "n1", not on the node of its request',
    ),
    "too-often": (
        lambda scene: scene.requests[0]["status"].update(failedAttempts=5),
        "request plain was tried 5 times, of 4",
    ),
    "annotations": (
        lambda scene: scene.requests[0]["metadata"].update(annotations={"a": "b"}),
        "request plain says {'a': 'b'}, its plugins {}",
    ),
    "no-room": (waiting, "n1: 4400 of 4000 cpu"),
    "no-device": (
        lambda scene: scene.nodes[0]["status"]["allocatable"].pop("nvidia.com/gpu"),
        "n1: 1000 of 0 nvidia.com/gpu",
    ),
    "too-many-shares": (second_share, "group g is given out to 120 %"),
    "leaked-reservation": (lambda scene: scene.pods.pop(1), "the device of group g on n1 is reserved but unused"),
    "no-reservation": (
        lambda scene: scene.reservations.pop(),
        'a pod on "n1" is of group g, but the device is not reserved',
    ),
    "going-reservation": (
        lambda scene: scene.reservations[0]["metadata"].update(deletionTimestamp="now"),
        'a pod on "n1" is of group g, but the device is not reserved',
    ),
    "no-label": (
        lambda scene: scene.pods[1]["metadata"].pop("labels"),
        "pod shared is of groups set(), its request says {'g'}",
    ),
    "left-label": (
        lambda scene: scene.pods[0]["metadata"].update(labels={"runai-gpu-group": "old"}),
        'a pod on "n1" is of group old, but the device is not reserved',
    ),
    "no-config-map": (
        lambda scene: scene.config_maps.pop(),
        "pod shared is bound, and its ConfigMap shared-gpu-0-evar is not there",
    ),
    "dead-user": (lambda scene: scene.pods.pop(2), "claim c is reserved for claiming, which is gone"),
    "unused-claim": (lambda scene: scene.claims[0]["status"].pop("reservedFor"), "claim c has devices but no user"),
    "not-reserved": (
        lambda scene: scene.claims[0].pop("status"),
        "pod claiming is bound, and claim c is not reserved for it",
    ),
    "by-name": (lambda scene: only_from(scene, matchFields=on("metadata.name", "n2")), ELSEWHERE),
    "by-label": (lambda scene: only_from(scene, matchExpressions=on("zone", "far")), ELSEWHERE),
    "device-twice": (
        lambda scene: scene.claims.append({**scene.claims[0], "metadata": {"name": "d"}}),
        "device ('d', 'n1', 'gpu-0') is given out 2 times",
    ),
    "volume-twice": (lambda scene: scene.volumes.append(volume("w", "n1")), "claim data is promised 2 volumes"),
    "no-volume": (
        lambda scene: scene.volume_claims[0]["spec"].pop("volumeName"),
        "pod storing is bound, and the volume of claim data is not",
    ),
    "volume-of-another": (
        lambda scene: scene.volumes[0]["spec"]["claimRef"].update(uid="another"),
        "pod storing is bound, and the volume of claim data is not",
    ),
    "volume-elsewhere": (
        lambda scene: scene.volumes.__setitem__(0, volume("v", "n2")),
        "pod storing is on n1, where volume v is not",
    ),
}


def test_devices_that_can_be_used_are_no_fault() -> None:
    scene = in_order()
    scene.nodes[0]["metadata"]["labels"]["zone"] = "near"
    only_from(scene, matchFields=on("metadata.name", "n1"), matchExpressions=on("zone", "near"))
    assert scene.faults() == []


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_detected(name: str) -> None:
    scene = in_order()
    spoil, sentence = FAULTS[name]
    spoil(scene)
    assert sentence in scene.faults()
