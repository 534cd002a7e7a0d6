"""Conflicts between disks of pods on one node.

VolumeRestrictions uses it for the few volume types that kube-scheduler checks itself. Cost: the pod's disks times the
volumes of the pods on one node; `has_conflicting_disk_type` excludes pods without such a disk (nearly all).
"""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.objects.core import Pod
from bayplan.objects.volumes import AwsElasticBlockStore, GcePersistentDisk, IscsiVolume, RbdVolume, Volume


def can_conflict(volume: Volume) -> bool:
    """Whether sharing this volume's disk can be a conflict."""
    return (
        volume.gce_persistent_disk is not None
        or volume.aws_elastic_block_store is not None
        or volume.rbd is not None
        or volume.iscsi is not None
    )


def has_conflicting_disk_type(pod: Pod) -> bool:
    return any(can_conflict(volume) for volume in pod.spec.volumes)


def conflicts_with(pod: Pod, other_pods: Iterable[Pod]) -> bool:
    """Whether some disk of `pod` may not be on a node together with the disks of `other_pods`."""
    guarded = [own for own in pod.spec.volumes if can_conflict(own)]
    return any(_conflict(own, volume) for other in other_pods for volume in other.spec.volumes for own in guarded)


def _conflict(a: Volume, b: Volume) -> bool:
    return (
        _same_gce(a.gce_persistent_disk, b.gce_persistent_disk)
        or _same_ebs(a.aws_elastic_block_store, b.aws_elastic_block_store)
        or _same_iscsi(a.iscsi, b.iscsi)
        or _same_rbd(a.rbd, b.rbd)
    )


def _same_gce(a: GcePersistentDisk | None, b: GcePersistentDisk | None) -> bool:
    return a is not None and b is not None and a.pd_name == b.pd_name and not (a.read_only and b.read_only)


def _same_ebs(a: AwsElasticBlockStore | None, b: AwsElasticBlockStore | None) -> bool:
    return a is not None and b is not None and a.volume_id == b.volume_id  # even if both are read-only


def _same_iscsi(a: IscsiVolume | None, b: IscsiVolume | None) -> bool:
    return a is not None and b is not None and a.iqn == b.iqn and not (a.read_only and b.read_only)


def _same_rbd(a: RbdVolume | None, b: RbdVolume | None) -> bool:
    if a is None or b is None or (a.read_only and b.read_only):
        return False
    return a.pool == b.pool and a.image == b.image and not set(a.monitors).isdisjoint(b.monitors)
