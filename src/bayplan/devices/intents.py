"""What has to be written for devices, as intents: decided here, performed elsewhere.

Claims are shared, so others write to them as well. A patch carries the version of the claim it was made from and
fails where that has passed; `ReserveClaim` and `DeleteClaim` then make a new patch from the claim as it is now, or
raise `ClaimChanged` where there is nothing left to do. Patches are merge patches unless they say otherwise: we know
only some fields of a claim and must not put back the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from bayplan.devices.claims import FINALIZER
from bayplan.devices.faults import ClaimChanged
from bayplan.objects.core import ContainerExtendedResourceRequest, Pod, PodExtendedResourceClaimStatus
from bayplan.objects.resource import AllocationResult, ResourceClaim, ResourceClaimConsumer


@dataclass(frozen=True, slots=True)
class ReserveClaim:
    """Reserve a claim for a pod, and allocate it if `allocation` is given.

    Performing it: PATCH with `finalizer_patch` unless that is None, then PATCH the status with `status_patch`, each
    made from the claim as the step before returned it. After a conflict GET the claim and begin again, five times in
    all. Returns the claim as it then is; failures say what was being done (`describe`).
    """

    claim: ResourceClaim
    pod: Pod
    now: datetime
    allocation: AllocationResult | None = None

    def finalizer_patch(self, claim: ResourceClaim) -> dict[str, Any] | None:
        """A claim that holds devices must not vanish unnoticed; None where that is ensured, or nothing is allocated."""
        self._check(claim)
        if self.allocation is None or FINALIZER in claim.metadata.finalizers:
            return None
        return _guarded(claim, finalizers=[*claim.metadata.finalizers, FINALIZER])

    def status_patch(self, claim: ResourceClaim) -> dict[str, Any]:
        self._check(claim)
        allocation = self.allocation or claim.status.allocation
        if allocation is None:
            raise ClaimChanged(f"claim {claim.key} got deallocated elsewhere in the meantime")
        if allocation.allocation_timestamp is None:
            allocation = msgspec.structs.replace(allocation, allocation_timestamp=self.now.replace(microsecond=0))
        consumer = ResourceClaimConsumer(resource="pods", name=self.pod.name, uid=self.pod.uid)
        status = {
            "allocation": msgspec.to_builtins(allocation),
            "reservedFor": msgspec.to_builtins((*claim.status.reserved_for, consumer)),
        }
        return {**_guarded(claim), "status": status}

    def describe(self, *, finalizer: bool = False) -> str:
        """What is being done, for the message of a failure."""
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
    """Create the claim for a pod's extended resources. Performing it: POST `manifest`; returns the claim."""

    claim: ResourceClaim
    pod: Pod

    def manifest(self) -> dict[str, Any]:
        meta = self.claim.metadata
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "namespace": meta.namespace,
                "generateName": f"{self.pod.name}-extended-resources-",
                "annotations": meta.annotations,
                "ownerReferences": msgspec.to_builtins(meta.owner_references),
            },
            "spec": msgspec.to_builtins(self.claim.spec),
        }

    def describe(self) -> str:
        return f"create claim for extended resources {self.claim.metadata.namespace}/"


@dataclass(frozen=True, slots=True)
class RecordSpecialClaim:
    """Tell the kubelet which container uses which request of the special claim. Performing it: PATCH the pod's status
    with `patch`."""

    pod: Pod
    claim_name: str
    mappings: tuple[ContainerExtendedResourceRequest, ...]

    def patch(self) -> dict[str, Any]:
        status = PodExtendedResourceClaimStatus(resource_claim_name=self.claim_name, request_mappings=self.mappings)
        return {"status": {"extendedResourceClaimStatus": msgspec.to_builtins(status)}}

    def describe(self) -> str:
        return f"update pod {self.pod.namespace}/{self.pod.name} ExtendedResourceClaimStatus"


@dataclass(frozen=True, slots=True)
class UnreserveClaim:
    """Take a pod off the list of those that may use a claim. Performing it: PATCH the status with `patch`, which is a
    strategic merge patch, so that it does not matter who else is on the list. Nobody waits for it."""

    claim: ResourceClaim
    pod: Pod

    def patch(self) -> dict[str, Any]:
        entry = {"$patch": "delete", "uid": self.pod.uid}
        return {"metadata": {"uid": self.claim.metadata.uid}, "status": {"reservedFor": [entry]}}


@dataclass(frozen=True, slots=True)
class DeallocateClaim:
    """Give the devices of a claim back. Performing it: PATCH the status with `patch`."""

    claim: ResourceClaim

    def patch(self) -> dict[str, Any]:
        return {**_guarded(self.claim), "status": {"allocation": None, "reservedFor": None, "devices": None}}


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    """Delete a claim that we have made. Performing it: PATCH with `finalizer_patch` unless that is None, made anew
    after a conflict; then DELETE."""

    claim: ResourceClaim

    def finalizer_patch(self, claim: ResourceClaim) -> dict[str, Any] | None:
        if FINALIZER not in claim.metadata.finalizers:
            return None
        return _guarded(claim, finalizers=[name for name in claim.metadata.finalizers if name != FINALIZER])


@dataclass(frozen=True, slots=True)
class AwaitDevices:
    """Wait until the devices of a pod are ready.

    Performing it: record the event (Normal, `reason`, `action`, `note`) for the pod, then ask `done` at once and every
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
    """Of each device that is waited for."""


def _guarded(claim: ResourceClaim, **metadata: Any) -> dict[str, Any]:
    """The beginning of a patch that fails where the claim has changed meanwhile."""
    return {"metadata": {"resourceVersion": claim.metadata.resource_version, **metadata}}
