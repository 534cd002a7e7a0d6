"""Claims, volumes, classes and CSI objects for tests.

Everything has a default; a test names only the fields that it is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bayplan.codec.quantity import QuantityText
from bayplan.objects.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, PodStatus
from bayplan.objects.meta import LabelSelector, ObjectMeta, OwnerReference
from bayplan.objects.storage import (
    ClaimReference,
    CsiDriver,
    CsiDriverSpec,
    CsiNode,
    CsiNodeDriver,
    CsiNodeSpec,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
    VolumeNodeAffinity,
    VolumeNodeResources,
)
from bayplan.objects.volumes import EphemeralVolume, PersistentVolumeClaimVolume, Volume
from bayplan.snapshot import Catalog
from bayplan.testing import builders as kit
from bayplan.testing.builders import make_pv, make_pvc, make_storage_class
from bayplan.volumes.csi import MIGRATED_PLUGINS

ZONE, HOST, CREATED = kit.ZONE, kit.HOSTNAME, kit.CREATED


def claim_volume(name: str, volume: str = "data") -> Volume:
    """A volume that names a claim."""
    return Volume(name=volume, persistent_volume_claim=PersistentVolumeClaimVolume(name))


def ephemeral(volume: str = "scratch") -> Volume:
    """A generic ephemeral volume; its claim is `<pod>-<volume>`."""
    return Volume(name=volume, ephemeral=EphemeralVolume())


def volume_pod(
    *volumes: Volume, name: str = "pod", namespace: str = "default", node: str = "", nominated: str = ""
) -> Pod:
    """A pod of which only the volumes matter."""
    return Pod(
        ObjectMeta(name=name, namespace=namespace, uid=f"uid-{namespace}-{name}"),
        PodSpec(node_name=node, volumes=volumes),
        PodStatus(nominated_node_name=nominated),
    )


def owner_references(pod: Pod) -> tuple[OwnerReference, ...]:
    return (OwnerReference(kind="Pod", name=pod.name, uid=pod.uid, controller=True),)


def make_claim(name: str = "claim", *, storage_class: str | None = "slow", **fields: Any) -> PersistentVolumeClaim:
    """The kit's claim, with the storage class of these tests."""
    return make_pvc(name, storage_class=storage_class, **fields)


def make_volume(name: str = "volume", *, storage_class: str = "slow", **fields: Any) -> PersistentVolume:
    """The kit's volume, with the same class."""
    return make_pv(name, storage_class=storage_class, **fields)


def affinity(*terms: Mapping[str, Sequence[str]]) -> VolumeNodeAffinity:
    """A node affinity of `key In values` terms."""
    return VolumeNodeAffinity(
        NodeSelector(
            tuple(
                NodeSelectorTerm(
                    tuple(NodeSelectorRequirement(key, "In", tuple(values)) for key, values in term.items())
                )
                for term in terms
            )
        )
    )


def claim_reference(claim: PersistentVolumeClaim, *, uid: str | None = None) -> ClaimReference:
    """A volume's reference to a claim."""
    return ClaimReference(
        kind="PersistentVolumeClaim",
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.metadata.uid if uid is None else uid,
    )


def make_class(name: str = "slow", **fields: Any) -> StorageClass:
    return make_storage_class(name, **fields)


def make_csi_node(name: str, *, migrated: str | None = None, **limits: int | None) -> CsiNode:
    """A CSINode; `limits` are counts by driver (an underscore stands for a dot), None for a driver without one."""
    drivers = tuple(
        CsiNodeDriver(driver.replace("_", "."), allocatable=VolumeNodeResources(count))
        for driver, count in limits.items()
    )
    annotations = {} if migrated is None else {MIGRATED_PLUGINS: migrated}
    return CsiNode(ObjectMeta(name=name, annotations=annotations), CsiNodeSpec(drivers))


def make_driver(name: str = "csi.example.com", *, capacity: bool | None = True) -> CsiDriver:
    return CsiDriver(ObjectMeta(name=name), CsiDriverSpec(storage_capacity=capacity))


def make_storage_capacity(
    name: str = "pool",
    *,
    storage_class: str = "slow",
    near: dict[str, str] | None = None,
    capacity: QuantityText | None = None,
    largest: QuantityText | None = None,
    reachable: bool = True,
) -> CsiStorageCapacity:
    """A CSIStorageCapacity; without `near` it applies to every node, unless `reachable` is false."""
    topology = LabelSelector(match_labels=near or {}) if reachable else None
    return CsiStorageCapacity(
        ObjectMeta(name=name, namespace="kube-system"), topology, storage_class, capacity, largest
    )


def make_attachment(name: str, node: str, volume: str | None, *, attacher: str = "csi.example.com") -> VolumeAttachment:
    return VolumeAttachment(ObjectMeta(name=name), VolumeAttachmentSpec(attacher, node, VolumeAttachmentSource(volume)))


def catalog(*objects: Any) -> Catalog:
    """A catalog of these objects."""
    return Catalog(objects)


def at_version(item: Any, version: str) -> Any:
    """The same object with a later resource version."""
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, resource_version=version))
