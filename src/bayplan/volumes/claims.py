"""Claims of a pod, and claim problems that reject it on all nodes.

VolumeBinding calls it once per attempt; other volume plugins and queueing hints use parts of it. Cost: one lookup per
volume. Only claims named by `persistentVolumeClaim` and those of generic ephemeral volumes (`<pod>-<volume>`) count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bayplan.objects.core import Pod
from bayplan.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from bayplan.volumes.errors import VolumeError, binding_mode_missing, claim_not_found
from bayplan.volumes.lookup import VolumeLookup, claim_key

CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"


class ClaimUse(NamedTuple):
    """A volume of a pod that uses a claim."""

    name: str
    ephemeral: bool


class ClaimReader(Protocol):
    """Claims with their assumed state."""

    def get(self, key: str) -> PersistentVolumeClaim | None: ...


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims of one pod by state, each list in the order of the pod's volumes."""

    bound: tuple[PersistentVolumeClaim, ...] = ()
    delayed: tuple[PersistentVolumeClaim, ...] = ()  # unbound, to be bound or provisioned for the chosen node
    immediate: tuple[PersistentVolumeClaim, ...] = ()  # unbound; the volume controller binds it without a pod


def claim_uses(pod: Pod) -> Iterator[ClaimUse]:
    """The claims of a pod's volumes, in order; a claim named twice comes twice."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield ClaimUse(volume.persistent_volume_claim.claim_name, ephemeral=False)
        elif volume.ephemeral is not None:
            yield ClaimUse(f"{pod.name}-{volume.name}", ephemeral=True)


def named_claims(pod: Pod) -> Iterator[str]:
    """The names in `persistentVolumeClaim` volumes only."""
    return (use.name for use in claim_uses(pod) if not use.ephemeral)


class ClaimNames(NamedTuple):
    """Claims of one namespace, by name."""

    namespace: str
    names: frozenset[str]

    def include(self, claim: PersistentVolumeClaim) -> bool:
        return claim.namespace == self.namespace and claim.name in self.names


def used_claims(pod: Pod) -> ClaimNames:
    """The claims of the pod's volumes, including those of ephemeral volumes."""
    return ClaimNames(pod.namespace, frozenset(use.name for use in claim_uses(pod)))


def claims_by_name(pod: Pod) -> ClaimNames:
    """The claims that the pod's volumes name directly."""
    return ClaimNames(pod.namespace, frozenset(named_claims(pod)))


def storage_class_of_claim(claim: PersistentVolumeClaim) -> str:
    """The storage class by name; the annotation takes precedence, even an empty one."""
    annotated = claim.metadata.annotations.get(CLASS_ANNOTATION)
    return annotated if annotated is not None else claim.spec.storage_class_name or ""


def storage_class_of_volume(volume: PersistentVolume) -> str:
    """The storage class by name; the annotation takes precedence, even an empty one."""
    annotated = volume.metadata.annotations.get(CLASS_ANNOTATION)
    return annotated if annotated is not None else volume.spec.storage_class_name


def fully_bound(claim: PersistentVolumeClaim) -> bool:
    """Whether the claim is bound and the controller has completed the binding."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def ownership_error(pod: Pod, claim: PersistentVolumeClaim) -> str | None:
    """The error if another object owns the claim of an ephemeral volume."""
    owner = claim.metadata.controller
    if claim.namespace == pod.namespace and owner is not None and owner.uid == pod.uid:
        return None
    return f"PVC {claim.namespace}/{claim.name} was not created for pod {pod.namespace}/{pod.name} (pod is not owner)"


def waits_for_consumer(storage_class: StorageClass) -> bool:
    """Whether claims of this class wait for a pod; raises if the class has no binding mode."""
    if storage_class.volume_binding_mode is None:
        raise VolumeError(binding_mode_missing(storage_class.name))
    return storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER


def claims_error(pod: Pod, lookup: VolumeLookup) -> str | None:
    """Why no node is possible with the pod's current claims; None if they are no obstacle."""
    return next((reason for use in claim_uses(pod) if (reason := _claim_error(pod, use, lookup)) is not None), None)


def _claim_error(pod: Pod, use: ClaimUse, lookup: VolumeLookup) -> str | None:
    claim = lookup.persistent_volume_claims.get(claim_key(pod.namespace, use.name))
    if claim is None:
        if use.ephemeral:
            return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{use.name}"'
        return claim_not_found(use.name)
    if claim.status.phase == "Lost":
        volume = claim.spec.volume_name
        return f'persistentvolumeclaim "{claim.name}" bound to non-existent persistentvolume "{volume}"'
    if claim.metadata.deletion_timestamp is not None:
        return f'persistentvolumeclaim "{claim.name}" is being deleted'
    return ownership_error(pod, claim) if use.ephemeral else None


def classify_claims(pod: Pod, claims: ClaimReader, lookup: VolumeLookup) -> PodClaims:
    """The claims of a pod without a `claims_error`. Raises if a class has no binding mode."""
    bound: list[PersistentVolumeClaim] = []
    delayed: list[PersistentVolumeClaim] = []
    immediate: list[PersistentVolumeClaim] = []
    for claim in _existing_claims(pod, claims):
        if fully_bound(claim):
            bound.append(claim)
        elif _is_delayed(claim, lookup) and not claim.spec.volume_name:
            delayed.append(claim)
        else:  # also a claim that names its volume but is not bound yet: the controller is about to bind it
            immediate.append(claim)
    return PodClaims(tuple(bound), tuple(delayed), tuple(immediate))


def all_bound(pod: Pod, claims: ClaimReader) -> bool:
    """Whether nothing is left to bind for this pod."""
    return all(claim is not None and fully_bound(claim) for claim in _owned_claims(pod, claims))


def _existing_claims(pod: Pod, claims: ClaimReader) -> Iterator[PersistentVolumeClaim]:
    for use in claim_uses(pod):
        key = claim_key(pod.namespace, use.name)
        claim = claims.get(key)
        if claim is None:
            raise VolumeError(f'error getting PVC "{key}": persistentvolumeclaims "{key}" not found')
        if use.ephemeral and (reason := ownership_error(pod, claim)) is not None:
            raise VolumeError(reason)
        yield claim


def _owned_claims(pod: Pod, claims: ClaimReader) -> Iterator[PersistentVolumeClaim | None]:
    for use in claim_uses(pod):
        claim = claims.get(claim_key(pod.namespace, use.name))
        if claim is not None and use.ephemeral and ownership_error(pod, claim) is not None:
            claim = None
        yield claim


def _is_delayed(claim: PersistentVolumeClaim, lookup: VolumeLookup) -> bool:
    storage_class = lookup.storage_classes.get(storage_class_of_claim(claim))
    return storage_class is not None and waits_for_consumer(storage_class)
