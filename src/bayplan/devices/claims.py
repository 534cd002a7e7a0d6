"""Claims of a pod, and whether they are usable.

DynamicResources calls it before a pod is queued, when an attempt begins and when a claim changes. A pod names a claim
directly, or a template from which a controller creates one; the pod's status then has its name. Cost: one lookup per
claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from bayplan.codec.go_text import quote
from bayplan.devices.errors import ClaimChanged, DeviceBindingFailed, DeviceBindingTimeout
from bayplan.objects.core import Pod, PodResourceClaim
from bayplan.objects.meta import Condition
from bayplan.objects.resource import (
    AllocatedDeviceStatus,
    AllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from bayplan.objects.selectors.node_selectors import compile_node_selector

FINALIZER = "resource.kubernetes.io/delete-protection"

Claims = Mapping[str, ResourceClaim]


@dataclass(frozen=True, slots=True)
class ClaimProblem:
    """Why a pod cannot use a claim yet."""

    text: str


def pod_claims(pod: Pod, claims: Claims) -> tuple[ResourceClaim, ...] | ClaimProblem:
    """The pod's claims in order, or the first problem. A template that needed no claim has none."""
    found = []
    for reference in pod.spec.resource_claims:
        claim = _claim(pod, reference, claims)
        if isinstance(claim, ClaimProblem):
            return claim
        if claim is not None:
            found.append(claim)
    return tuple(found)


def entries_by_claim(pod: Pod) -> dict[str, str]:
    """The entries of a pod's `resourceClaims` by the names of their existing claims."""
    claim_names = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    behind = (
        (entry.resource_claim_name or claim_names.get(entry.name), entry.name) for entry in pod.spec.resource_claims
    )
    return {claim: entry for claim, entry in behind if claim is not None}


def _claim(pod: Pod, reference: PodResourceClaim, claims: Claims) -> ResourceClaim | ClaimProblem | None:
    generated = reference.resource_claim_name is None
    name = _generated_name(pod, reference) if generated else reference.resource_claim_name
    if name is None or isinstance(name, ClaimProblem):
        return name
    claim = claims.get(f"{pod.namespace}/{name}")
    if claim is None:
        return ClaimProblem(not_found(f"{pod.namespace}/{name}"))
    if claim.metadata.deletion_timestamp is not None:
        return ClaimProblem(f"resourceclaim {quote(claim.name)} is being deleted")
    owner = claim.metadata.controller
    if generated and (owner is None or owner.uid != pod.uid):
        return ClaimProblem(f"ResourceClaim {claim.key} was not created for Pod {pod.key} (Pod is not owner)")
    return claim


def _generated_name(pod: Pod, reference: PodResourceClaim) -> str | ClaimProblem | None:
    subject = f'pod "{pod.namespace}/{pod.name}"'
    if reference.resource_claim_template_name is None:
        field = f"spec.resourceClaim {quote(reference.name)}"
        return ClaimProblem(f"{subject}, {field}: none of the supported fields are set")
    for status in pod.status.resource_claim_statuses:
        if status.name == reference.name:
            return status.resource_claim_name
    return ClaimProblem(f"{subject}: ResourceClaim not created yet")


def not_found(key: str) -> str:
    return f"could not find ResourceClaim {quote(key)}"


def is_reserved_for(claim: ResourceClaim, pod: Pod) -> bool:
    return any(consumer.uid == pod.uid for consumer in claim.status.reserved_for)


def is_unused_by_others(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether no other pod uses a claim. Then it may be deallocated if this pod cannot use its devices, either."""
    return all(user.uid == pod.uid for user in claim.status.reserved_for)


def is_accessible_from(allocation: AllocationResult, labels: Mapping[str, str], node_name: str) -> bool:
    """Whether nodes with these labels can use the devices. An invalid selector matches no node."""
    selector = allocation.node_selector
    return selector is None or compile_node_selector(selector).matches(labels, node_name)


# Binding conditions: devices that must become ready after their allocation.


def has_binding_conditions(claim: ResourceClaim) -> bool:
    """Whether some device of the claim must become ready before the pod may be bound."""
    allocation = claim.status.allocation
    return allocation is not None and any(result.binding_conditions for result in allocation.devices.results)


def drivers_with_binding_conditions(claim: ResourceClaim) -> tuple[str, ...]:
    """The driver of each device that must become ready."""
    allocation = claim.status.allocation
    results = () if allocation is None else allocation.devices.results
    return tuple(result.driver for result in results if result.binding_conditions)


def is_ready(claim: ResourceClaim) -> bool:
    """Whether all devices of an allocated claim are ready; raises `DeviceBindingFailed` if one will never be."""
    if claim.status.allocation is None:
        return False
    for result in claim.status.allocation.devices.results:
        if not result.binding_conditions:
            continue
        status = _device_status(claim, result)
        if status is None:
            return False
        for name in result.binding_failure_conditions:
            failed = _condition(status, name)
            if failed is not None and failed.status == "True":
                raise DeviceBindingFailed(claim.name, failed.reason, failed.message)
        for name in result.binding_conditions:
            condition = _condition(status, name)
            if condition is None or condition.status != "True":
                return False
    return True


def is_binding_timed_out(claim: ResourceClaim, now: datetime, timeout: timedelta) -> bool:
    """Whether the time for its devices to become ready is over."""
    allocation = claim.status.allocation
    if allocation is None or allocation.allocation_timestamp is None or not has_binding_conditions(claim):
        return False
    return allocation.allocation_timestamp + timeout < now


def may_become_ready(claim: ResourceClaim, now: datetime, timeout: timedelta) -> bool:
    """Whether an allocated claim is ready or may still become ready."""
    try:
        return is_ready(claim) or not is_binding_timed_out(claim, now, timeout)
    except DeviceBindingFailed:
        return False


def all_ready(keys: tuple[str, ...], claims: Claims, now: datetime, timeout: timedelta) -> bool:
    """Whether the devices of all these claims are ready; raises if one will not become ready."""
    for key in keys:
        claim = claims.get(key)
        if claim is None:
            raise ClaimChanged(not_found(key))
        if is_ready(claim):
            continue
        if is_binding_timed_out(claim, now, timeout):
            raise DeviceBindingTimeout(claim.name)
        return False
    return True


def _device_status(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> AllocatedDeviceStatus | None:
    wanted = (result.driver, result.pool, result.device)
    return next((item for item in claim.status.devices if (item.driver, item.pool, item.device) == wanted), None)


def _condition(status: AllocatedDeviceStatus, name: str) -> Condition | None:
    return next((condition for condition in status.conditions if condition.type == name), None)
