"""Volumes in pod specs. A source that no decision depends on decodes to a volume without a source."""

from __future__ import annotations

import msgspec

from bayplan.objects.meta import Api, KubeObject, LabelSelector, ObjectMeta, ResourceList


class GcePersistentDisk(Api, frozen=True):
    pd_name: str = ""
    read_only: bool = False


class AwsElasticBlockStore(Api, frozen=True):
    volume_id: str = msgspec.field(default="", name="volumeID")
    read_only: bool = False


class RbdVolume(Api, frozen=True):
    monitors: tuple[str, ...] = ()
    image: str = ""
    pool: str = ""
    read_only: bool = False


class IscsiVolume(Api, frozen=True):
    target_portal: str = ""
    iqn: str = ""
    lun: int = 0
    read_only: bool = False


class AzureDisk(Api, frozen=True):
    disk_name: str = ""
    disk_uri: str = msgspec.field(default="", name="diskURI")
    kind: str | None = None


class AzureFile(Api, frozen=True):
    share_name: str = ""


class VsphereVolume(Api, frozen=True):
    volume_path: str = ""


class CinderVolume(Api, frozen=True):
    volume_id: str = msgspec.field(default="", name="volumeID")


class PortworxVolume(Api, frozen=True):
    volume_id: str = msgspec.field(default="", name="volumeID")


class InlineCsiVolume(Api, frozen=True):
    driver: str = ""


class PersistentVolumeClaimVolume(Api, frozen=True):
    claim_name: str = ""
    read_only: bool = False


class ImageVolume(Api, frozen=True):
    reference: str = ""


class VolumeResources(Api, frozen=True):
    requests: ResourceList = {}
    limits: ResourceList = {}


class PersistentVolumeClaimSpec(Api, frozen=True):
    access_modes: tuple[str, ...] = ()
    storage_class_name: str | None = None
    volume_name: str = ""
    volume_mode: str | None = None
    resources: VolumeResources = VolumeResources()
    selector: LabelSelector | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaimTemplate(Api, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class EphemeralVolume(Api, frozen=True):
    volume_claim_template: PersistentVolumeClaimTemplate | None = None


class PersistentVolumeClaimStatus(Api, frozen=True):
    phase: str = ""


class PersistentVolumeClaim(KubeObject, frozen=True):
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class Volume(Api, frozen=True):
    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimVolume | None = None
    ephemeral: EphemeralVolume | None = None
    csi: InlineCsiVolume | None = None
    image: ImageVolume | None = None
    gce_persistent_disk: GcePersistentDisk | None = None
    aws_elastic_block_store: AwsElasticBlockStore | None = None
    rbd: RbdVolume | None = None
    iscsi: IscsiVolume | None = None
    azure_disk: AzureDisk | None = None
    azure_file: AzureFile | None = None
    cinder: CinderVolume | None = None
    portworx_volume: PortworxVolume | None = None
    vsphere_volume: VsphereVolume | None = None
