"""Volume decisions: assumptions, intents to write, and completion checks.

`assume_pod_volumes` and `revert_assumed_pod_volumes` are Reserve and Unreserve. PreBind submits the writes
(`SetVolumeClaimRef`, then `SetSelectedNode`) as intents. Each has the resourceVersion it was decided on, so a write
that lost a race fails instead of overwriting another one. `bindings_complete` is called repeatedly until the volume
controller and the provisioner are done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.storage import ClaimReference, CsiNode, PersistentVolume, PersistentVolumeClaim
from bayplan.volumes.assumptions import VolumeAssumptions
from bayplan.volumes.binding import BoundVolume, PodVolumes, StaticVolumeBinding
from bayplan.volumes.claims import SELECTED_NODE, fully_bound
from bayplan.volumes.csi import migrated_on
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.volume_matcher import is_reserved_for

BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
T = TypeVar("T", bound=KubeObject)


def assume_pod_volumes(info: PodVolumes, node_name: str, assumptions: VolumeAssumptions) -> PodVolumes:
    """Assume the decision; returns it with the objects to write.

    Raises if an object has changed since the decision; then nothing stays assumed.
    """
    bindings: list[StaticVolumeBinding] = []
    provisions: list[PersistentVolumeClaim] = []
    try:
        for binding in info.bindings:
            volume = with_claim_ref(binding.volume, binding.claim)
            if volume is not binding.volume:
                assumptions.volumes.assume(volume)
            bindings.append(StaticVolumeBinding(binding.claim, volume))
        for claim in info.provisions:
            chosen = _set_annotation(claim, SELECTED_NODE, node_name)
            assumptions.claims.assume(chosen)
            provisions.append(chosen)
    except VolumeError:
        revert_assumed_pod_volumes(PodVolumes(tuple(bindings), tuple(provisions)), assumptions)
        raise
    return PodVolumes(tuple(bindings), tuple(provisions))


def revert_assumed_pod_volumes(info: PodVolumes, assumptions: VolumeAssumptions) -> None:
    """Revert the assumptions, unless the API server has newer versions."""
    for binding in info.bindings:
        assumptions.volumes.restore(binding.volume)
    for claim in info.provisions:
        assumptions.claims.restore(claim)


def with_claim_ref(volume: PersistentVolume, claim: PersistentVolumeClaim) -> PersistentVolume:
    """The volume reserved for this claim; unchanged if it is reserved already."""
    meta = claim.metadata
    ref = volume.spec.claim_ref
    bound = volume
    if ref is None or (ref.name, ref.namespace, ref.uid) != (meta.name, meta.namespace, meta.uid):
        new = ClaimReference("PersistentVolumeClaim", meta.namespace, meta.name, meta.uid, "v1", meta.resource_version)
        bound = msgspec.structs.replace(volume, spec=msgspec.structs.replace(volume.spec, claim_ref=new))
    # A volume that a user reserved for the claim keeps this mark, so that the controller does not treat it as its own.
    if not is_reserved_for(volume, claim) and BOUND_BY_CONTROLLER not in volume.metadata.annotations:
        bound = _set_annotation(bound, BOUND_BY_CONTROLLER, "yes")
    return bound


def _set_annotation(item: T, key: str, value: str) -> T:
    annotations = {**item.metadata.annotations, key: value}
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, annotations=annotations))


# Writes.


@dataclass(frozen=True, slots=True)
class SetVolumeClaimRef:
    """Write the claimRef of a volume. Performing it returns the volume as the API server stores it."""

    volume: PersistentVolume

    def patch(self) -> dict[str, Any]:
        """A merge patch that fails if the volume has changed meanwhile."""
        ref = self.volume.spec.claim_ref
        patch = _patch_with_version(self.volume, BOUND_BY_CONTROLLER)
        patch["spec"] = {"claimRef": msgspec.to_builtins(ref)}
        return patch

    def is_done(self, volume: PersistentVolume) -> bool:
        wanted, ref = self.volume.spec.claim_ref, volume.spec.claim_ref
        return wanted is not None and ref is not None and ref.uid == wanted.uid


@dataclass(frozen=True, slots=True)
class SetSelectedNode:
    """Write the selected node of a claim. Performing it returns the resulting claim."""

    claim: PersistentVolumeClaim

    def patch(self) -> dict[str, Any]:
        """A merge patch that fails if the claim has changed meanwhile."""
        return _patch_with_version(self.claim, SELECTED_NODE)

    def is_done(self, claim: PersistentVolumeClaim) -> bool:
        wanted = self.claim.metadata.annotations.get(SELECTED_NODE)
        return claim.metadata.annotations.get(SELECTED_NODE) == wanted


@dataclass(frozen=True, slots=True)
class WaitForVolumes:
    """Call `done` every `every_s` seconds, the first time after one interval, until it is true.

    Performing it raises what `done` raises, `TimeoutError` after `timeout_s`, and `pod_deleted_error(pod)` once the API
    server has no such pod any more.
    """

    pod: Pod
    done: Callable[[], bool]
    timeout_s: float
    every_s: float = 1.0


def pod_deleted_error(pod: Pod) -> VolumeError:
    """The error for a pod that was deleted during the wait."""
    return VolumeError(f'pod does not exist any more: pod "{pod.name}" not found')


def _patch_with_version(item: KubeObject, annotation: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"resourceVersion": item.metadata.resource_version}
    if annotation in item.metadata.annotations:
        metadata["annotations"] = {annotation: item.metadata.annotations[annotation]}
    return {"metadata": metadata}


# Waiting.


def bindings_complete(
    info: PodVolumes, node_name: str, node: Node | None, csi_node: CsiNode | None, assumptions: VolumeAssumptions
) -> bool:
    """Whether all writes have taken effect. Raises if one never will, so that the pod is retried.

    `info` has the objects as the writes returned them. It checks stored objects, not assumed ones: another attempt may
    have assumed something in the meantime.
    """
    if node is None:
        raise VolumeError(f'failed to get node "{node_name}": node "{node_name}" not found')
    check = _BindingCheck(node, csi_node, assumptions)
    return all(check.bound(binding) for binding in info.bindings) and all(
        check.provisioned(claim) for claim in info.provisions
    )


class _BindingCheck:
    """One check of the controllers' progress."""

    def __init__(self, node: Node, csi_node: CsiNode | None, assumptions: VolumeAssumptions) -> None:
        self._node = node
        self._migrated = migrated_on(csi_node)
        self._assumptions = assumptions

    def bound(self, binding: StaticVolumeBinding) -> bool:
        try:
            volume = self._assumptions.volumes.get_stored(binding.volume.key)
            claim = self._assumptions.claims.get_stored(binding.claim.key)
        except VolumeError as fault:
            raise VolumeError(f"failed to check binding: {fault}") from None
        if _older(volume, binding.volume):
            return False  # the watch has not shown the write yet
        self._require_reachable(volume, "failed to translate pv to csi: ")
        if volume.spec.claim_ref is None or not volume.spec.claim_ref.uid:
            raise VolumeError(f'ClaimRef got reset for pv "{volume.name}"')
        if claim.spec.volume_name not in ("", volume.name):  # a late write of an earlier attempt
            raise VolumeError(f'PVC "{claim.name}" got bound to pv "{claim.spec.volume_name}", not to "{volume.name}"')
        return fully_bound(claim)

    def provisioned(self, written: PersistentVolumeClaim) -> bool:
        try:
            claim = self._assumptions.claims.get_stored(written.key)
        except VolumeError as fault:
            raise VolumeError(f"failed to check provisioning pvc: {fault}") from None
        if _older(claim, written):
            return False
        self._require_selected_node(claim)
        if claim.spec.volume_name:
            volume = self._assumptions.volumes.find_stored(claim.spec.volume_name)
            if volume is None:
                return False  # the claim's event came first, or the volume was deleted and the claim will change
            self._require_reachable(volume, "")
        return fully_bound(claim)

    def _require_selected_node(self, claim: PersistentVolumeClaim) -> None:
        if not claim.metadata.annotations:
            raise VolumeError(f'selectedNode annotation reset for PVC "{claim.name}"')
        if claim.metadata.annotations.get(SELECTED_NODE) != self._node.name:
            # the provisioner removes it to report this
            raise VolumeError(f'provisioning failed for PVC "{claim.name}"')

    def _require_reachable(self, volume: PersistentVolume, prefix: str) -> None:
        try:
            fits = BoundVolume(volume).reachable(self._node.labels, self._migrated)
        except VolumeError as fault:
            raise VolumeError(f"{prefix}{fault}") from None
        if not fits:
            raise VolumeError(
                f'pv "{volume.name}" node affinity doesn\'t match node "{self._node.name}": '
                "no matching NodeSelectorTerms"
            )


def _older(stored: KubeObject, written: KubeObject) -> bool:
    return _number(stored) < _number(written)


def _number(item: KubeObject) -> int:
    version = item.metadata.resource_version
    return int(version) if version.isdecimal() else 0
