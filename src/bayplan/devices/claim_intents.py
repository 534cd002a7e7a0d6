"""Intents to write device claims.

Pods share claims, so other writers change them as well. A patch contains the version of the claim it was built from and
fails if that has changed. `ReserveClaim` and `DeleteClaim` then build a new patch from the current claim, or raise
`ClaimChanged` if nothing is left to do. Patches are merge patches unless noted: Bayplan knows only some fields of a
claim and must not change the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from bayplan.devices.claims import FINALIZER, is_reserved_for
from bayplan.devices.errors import ClaimChanged
from bayplan.objects.core import ContainerExtendedResourceRequest, Pod, PodExtendedResourceClaimStatus
from bayplan.objects.resource import AllocationResult, ResourceClaim, ResourceClaimConsumer

_MAX_GENERATED_NAME = 63
"""The API server's length limit for generated names."""


@dataclass(frozen=True, slots=True)
class ReserveClaim:
    """Reserve a claim for a pod, and allocate it if `allocation` is given.

    Performing it: PATCH with `finalizer_patch` unless that is None, then PATCH the status with `status_patch`, each
    built from the claim of the previous response. After a conflict GET the claim and start again, five times in all.
    Returns the resulting claim; errors name the failed step (`describe`).
    """

    claim: ResourceClaim
    pod: Pod
    now: datetime
    allocation: AllocationResult | None = None

    def finalizer_patch(self, claim: ResourceClaim) -> dict[str, Any] | None:
        """The patch that adds the finalizer, so that a claim with devices is not deleted; None if it is not needed."""
        self._check(claim)
        if self.allocation is None or FINALIZER in claim.metadata.finalizers:
            return None
        return _patch_with_version(claim, finalizers=[*claim.metadata.finalizers, FINALIZER])

    def status_patch(self, claim: ResourceClaim) -> dict[str, Any]:
        self._check(claim)
        allocation = self.allocation or claim.status.allocation
        if allocation is None:
            raise ClaimChanged(f"claim {claim.key} got deallocated elsewhere in the meantime")
        if allocation.allocation_timestamp is None:
            allocation = msgspec.structs.replace(allocation, allocation_timestamp=self.now.replace(microsecond=0))
        consumer = ResourceClaimConsumer(resource="pods", name=self.pod.name, uid=self.pod.uid)
        other_pods = (user for user in claim.status.reserved_for if user.uid != self.pod.uid)
        status = {
            "allocation": msgspec.to_builtins(allocation),
            "reservedFor": msgspec.to_builtins((*other_pods, consumer)),
        }
        return {**_patch_with_version(claim), "status": status}

    def is_done(self, claim: ResourceClaim) -> bool:
        """Whether the claim is reserved for the pod, with the devices to allocate."""
        allocation = claim.status.allocation
        if allocation is None or not is_reserved_for(claim, self.pod):
            return False
        return self.allocation is None or allocation.devices == self.allocation.devices

    def describe(self, *, finalizer: bool = False) -> str:
        """The step, for the message of an error."""
        if finalizer:
            return f"add finalizer to claim {self.claim.key}"
        what = "add reservation" if self.allocation is None else "add allocation and reservation"
        return f"{what} to claim {self.claim.key}"

    def _check(self, claim: ResourceClaim) -> None:
        if claim.metadata.deletion_timestamp is not None:
            raise ClaimChanged(f"claim {claim.key} got deleted in the meantime")
        if self.allocation is not None and claim.status.allocation is not None:
            raise ClaimChanged(f"claim {claim.key} got allocated elsewhere in the meantime")


@dataclass(frozen=True, slots=True)
class CreateSpecialClaim:
    """Create the claim for a pod's extended resources.

    Performing it: POST `manifest` with a `suffix` chosen once, so that a retry creates no second claim; returns the
    claim.
    """

    claim: ResourceClaim
    pod: Pod

    def name(self, suffix: str) -> str:
        """The name as the API server would generate it from `generateName`: a long prefix is cut."""
        return f"{self._prefix[: _MAX_GENERATED_NAME - len(suffix)]}{suffix}"

    @property
    def _prefix(self) -> str:
        return f"{self.pod.name}-extended-resources-"

    def is_done(self, claim: ResourceClaim) -> bool:
        """Whether a claim of that name is the one to create."""
        return any(owner.uid == self.pod.uid for owner in claim.metadata.owner_references)

    def manifest(self, suffix: str) -> dict[str, Any]:
        meta = self.claim.metadata
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "namespace": meta.namespace,
                "name": self.name(suffix),
                "generateName": self._prefix,
                "annotations": meta.annotations,
                "ownerReferences": msgspec.to_builtins(meta.owner_references),
            },
            "spec": msgspec.to_builtins(self.claim.spec),
        }

    def describe(self) -> str:
        return f"create claim for extended resources {self.claim.metadata.namespace}/"


