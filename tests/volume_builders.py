"""Claims, volumes, classes and CSI objects for tests. Everything has a default; a test names only what it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from bayplan.objects.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, PodStatus
from bayplan.objects.meta import LabelSelector, ObjectMeta, OwnerReference, QuantityText
from bayplan.objects.storage import (
    ClaimReference,
    CsiDriver,
    CsiDriverSpec,
    CsiNode,
    CsiNodeDriver,
    CsiNodeSpec,
    CsiStorageCapacity,
    CsiVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    PersistentVolumeStatus,
    StorageClass,
    TopologySelectorLabelRequirement,
    TopologySelectorTerm,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
    VolumeNodeAffinity,
    VolumeNodeResources,
)
from bayplan.objects.volumes import (
    EphemeralVolume,
    PersistentVolumeClaimStatus,
    PersistentVolumeClaimVolume,
    Volume,
    VolumeResources,
)
from bayplan.snapshot import Catalog
from bayplan.volumes.claims import BIND_COMPLETED
from bayplan.volumes.csi import MIGRATED_PLUGINS

GONE = datetime(2026, 1, 1, tzinfo=UTC)
ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"


def on_claim(name: str, volume: str = "data") -> Volume:
    """A volume that names a claim."""
    return Volume(name=volume, persistent_volume_claim=PersistentVolumeClaimVolume(name))


def ephemeral(volume: str = "scratch") -> Volume:
    """A generic ephemeral volume; its claim is `<pod>-<volume>`."""
    return Volume(name=volume, ephemeral=EphemeralVolume())


def volume_pod(
    *volumes: Volume, name: str = "pod", namespace: str = "default", node: str = "", nominated: str = ""
) -> Pod:
    """A pod that is about its volumes alone."""
    return Pod(
        ObjectMeta(name=name, namespace=namespace, uid=f"uid-{namespace}-{name}"),
        PodSpec(node_name=node, volumes=volumes),
        PodStatus(nominated_node_name=nominated),
    )


def owned_by(pod: Pod) -> tuple[OwnerReference, ...]:
    return (OwnerReference(kind="Pod", name=pod.name, uid=pod.uid, controller=True),)


def make_claim(
    name: str = "claim",
    *,
    namespace: str = "default",
    size: QuantityText | None = "1Gi",
    storage_class: str | None = "slow",
    volume: str = "",
    bound: bool | None = None,
    phase: str = "",
    modes: Sequence[str] = ("ReadWriteOnce",),
    annotations: Mapping[str, str] | None = None,
    owners: tuple[OwnerReference, ...] = (),
    deleted: bool = False,
    version: str = "1",
    uid: str | None = None,
    **spec: Any,
) -> PersistentVolumeClaim:
    """A claim; one that names a volume is bound to it unless `bound` says otherwise."""
    notes = dict(annotations or {})
    if bool(volume) if bound is None else bound:
        notes[BIND_COMPLETED] = "yes"
    return PersistentVolumeClaim(
        ObjectMeta(
            name=name,
            namespace=namespace,
            uid=f"uid-{namespace}-{name}" if uid is None else uid,
            resource_version=version,
            annotations=notes,
            owner_references=owners,
            deletion_timestamp=GONE if deleted else None,
        ),
        PersistentVolumeClaimSpec(
            access_modes=tuple(modes),
            storage_class_name=storage_class,
            volume_name=volume,
            resources=VolumeResources(requests={} if size is None else {"storage": size}),
            **spec,
        ),
        PersistentVolumeClaimStatus(phase=phase),
    )


def make_volume(
    name: str = "volume",
    *,
    size: QuantityText | None = "1Gi",
    storage_class: str = "slow",
    phase: str = "Available",
    modes: Sequence[str] = ("ReadWriteOnce",),
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    near: Mapping[str, Sequence[str]] | None = None,
    claim: ClaimReference | None = None,
    handle: str = "",
    driver: str = "csi.example.com",
    deleted: bool = False,
    version: str = "1",
    **spec: Any,
) -> PersistentVolume:
    """A volume; `near` is a node affinity of one term (label to values), `handle` makes it a CSI volume."""
    if near is not None:
        spec["node_affinity"] = affinity(near)
    return PersistentVolume(
        ObjectMeta(
            name=name,
            labels=labels or {},
            annotations=annotations or {},
            resource_version=version,
            deletion_timestamp=GONE if deleted else None,
        ),
        PersistentVolumeSpec(
            capacity={} if size is None else {"storage": size},
            access_modes=tuple(modes),
            storage_class_name=storage_class,
            claim_ref=claim,
            csi=CsiVolumeSource(driver, handle) if handle else None,
            **spec,
        ),
        PersistentVolumeStatus(phase=phase),
    )


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


def promise(claim: PersistentVolumeClaim, *, uid: str | None = None) -> ClaimReference:
    """A volume's reference to a claim."""
    return ClaimReference(
        kind="PersistentVolumeClaim",
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.metadata.uid if uid is None else uid,
    )


def make_class(
    name: str = "slow",
    *,
    provisioner: str = "csi.example.com",
    mode: str | None = "WaitForFirstConsumer",
    topologies: Sequence[Mapping[str, Sequence[str]]] = (),
) -> StorageClass:
    terms = tuple(
        TopologySelectorTerm(
            tuple(TopologySelectorLabelRequirement(key, tuple(values)) for key, values in term.items())
        )
        for term in topologies
    )
    return StorageClass(ObjectMeta(name=name), provisioner, mode, terms)


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


def make_pool(
    name: str = "pool",
    *,
    storage_class: str = "slow",
    near: dict[str, str] | None = None,
    capacity: QuantityText | None = None,
    largest: QuantityText | None = None,
    reachable: bool = True,
) -> CsiStorageCapacity:
    """A CSIStorageCapacity; without `near` every node reaches it, unless `reachable` is false."""
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
    """The same object as a later write left it."""
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, resource_version=version))
