"""Which claims does a pod stand on, and is any of them a reason to refuse it before a node is looked at?

Asked once an attempt by VolumeBinding, and in parts by its sisters and by queueing hints. Cost: one lookup a volume.
Only claims named by `persistentVolumeClaim` and those of generic ephemeral volumes (`<pod>-<volume>`) count.
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
    """A volume of a pod that stands on a claim."""

    name: str
    ephemeral: bool


class ClaimReader(Protocol):
    """Claims with what is assumed about them."""

    def get(self, key: str) -> PersistentVolumeClaim | None: ...


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims of one pod by what has to happen to them, each list in the order of the pod's volumes."""

    bound: tuple[PersistentVolumeClaim, ...] = ()
    delayed: tuple[PersistentVolumeClaim, ...] = ()  # unbound, to be bound or provisioned for the chosen node
    immediate: tuple[PersistentVolumeClaim, ...] = ()  # unbound, and somebody else's to bind


def claim_uses(pod: Pod) -> Iterator[ClaimUse]:
    """The claims that a pod's volumes name, in order; a claim named twice comes twice."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield ClaimUse(volume.persistent_volume_claim.claim_name, ephemeral=False)
        elif volume.ephemeral is not None:
            yield ClaimUse(f"{pod.name}-{volume.name}", ephemeral=True)


def named_claims(pod: Pod) -> Iterator[str]:
    """The names in `persistentVolumeClaim` volumes alone."""
    return (use.name for use in claim_uses(pod) if not use.ephemeral)


class ClaimNames(NamedTuple):
    """Claims of one namespace, by name."""

    namespace: str
    names: frozenset[str]

    def include(self, claim: PersistentVolumeClaim) -> bool:
        return claim.namespace == self.namespace and claim.name in self.names


def used_claims(pod: Pod) -> ClaimNames:
    """The claims that the pod's volumes stand on, those of ephemeral ones included."""
    return ClaimNames(pod.namespace, frozenset(use.name for use in claim_uses(pod)))


def claims_by_name(pod: Pod) -> ClaimNames:
    """The claims that the pod's volumes name outright."""
    return ClaimNames(pod.namespace, frozenset(named_claims(pod)))


def storage_class_of_claim(claim: PersistentVolumeClaim) -> str:
    """The storage class by name; the annotation counts first, even an empty one."""
    annotated = claim.metadata.annotations.get(CLASS_ANNOTATION)
    return annotated if annotated is not None else claim.spec.storage_class_name or ""


def storage_class_of_volume(volume: PersistentVolume) -> str:
    """The storage class by name; the annotation counts first, even an empty one."""
    annotated = volume.metadata.annotations.get(CLASS_ANNOTATION)
    return annotated if annotated is not None else volume.spec.storage_class_name


def fully_bound(claim: PersistentVolumeClaim) -> bool:
    """Bound, and the controller has said that it is done with it."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def ownership_error(pod: Pod, claim: PersistentVolumeClaim) -> str | None:
    """What is wrong where an ephemeral volume's claim was made by somebody else for something else."""
    owner = claim.metadata.controller
    if claim.namespace == pod.namespace and owner is not None and owner.uid == pod.uid:
        return None
    return f"PVC {claim.namespace}/{claim.name} was not created for pod {pod.namespace}/{pod.name} (pod is not owner)"


def waits_for_consumer(storage_class: StorageClass) -> bool:
    """Whether claims of this class wait for a pod; raises where the class does not say."""
    if storage_class.volume_binding_mode is None:
        raise VolumeError(binding_mode_missing(storage_class.name))
    return storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER


def claims_error(pod: Pod, lookup: VolumeLookup) -> str | None:
    """Why a pod cannot be placed anywhere as its claims are now; None where they do not stand in the way."""
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
    """The claims of a pod that `claims_error` let through. Raises where a class does not say when it binds."""
    bound: list[PersistentVolumeClaim] = []
    delayed: list[PersistentVolumeClaim] = []
    immediate: list[PersistentVolumeClaim] = []
    for claim in _claims_of(pod, claims):
        if fully_bound(claim):
            bound.append(claim)
        elif _is_delayed(claim, lookup) and not claim.spec.volume_name:
            delayed.append(claim)
        else:  # also a claim that names its volume but is not bound to it yet: the controller is about to
            immediate.append(claim)
    return PodClaims(tuple(bound), tuple(delayed), tuple(immediate))


def all_bound(pod: Pod, claims: ClaimReader) -> bool:
    """Whether nothing is left to bind for this pod."""
    return all(claim is not None and fully_bound(claim) for claim in _found(pod, claims))


def _claims_of(pod: Pod, claims: ClaimReader) -> Iterator[PersistentVolumeClaim]:
    for use in claim_uses(pod):
        key = claim_key(pod.namespace, use.name)
        claim = claims.get(key)
        if claim is None:
            raise VolumeError(f'error getting PVC "{key}": persistentvolumeclaims "{key}" not found')
        if use.ephemeral and (reason := ownership_error(pod, claim)) is not None:
            raise VolumeError(reason)
        yield claim


def _found(pod: Pod, claims: ClaimReader) -> Iterator[PersistentVolumeClaim | None]:
    for use in claim_uses(pod):
        claim = claims.get(claim_key(pod.namespace, use.name))
        if claim is not None and use.ephemeral and ownership_error(pod, claim) is not None:
            claim = None
        yield claim


def _is_delayed(claim: PersistentVolumeClaim, lookup: VolumeLookup) -> bool:
    storage_class = lookup.storage_classes.get(storage_class_of_claim(claim))
    return storage_class is not None and waits_for_consumer(storage_class)