@dataclass(frozen=True, slots=True)
class RecordSpecialClaim:
    """Write the container mappings of the special claim for the kubelet.

    Performing it: PATCH the pod's status with `patch`.
    """

    pod: Pod
    claim_name: str
    mappings: tuple[ContainerExtendedResourceRequest, ...]

    def patch(self, pod: Pod) -> dict[str, Any]:
        """The patch for this version of the pod: applied late, it must not name the claim of an earlier attempt."""
        meta = {"uid": self.pod.uid, "resourceVersion": pod.metadata.resource_version}
        return {"metadata": meta, "status": {"extendedResourceClaimStatus": msgspec.to_builtins(self._status)}}

    def is_done(self, pod: Pod) -> bool:
        return pod.status.extended_resource_claim_status == self._status

    @property
    def _status(self) -> PodExtendedResourceClaimStatus:
        return PodExtendedResourceClaimStatus(resource_claim_name=self.claim_name, request_mappings=self.mappings)

    def describe(self) -> str:
        return f"update pod {self.pod.namespace}/{self.pod.name} ExtendedResourceClaimStatus"


@dataclass(frozen=True, slots=True)
class UnreserveClaim:
    """Remove a pod from the claim's `reservedFor`.

    Performing it: PATCH the status with `patch`, a strategic merge patch; after a conflict GET the claim and start
    again. The resourceVersion is a precondition: a patch that the API server applies late must not remove the
    reservation of a later attempt.
    """

    claim: ResourceClaim
    pod: Pod

    def patch(self, claim: ResourceClaim) -> dict[str, Any]:
        meta = {"uid": self.claim.metadata.uid, "resourceVersion": claim.metadata.resource_version}
        return {"metadata": meta, "status": {"reservedFor": [{"$patch": "delete", "uid": self.pod.uid}]}}

    def is_done(self, claim: ResourceClaim) -> bool:
        return not is_reserved_for(claim, self.pod)


@dataclass(frozen=True, slots=True)
class DeallocateClaim:
    """Deallocate a claim. Performing it: PATCH the status with `patch`."""

    claim: ResourceClaim

    def patch(self) -> dict[str, Any]:
        return {**_patch_with_version(self.claim), "status": {"allocation": None, "reservedFor": None, "devices": None}}

    def is_done(self, claim: ResourceClaim) -> bool:
        return claim.status.allocation is None


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    """Delete a claim that the scheduler has created.

    Performing it: PATCH with `finalizer_patch` unless that is None, built again after a conflict; then DELETE.
    """

    claim: ResourceClaim

    def finalizer_patch(self, claim: ResourceClaim) -> dict[str, Any] | None:
        if FINALIZER not in claim.metadata.finalizers:
            return None
        return _patch_with_version(claim, finalizers=[name for name in claim.metadata.finalizers if name != FINALIZER])


@dataclass(frozen=True, slots=True)
class WaitForDevices:
    """Wait until the devices of a pod are ready.

    Performing it: record the event (Normal, `reason`, `action`, `note`) for the pod, then call `done` at once and every
    `every_s` seconds until it is true. Raises what `done` raises, and `TimeoutError` after `timeout_s`.
    """

    pod: Pod
    note: str
    done: Callable[[], bool]
    timeout_s: float
    every_s: float = 5.0
    reason: str = "BindingConditionsPending"
    action: str = "Scheduling"
    drivers: tuple[str, ...] = ()
    """The driver of each device that the pod waits for."""


def _patch_with_version(claim: ResourceClaim, **metadata: Any) -> dict[str, Any]:
    """The start of a patch that fails if the claim has changed meanwhile."""
    return {"metadata": {"resourceVersion": claim.metadata.resource_version, **metadata}}
