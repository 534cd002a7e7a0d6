"""Persistent volumes and the storage.k8s.io group."""

from __future__ import annotations

from bayplan.codec.quantity import QuantityText
from bayplan.objects.core import NodeSelector
from bayplan.objects.meta import Api, KubeObject, LabelSelector, ResourceList
from bayplan.objects.volumes import (
    AwsElasticBlockStore,
    AzureDisk,
    CinderVolume,
    GcePersistentDisk,
    IscsiVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PortworxVolume,
    RbdVolume,
)


class ClaimReference(Api, frozen=True):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""


class CsiVolumeSource(Api, frozen=True):
    driver: str = ""
    volume_handle: str = ""
    read_only: bool = False


class VolumeNodeAffinity(Api, frozen=True):
    required: NodeSelector | None = None


class PersistentVolumeSpec(Api, frozen=True):
    capacity: ResourceList = {}
    access_modes: tuple[str, ...] = ()
    storage_class_name: str = ""
    volume_mode: str | None = None
    claim_ref: ClaimReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    volume_attributes_class_name: str | None = None
    csi: CsiVolumeSource | None = None
    gce_persistent_disk: GcePersistentDisk | None = None
    aws_elastic_block_store: AwsElasticBlockStore | None = None
    rbd: RbdVolume | None = None
    iscsi: IscsiVolume | None = None
    azure_disk: AzureDisk | None = None
    cinder: CinderVolume | None = None
    portworx_volume: PortworxVolume | None = None


class PersistentVolumeStatus(Api, frozen=True):
    phase: str = ""


class PersistentVolume(KubeObject, frozen=True):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class TopologySelectorLabelRequirement(Api, frozen=True):
    key: str = ""
    values: tuple[str, ...] = ()


class TopologySelectorTerm(Api, frozen=True):
    match_label_expressions: tuple[TopologySelectorLabelRequirement, ...] = ()


class StorageClass(KubeObject, frozen=True):
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()
    parameters: dict[str, str] = {}


class VolumeNodeResources(Api, frozen=True):
    count: int | None = None


class CsiNodeDriver(Api, frozen=True):
    name: str = ""
    node_id: str = ""
    topology_keys: tuple[str, ...] = ()
    allocatable: VolumeNodeResources | None = None


class CsiNodeSpec(Api, frozen=True):
    drivers: tuple[CsiNodeDriver, ...] = ()


class CsiNode(KubeObject, frozen=True):
    spec: CsiNodeSpec = CsiNodeSpec()


class CsiDriverSpec(Api, frozen=True):
    storage_capacity: bool | None = None
    attach_required: bool | None = None


class CsiDriver(KubeObject, frozen=True):
    spec: CsiDriverSpec = CsiDriverSpec()


class CsiStorageCapacity(KubeObject, frozen=True):
    node_topology: LabelSelector | None = None
    storage_class_name: str = ""
    capacity: QuantityText | None = None
    maximum_volume_size: QuantityText | None = None


class VolumeAttachmentSource(Api, frozen=True):
    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Api, frozen=True):
    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(KubeObject, frozen=True):
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


__all__ = [
    "ClaimReference",
    "CsiDriver",
    "CsiDriverSpec",
    "CsiNode",
    "CsiNodeDriver",
    "CsiNodeSpec",
    "CsiStorageCapacity",
    "CsiVolumeSource",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PersistentVolumeClaimSpec",
    "PersistentVolumeSpec",
    "PersistentVolumeStatus",
    "StorageClass",
    "TopologySelectorLabelRequirement",
    "TopologySelectorTerm",
    "VolumeAttachment",
    "VolumeAttachmentSource",
    "VolumeAttachmentSpec",
    "VolumeNodeAffinity",
    "VolumeNodeResources",
]
