"""How a decision about volumes becomes true: first in memory, then in writes, then when the controller has followed.

`assume` and `revert` are Reserve and Unreserve. The writes of PreBind (`PromiseVolume`, then `SelectNode`) are intents
that somebody else performs; each carries the resourceVersion it was decided on, so a write that lost a race fails
instead of undoing another's. `bindings_complete` is asked again and again until the volume controller and the
provisioner are done.
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
from bayplan.volumes.binding import BindingInfo, BoundVolume, StaticBinding
from bayplan.volumes.claims import SELECTED_NODE, fully_bound
from bayplan.volumes.csi import migrated_on
from bayplan.volumes.faults import VolumeError
from bayplan.volumes.matching import is_promised

BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
T = TypeVar("T", bound=KubeObject)


def assume(info: BindingInfo, node_name: str, assumptions: VolumeAssumptions) -> BindingInfo:
    """Take the decision for done in memory; returns it with the objects as they are to be written.

    Raises, with nothing left assumed, where an object has changed since the decision.
    """
    bindings: list[StaticBinding] = []
    provisions: list[PersistentVolumeClaim] = []
    try:
        for binding in info.bindings:
            volume = promised_to(binding.volume, binding.claim)
            if volume is not binding.volume:
                assumptions.volumes.assume(volume)
            bindings.append(StaticBinding(binding.claim, volume))
        for claim in info.provisions:
            chosen = _annotated(claim, SELECTED_NODE, node_name)
            assumptions.claims.assume(chosen)
            provisions.append(chosen)
    except VolumeError:
        revert(BindingInfo(tuple(bindings), tuple(provisions)), assumptions)
        raise
    return BindingInfo(tuple(bindings), tuple(provisions))


def revert(info: BindingInfo, assumptions: VolumeAssumptions) -> None:
    """Take back what was assumed, unless the API server has moved on since."""
    for binding in info.bindings:
        assumptions.volumes.restore(binding.volume)
    for claim in info.provisions:
        assumptions.claims.restore(claim)


def promised_to(volume: PersistentVolume, claim: PersistentVolumeClaim) -> PersistentVolume:
    """The volume set aside for this claim; itself where it is already."""
    meta = claim.metadata
    ref = volume.spec.claim_ref
    bound = volume
    if ref is None or (ref.name, ref.namespace, ref.uid) != (meta.name, meta.namespace, meta.uid):
        new = ClaimReference("PersistentVolumeClaim", meta.namespace, meta.name, meta.uid, "v1", meta.resource_version)
        bound = msgspec.structs.replace(volume, spec=msgspec.structs.replace(volume.spec, claim_ref=new))
    # A volume that a person promised to the claim keeps looking so: the controller must not think it did that.
    if not is_promised(volume, claim) and BOUND_BY_CONTROLLER not in volume.metadata.annotations:
        bound = _annotated(bound, BOUND_BY_CONTROLLER, "yes")
    return bound


def _annotated(item: T, key: str, value: str) -> T:
    annotations = {**item.metadata.annotations, key: value}
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, annotations=annotations))


# writing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PromiseVolume:
    """Write to a volume which claim it is for. Performing it returns the volume as the API server then has it."""

    volume: PersistentVolume

    def patch(self) -> dict[str, Any]:
        """A merge patch that fails where the volume has changed meanwhile."""
        ref = self.volume.spec.claim_ref
        patch = _guarded(self.volume, BOUND_BY_CONTROLLER)
        patch["spec"] = {"claimRef": msgspec.to_builtins(ref)}
        return patch

    def is_done(self, volume: PersistentVolume) -> bool:
        wanted, ref = self.volume.spec.claim_ref, volume.spec.claim_ref
        return wanted is not None and ref is not None and ref.uid == wanted.uid


@dataclass(frozen=True, slots=True)
class SelectNode:
    """Write to a claim for which node its volume is to be made. Performing it returns the claim as it then is."""

    claim: PersistentVolumeClaim

    def patch(self) -> dict[str, Any]:
        """A merge patch that fails where the claim has changed meanwhile."""
        return _guarded(self.claim, SELECTED_NODE)

    def is_done(self, claim: PersistentVolumeClaim) -> bool:
        wanted = self.claim.metadata.annotations.get(SELECTED_NODE)
        return claim.metadata.annotations.get(SELECTED_NODE) == wanted


@dataclass(frozen=True, slots=True)
class AwaitVolumes:
    """Ask `done` every `every_s` seconds, the first time after one interval, until it is true.

    Performing it raises what `done` raises, `TimeoutError` after `timeout_s`, and `pod_gone(pod)` once the API server
    has no such pod any more.
    """

    pod: Pod
    done: Callable[[], bool]
    timeout_s: float
    every_s: float = 1.0


def pod_gone(pod: Pod) -> VolumeError:
    """Why waiting is over for a pod that was deleted."""
    return VolumeError(f'pod does not exist any more: pod "{pod.name}" not found')


def _guarded(item: KubeObject, annotation: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"resourceVersion": item.metadata.resource_version}
    if annotation in item.metadata.annotations:
        metadata["annotations"] = {annotation: item.metadata.annotations[annotation]}
    return {"metadata": metadata}


# waiting ----------------------------------------------------------------------------------------------------------


def bindings_complete(
    info: BindingInfo, node_name: str, node: Node | None, csi_node: CsiNode | None, assumptions: VolumeAssumptions
) -> bool:
    """Whether everything that was written has come true. Raises where it never will, so that the pod is tried again.

    `info` holds the objects as the writes returned them. Looks at what is stored, not at what is assumed: another
    attempt may have assumed something in the meantime.
    """
    if node is None:
        raise VolumeError(f'failed to get node "{node_name}": node "{node_name}" not found')
    check = _Check(node, csi_node, assumptions)
    return all(check.bound(binding) for binding in info.bindings) and all(
        check.provisioned(claim) for claim in info.provisions
    )


class _Check:
    """One look at what the controller has done so far."""

    def __init__(self, node: Node, csi_node: CsiNode | None, assumptions: VolumeAssumptions) -> None:
        self._node = node
        self._migrated = migrated_on(csi_node)
        self._assumptions = assumptions

    def bound(self, binding: StaticBinding) -> bool:
        try:
            volume = self._assumptions.volumes.stored(binding.volume.key)
            claim = self._assumptions.claims.stored(binding.claim.key)
        except VolumeError as fault:
            raise VolumeError(f"failed to check binding: {fault}") from None
        if _older(volume, binding.volume):
            return False  # our own write has not come back yet
        self._demand_reachable(volume, "failed to translate pv to csi: ")
        if volume.spec.claim_ref is None or not volume.spec.claim_ref.uid:
            raise VolumeError(f'ClaimRef got reset for pv "{volume.name}"')
        if claim.spec.volume_name not in ("", volume.name):  # a late write of an earlier attempt
            raise VolumeError(f'PVC "{claim.name}" got bound to pv "{claim.spec.volume_name}", not to "{volume.name}"')
        return fully_bound(claim)

    def provisioned(self, written: PersistentVolumeClaim) -> bool:
        try:
            claim = self._assumptions.claims.stored(written.key)
        except VolumeError as fault:
            raise VolumeError(f"failed to check provisioning pvc: {fault}") from None
        if _older(claim, written):
            return False
        self._demand_selected(claim)
        if claim.spec.volume_name:
            volume = self._assumptions.volumes.find_stored(claim.spec.volume_name)
            if volume is None:
                return False  # the claim's event came first, or the volume is gone and the claim will be told
            self._demand_reachable(volume, "")
        return fully_bound(claim)

    def _demand_selected(self, claim: PersistentVolumeClaim) -> None:
        if not claim.metadata.annotations:
            raise VolumeError(f'selectedNode annotation reset for PVC "{claim.name}"')
        if claim.metadata.annotations.get(SELECTED_NODE) != self._node.name:
            raise VolumeError(f'provisioning failed for PVC "{claim.name}"')  # the provisioner takes it off to say so

    def _demand_reachable(self, volume: PersistentVolume, prefix: str) -> None:
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
