"""VolumeZone: pods stay in the zones of their volumes."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.framework.api.status import Code
from bayplan.objects.core import Pod
from bayplan.plugins.volume_zone import REASON, VolumeZone
from bayplan.volumes.zones import BETA_REGION, BETA_ZONE, REGION, ZONE
from support.builders.framework import (
    FEASIBLE,
    FakeHandle,
    evaluate_hints,
    make_cycle,
    make_filtering,
    make_node,
    make_plugin,
    make_snapshot,
    run_filter,
    unresolvable,
)
from support.builders.volumes import claim_volume, ephemeral, make_claim, make_class, make_volume, volume_pod

POD = volume_pod(claim_volume("claim"))
BOUND = make_claim(volume="pv")


@pytest.mark.parametrize(
    ("volume", "node", "fits"),
    [
        pytest.param({ZONE: "a"}, {ZONE: "a"}, True, id="same zone"),
        pytest.param({ZONE: "a"}, {ZONE: "b"}, False, id="another zone"),
        pytest.param({ZONE: "a__b"}, {ZONE: "b"}, True, id="one of several"),
        pytest.param({ZONE: "a"}, {"rack": "x"}, True, id="a node that says nothing of zones"),
        pytest.param({ZONE: "a"}, {REGION: "r"}, False, id="a node that says something else"),
        pytest.param({ZONE: "a", REGION: "r"}, {ZONE: "a", REGION: "s"}, False, id="all labels must fit"),
        pytest.param({BETA_ZONE: "a"}, {ZONE: "a"}, True, id="old volume, new node"),
        pytest.param({BETA_ZONE: "a"}, {BETA_ZONE: "b", ZONE: "a"}, False, id="the same key counts first"),
        pytest.param({ZONE: "a"}, {BETA_ZONE: "a"}, False, id="new volume, old node"),
        pytest.param({BETA_REGION: "r"}, {REGION: "r"}, True, id="old region"),
    ],
)
def test_zones(volume: dict[str, str], node: dict[str, str], fits: bool) -> None:
    objects = [BOUND, make_volume("pv", labels=volume)]
    answers = run_filter(VolumeZone, POD, make_node("n", labels=node), objects=objects)
    assert answers == {"n": FEASIBLE if fits else unresolvable(REASON)}


def test_all_volumes_must_match_the_zone() -> None:
    volumes = [make_volume("va", labels={ZONE: "a__b"}), make_volume("vb", labels={ZONE: "b__c"})]
    objects = [make_claim("a", volume="va"), make_claim("b", volume="vb"), *volumes]
    nodes = [make_node(zone, labels={ZONE: zone}) for zone in "abc"]
    answers = run_filter(VolumeZone, volume_pod(claim_volume("a"), claim_volume("b")), *nodes, objects=objects)
    assert answers == {"a": unresolvable(REASON), "b": FEASIBLE, "c": unresolvable(REASON)}


REFUSALS: list[Any] = [
    pytest.param(volume_pod(claim_volume("")), [], "PersistentVolumeClaim had no name", id="no name"),
    pytest.param(POD, [], 'persistentvolumeclaim "claim" not found', id="no claim"),
    pytest.param(POD, [BOUND], 'persistentvolume "pv" not found', id="no volume"),
    pytest.param(
        POD,
        [make_claim(storage_class=None)],
        "PersistentVolumeClaim had no pv name and storageClass name",
        id="no class",
    ),
    pytest.param(POD, [make_claim()], 'storageclass.storage.k8s.io "slow" not found', id="unknown class"),
    pytest.param(
        POD, [make_claim(), make_class(mode=None)], 'VolumeBindingMode not set for StorageClass "slow"', id="no mode"
    ),
    pytest.param(POD, [make_claim(), make_class(mode="Immediate")], "PersistentVolume had no name", id="immediate"),
]


@pytest.mark.parametrize(("pod", "objects", "reason"), REFUSALS)
def test_refused_before_any_node(pod: Pod, objects: list[Any], reason: str) -> None:
    snapshot = make_snapshot([make_node("n")], objects=objects)
    plugin = make_plugin(VolumeZone, handle=FakeHandle(snapshot.catalog))
    status = plugin.pre_filter(make_cycle(pod, snapshot))
    assert (status.code, status.reasons) == (Code.UNRESOLVABLE, (reason,))


@pytest.mark.parametrize(("pod", "objects", "reason"), REFUSALS)
def test_the_same_at_every_node_where_pre_filter_is_off(pod: Pod, objects: list[Any], reason: str) -> None:
    snapshot = make_snapshot([make_node("n")], objects=objects)
    plugin = make_plugin(VolumeZone, handle=FakeHandle(snapshot.catalog))
    status = make_filtering(plugin).filter_table(make_cycle(pod, snapshot), snapshot.table).status(0)
    assert (status.code, status.reasons) == (Code.UNRESOLVABLE, (reason,))


@pytest.mark.parametrize(
    ("pod", "objects"),
    [
        pytest.param(volume_pod(), [], id="no volumes"),
        pytest.param(volume_pod(ephemeral()), [], id="ephemeral volumes are not looked at"),
        pytest.param(POD, [make_claim(), make_class()], id="still to be bound"),
        pytest.param(POD, [BOUND, make_volume("pv")], id="no labels"),
        pytest.param(POD, [BOUND, make_volume("pv", labels={ZONE: "a__"})], id="spoilt labels"),
    ],
)
def test_skipped(pod: Pod, objects: list[Any]) -> None:
    snapshot = make_snapshot([make_node("n")], objects=objects)
    plugin = make_plugin(VolumeZone, handle=FakeHandle(snapshot.catalog))
    assert plugin.pre_filter(make_cycle(pod, snapshot)).code is Code.SKIP


def test_only_pods_without_claims_share_answers() -> None:
    plugin = make_plugin(VolumeZone)
    assert plugin.signature(volume_pod(ephemeral())) == ()
    assert plugin.signature(POD) is None


@pytest.mark.parametrize(
    ("resource", "old", "new", "expected"),
    [
        pytest.param("storage.k8s.io/StorageClass", None, make_class(), "Queue", id="class that waits"),
        pytest.param("storage.k8s.io/StorageClass", None, make_class(mode="Immediate"), "Skip", id="immediate class"),
        pytest.param("storage.k8s.io/StorageClass", None, make_class(mode=None), "Skip", id="class without mode"),
        pytest.param("PersistentVolumeClaim", None, make_claim(), "Queue", id="own claim"),
        pytest.param("PersistentVolumeClaim", make_claim(), BOUND, "Queue", id="own claim bound"),
        pytest.param("PersistentVolumeClaim", None, make_claim("other"), "Skip", id="another claim"),
        pytest.param("PersistentVolume", None, make_volume("x"), "Queue", id="new volume"),
        pytest.param("PersistentVolume", make_volume(), make_volume(labels={ZONE: "a"}), "Queue", id="zone changed"),
        pytest.param(
            "PersistentVolume",
            make_volume(labels={ZONE: "a__b"}),
            make_volume(labels={ZONE: "b__a"}),
            "Skip",
            id="order",
        ),
        pytest.param("PersistentVolume", make_volume(), make_volume(phase="Bound"), "Skip", id="zones as before"),
        pytest.param("Node", None, make_node(), "Queue", id="node"),
    ],
)
def test_hints(resource: str, old: Any, new: Any, expected: str) -> None:
    assert evaluate_hints(VolumeZone, resource, POD, old, new) == [expected]
