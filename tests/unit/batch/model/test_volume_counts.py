"""CSI volumes as a resource, as Volcano's cache counts them (`getPodCSIVolumes`, `setCSIResourceOnNode`)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.batch.engine import BatchEngine
from bayplan.batch.model.volume_counts import UNLIMITED, attach_resource_name
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject, ObjectMeta, OwnerReference
from bayplan.objects.storage import (
    CsiNode,
    CsiNodeDriver,
    CsiNodeSpec,
    CsiVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    StorageClass,
    VolumeNodeResources,
)
from bayplan.objects.volumes import EphemeralVolume, PersistentVolumeClaimVolume, Volume
from bayplan.testing.builders import make_node, make_pod
from support.builders.batch import make_group, make_member
from support.builders.batch_engines import build_engine

EBS = "ebs.csi.aws.com"
COUNTED = f"attachable-volumes-csi-{EBS}"


def with_claims(pod: Pod, *claims: str) -> Pod:
    volumes = [
        Volume(name=name, persistent_volume_claim=PersistentVolumeClaimVolume(claim_name=name)) for name in claims
    ]
    return replace(pod, spec=replace(pod.spec, volumes=tuple(volumes)))


def claim(name: str = "c", volume: str = "", storage_class: str = "", **meta: Any) -> PersistentVolumeClaim:
    spec = PersistentVolumeClaimSpec(volume_name=volume, storage_class_name=storage_class)
    return PersistentVolumeClaim(metadata=ObjectMeta(name=name, namespace="default", **meta), spec=spec)


def volume(name: str = "v", driver: str = EBS) -> PersistentVolume:
    source = CsiVolumeSource(driver=driver) if driver else None
    return PersistentVolume(metadata=ObjectMeta(name=name), spec=PersistentVolumeSpec(csi=source))


def storage_class(provisioner: str = EBS, **fields: Any) -> StorageClass:
    return StorageClass(metadata=ObjectMeta(name="fast"), provisioner=provisioner, **fields)


def csi_node(name: str = "a", limit: int | None = 2, driver: str = EBS) -> CsiNode:
    room = None if limit is None else VolumeNodeResources(count=limit)
    spec = CsiNodeSpec(drivers=(CsiNodeDriver(name=driver, allocatable=room),))
    return CsiNode(metadata=ObjectMeta(name=name), spec=spec)


def counted_volumes(engine: BatchEngine, name: str = "p") -> dict[str, float]:
    with engine.session():
        task = engine.cluster_state.task(f"pod-{name}")
        assert task is not None
        return {key: amount for key, amount in (task.resreq.scalars or {}).items() if key != "pods"}


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param([claim(volume="v"), volume()], {COUNTED: 1}, id="by-its-volume"),
        pytest.param([claim(volume="v"), volume(driver="")], {}, id="a-volume-of-another-kind"),
        pytest.param([claim(volume="gone", storage_class="fast"), storage_class()], {COUNTED: 1}, id="by-its-class"),
        pytest.param([claim(storage_class="fast"), storage_class()], {COUNTED: 1}, id="not-bound-yet"),
        pytest.param([claim()], {}, id="neither-volume-nor-class"),
        pytest.param([claim(storage_class="fast"), storage_class("rancher.io/local-path")], {}, id="ignored"),
        pytest.param([claim(storage_class="fast"), storage_class("bayplan.dev/hostpath")], {}, id="our-own"),
        pytest.param([], {}, id="no-claim-yet"),
        pytest.param([claim(storage_class="fast")], {}, id="no-class-yet"),
    ],
)
def test_a_claim_counts_by_its_driver(objects: list[KubeObject], expected: dict[str, float]) -> None:
    pod = with_claims(make_member("p"), "c")
    assert (
        counted_volumes(build_engine(nodes=[make_node("a")], pods=[pod], objects=[make_group(), *objects])) == expected
    )


def test_a_storage_class_parameter_can_name_the_driver() -> None:
    named = storage_class("other", parameters={"csi.storage.k8s.io/csi-driver-name": EBS})
    pod = with_claims(make_member("p"), "c")
    assert counted_volumes(build_engine(pods=[pod], objects=[make_group(), claim(storage_class="fast"), named])) == {
        COUNTED: 1
    }


def test_every_claim_counts_and_a_pod_with_claims_is_not_best_effort() -> None:
    pod = with_claims(make_member("p", requests={}), "c", "d")
    objects = [make_group(), volume(), claim(volume="v"), claim("d", volume="v")]
    engine = build_engine(pods=[pod], objects=objects)
    assert counted_volumes(engine) == {COUNTED: 2}
    task = engine.cluster_state.task("pod-p")
    assert task is not None
    assert not task.best_effort


@pytest.mark.parametrize("is_owner", [True, False])
def test_a_claim_of_an_ephemeral_volume_counts_if_the_pod_owns_it(*, is_owner: bool) -> None:
    pod = make_member("p")
    pod = replace(pod, spec=replace(pod.spec, volumes=(Volume(name="tmp", ephemeral=EphemeralVolume()),)))
    owner = OwnerReference(kind="Pod", name="p", uid="pod-p" if is_owner else "other", controller=True)
    objects = [make_group(), volume(), claim("p-tmp", volume="v", owner_references=(owner,))]
    assert counted_volumes(build_engine(pods=[pod], objects=objects)) == ({COUNTED: 1} if is_owner else {})


def test_a_claim_counts_once_it_is_created() -> None:
    pods = [with_claims(make_member("p"), "c"), with_claims(make_pod("stranger", node="a", cpu=1), "c")]
    engine = build_engine(nodes=[make_node("a")], pods=pods, objects=[make_group(), csi_node(limit=5)])
    assert counted_volumes(engine) == {}
    engine.cache.upsert(claim(storage_class="fast"))
    assert counted_volumes(engine) == {}
    engine.cache.upsert(storage_class())
    assert counted_volumes(engine) == {COUNTED: 1}
    with engine.session() as session:
        node = session.node("a")
        assert node is not None
        assert (node.allocatable.get(COUNTED), node.used.get(COUNTED), node.idle.get(COUNTED)) == (5, 1, 4)


def test_a_node_takes_as_many_volumes_as_its_driver_allows() -> None:
    pods = [with_claims(make_member(f"job-w-{number}"), "c") for number in range(3)]
    objects = [make_group(), claim(volume="v"), volume()]
    conf = 'actions: "allocate"\ntiers:\n- plugins:\n  - name: gang\n'
    nodes = [make_node("a"), make_node("b")]
    engine = build_engine(conf=conf, nodes=nodes, pods=pods, objects=[*objects, csi_node(limit=2)])
    outcome = engine.run_session()
    assert set(outcome.binds.values()) == {"a"}  # the other node does not have the driver
    assert len(outcome.binds) == 2
    engine.cache.upsert(csi_node("b", limit=None))
    assert set(engine.run_session().binds.values()) == {"b"}
    with engine.session() as session:
        node = session.node("b")
        assert node is not None
        assert node.allocatable.get(COUNTED) == UNLIMITED
    engine.cache.delete(csi_node("b", limit=None))
    with engine.session() as session:
        node = session.node("b")
        assert node is not None
        assert not node.allocatable.get(COUNTED)


def test_long_resource_names_are_shortened_and_stay_unique() -> None:
    long = "a-driver-with-a-name-that-is-too-long.example.com"
    assert attach_resource_name("short.example.com") == "attachable-volumes-csi-short.example.com"
    assert attach_resource_name(long) == "attachable-volumes-csi-a-driver-with-a-name-th5d198acce3a98d85"
    assert len(attach_resource_name(long)) < 63
