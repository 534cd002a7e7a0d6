"""Counts the volumes that a node would have to attach, by driver.

NodeVolumeLimits calls it once for the pod, and for the pods and attachments of nodes whose limit may be reached. A
volume counts once for all pods that use it, so volumes are stored as `driver/handle -> driver`. Cost: a few lookups per
volume.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bayplan.objects.core import Pod
from bayplan.objects.storage import CsiNode, PersistentVolumeClaim, VolumeAttachment
from bayplan.objects.volumes import Volume
from bayplan.volumes.claims import ownership_error, storage_class_of_claim
from bayplan.volumes.csi import PLUGINS, csi_source, inline_handle, inline_plugin, volume_plugin
from bayplan.volumes.errors import VolumeError, claim_not_found
from bayplan.volumes.lookup import VolumeLookup, claim_key

Attached = dict[str, str]
"""Volumes by `driver/handle`, each with its driver."""

_UNPROVISIONED = "\0"  # no driver uses this handle, so a volume to be provisioned never equals an existing one


class AttachableVolume(NamedTuple):
    """A volume that may count against a node's attach limit, and the pod that uses it."""

    pod: Pod
    volume: Volume

    @property
    def may_raise(self) -> bool:
        """Whether counting it can fail, so that a node that has it must be checked even below its limit."""
        claim = self.volume.persistent_volume_claim
        return claim is None or not claim.claim_name


class MissingClaimError(VolumeError):
    """The pod names a claim that does not exist: a rejection, not an error."""


def is_attachable(volume: Volume) -> bool:
    """Whether a volume may count against a node's attach limit."""
    return (
        volume.persistent_volume_claim is not None or volume.ephemeral is not None or inline_plugin(volume) is not None
    )


def attach_limits(csi_node: CsiNode | None) -> dict[str, int]:
    """The attach limit of each driver on a node; a driver that is not listed has no limit."""
    if csi_node is None:
        return {}
    return {
        driver.name: driver.allocatable.count
        for driver in csi_node.spec.drivers
        if driver.allocatable is not None and driver.allocatable.count is not None
    }


def new_volumes(pod: Pod, lookup: VolumeLookup, *, migrated: bool) -> Attached:
    """The volumes that the pod needs.

    `migrated`: whether the node has a CSINode; only then in-tree volumes are translated. Raises `MissingClaimError` if
    a claim does not exist yet.
    """
    found: Attached = {}
    for volume in pod.spec.volumes:
        _count(pod, volume, lookup, found, migrated=migrated, new=True)
    return found


def attachable_volumes(pods: Iterable[Pod]) -> Iterator[AttachableVolume]:
    """The volumes of pods that may count against an attach limit, each with its pod."""
    for pod in pods:
        for volume in pod.spec.volumes:
            if is_attachable(volume):
                yield AttachableVolume(pod, volume)


def attached_volumes(volumes: Iterable[AttachableVolume], lookup: VolumeLookup) -> Attached:
    """The attached volumes of pods on a node with a CSINode; raises if a volume cannot be evaluated."""
    found: Attached = {}
    for pod, volume in volumes:
        _count(pod, volume, lookup, found, migrated=True, new=False)
    return found


def attachments_by_node(lookup: VolumeLookup) -> dict[str, list[VolumeAttachment]]:
    by_node: dict[str, list[VolumeAttachment]] = {}
    for attachment in lookup.volume_attachments.values():
        by_node.setdefault(attachment.spec.node_name, []).append(attachment)
    return by_node


def attached_objects(attachments: Iterable[VolumeAttachment], lookup: VolumeLookup) -> Attached:
    """The volumes in the attachments of a node, if they are known CSI volumes."""
    found: Attached = {}
    for attachment in attachments:
        attacher, name = attachment.spec.attacher, attachment.spec.source.persistent_volume_name
        volume = lookup.persistent_volumes.get(name) if name is not None else None
        if attacher and volume is not None and volume.spec.csi is not None:
            found[f"{attacher}/{volume.spec.csi.volume_handle}"] = attacher
    return found


def exceeds(new: Attached, limits: dict[str, int], by_pods: Attached, by_objects: Attached) -> bool:
    """Whether the new volumes exceed a limit together with the attached ones.

    A volume of an attachment object that the new pod uses, but no pod on the node, counts twice, as in kube-scheduler.
    """
    present: dict[str, int] = {}
    for driver in by_pods.values():
        present[driver] = present.get(driver, 0) + 1
    for name, driver in by_objects.items():
        if name not in by_pods:
            present[driver] = present.get(driver, 0) + 1
    wanted: dict[str, int] = {}
    for name, driver in new.items():
        if name not in by_pods:
            wanted[driver] = wanted.get(driver, 0) + 1
    return any(driver in limits and present.get(driver, 0) + count > limits[driver] for driver, count in wanted.items())


# Single volumes.


def _count(pod: Pod, volume: Volume, lookup: VolumeLookup, found: Attached, *, migrated: bool, new: bool) -> None:
    if volume.persistent_volume_claim is None and volume.ephemeral is None:
        driver_and_handle = _inline_volume(volume) if migrated else None
    else:
        claim = _claim(pod, volume, lookup, new=new)
        driver_and_handle = _claim_volume(claim, lookup, migrated=migrated) if claim is not None else None
    if driver_and_handle is not None:
        driver, handle = driver_and_handle
        found[f"{driver}/{handle}"] = driver


def _inline_volume(volume: Volume) -> tuple[str, str] | None:
    plugin = inline_plugin(volume)
    if plugin is None or not plugin.migrated:
        return None
    try:
        return plugin.driver, inline_handle(volume)
    except VolumeError as fault:
        raise VolumeError(f"converting volume({volume.name}) from inline to csi: {fault}") from None


def _claim(pod: Pod, volume: Volume, lookup: VolumeLookup, *, new: bool) -> PersistentVolumeClaim | None:
    named = volume.persistent_volume_claim
    name = named.claim_name if named is not None else f"{pod.name}-{volume.name}"
    if not name:
        raise VolumeError("PersistentVolumeClaim had no name")
    claim = lookup.persistent_volume_claims.get(claim_key(pod.namespace, name))
    if claim is None:
        if new:
            raise MissingClaimError(f"looking up PVC {pod.namespace}/{name}: {claim_not_found(name)}")
        return None  # it is unknown whether the volume is attached
    if named is None and (reason := ownership_error(pod, claim)) is not None:
        raise VolumeError(reason)
    return claim


def _claim_volume(claim: PersistentVolumeClaim, lookup: VolumeLookup, *, migrated: bool) -> tuple[str, str] | None:
    volume = lookup.persistent_volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
    if volume is None:
        return _unprovisioned_volume(claim, lookup, migrated=migrated)
    if volume.spec.csi is None and not (migrated and volume_plugin(volume) is not None):
        return None
    try:
        source = csi_source(volume)
    except VolumeError:
        return None
    if source is None or not source.driver or not source.volume_handle:
        return None
    return source.driver, source.volume_handle


def _unprovisioned_volume(
    claim: PersistentVolumeClaim, lookup: VolumeLookup, *, migrated: bool
) -> tuple[str, str] | None:
    storage_class = lookup.storage_classes.get(storage_class_of_claim(claim))
    if storage_class is None or not storage_class.provisioner:
        return None
    handle = f"{_UNPROVISIONED}-{claim.namespace}/{claim.name}"
    plugin = PLUGINS.get(storage_class.provisioner)
    if plugin is None:
        return storage_class.provisioner, handle
    return (plugin.driver, handle) if migrated and plugin.migrated else None
