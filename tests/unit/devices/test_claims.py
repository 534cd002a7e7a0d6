"""Claims of a pod, and the readiness of their devices."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from bayplan.devices.claims import (
    ClaimProblem,
    all_ready,
    has_binding_conditions,
    is_ready,
    may_become_ready,
    pod_claims,
)
from bayplan.devices.errors import ClaimChanged, DeviceBindingFailed, DeviceBindingTimeout
from bayplan.objects.core import Pod, PodResourceClaim, PodResourceClaimStatus, PodStatus
from bayplan.objects.meta import OwnerReference
from bayplan.objects.resource import AllocatedDeviceStatus, ResourceClaim
from support.builders.devices import DRIVER, make_allocation, make_claim
from support.builders.framework import CREATED, make_pod, replace_fields

DIRECT = PodResourceClaim(name="gpu", resource_claim_name="claim")
TEMPLATE = PodResourceClaim(name="gpu", resource_claim_template_name="template")


def pod_with(*references: PodResourceClaim, **generated: str | None) -> Pod:
    statuses = tuple(PodResourceClaimStatus(name=name, resource_claim_name=made) for name, made in generated.items())
    return make_pod("p", resource_claims=references, status=PodStatus(resource_claim_statuses=statuses))


def owned(claim: ResourceClaim, uid: str) -> ResourceClaim:
    return replace_fields(claim, metadata={"owner_references": (OwnerReference(name="p", uid=uid, controller=True),)})


MINE = owned(make_claim(), make_pod("p").uid)


@pytest.mark.parametrize(
    ("pod", "claim", "found"),
    [
        pytest.param(pod_with(DIRECT), make_claim(), ["claim"], id="named-directly"),
        pytest.param(pod_with(TEMPLATE, gpu="claim"), MINE, ["claim"], id="made-from-a-template"),
        pytest.param(pod_with(TEMPLATE, gpu=None), MINE, [], id="none-was-needed"),
        pytest.param(pod_with(TEMPLATE), MINE, 'pod "default/p": ResourceClaim not created yet', id="not-made-yet"),
        pytest.param(pod_with(DIRECT), None, 'could not find ResourceClaim "default/claim"', id="not-there"),
        pytest.param(
            pod_with(DIRECT),
            replace_fields(make_claim(), metadata={"deletion_timestamp": CREATED}),
            'resourceclaim "claim" is being deleted',
            id="being-deleted",
        ),
        pytest.param(
            pod_with(TEMPLATE, gpu="claim"),
            owned(make_claim(), "somebody"),
            "ResourceClaim default/claim was not created for Pod default/p (Pod is not owner)",
            id="made-for-another-pod",
        ),
        pytest.param(pod_with(DIRECT), owned(make_claim(), "somebody"), ["claim"], id="named-directly-of-another-pod"),
        pytest.param(
            pod_with(PodResourceClaim(name="gpu")),
            make_claim(),
            'pod "default/p", spec.resourceClaim "gpu": none of the supported fields are set',
            id="says-nothing",
        ),
    ],
)
def test_claims_of_a_pod(pod: Pod, claim: ResourceClaim | None, found: list[str] | str) -> None:
    claims = pod_claims(pod, {claim.key: claim} if claim is not None else {})
    assert (claims.text if isinstance(claims, ClaimProblem) else [item.name for item in claims]) == found


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TIMEOUT = timedelta(minutes=10)


def being_made_ready(
    conditions: dict[str, str] | None = None, *, minutes: int | None = None, **result: Any
) -> ResourceClaim:
    """A claim for a device that must become Ready and not Broken, with the conditions that its driver has set."""
    fields = {} if minutes is None else {"allocationTimestamp": (NOW - timedelta(minutes=minutes)).isoformat()}
    known = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"], **result}
    claim = make_claim(allocation=make_allocation({"pool": "n", "device": "a", **known}, **fields))
    if conditions is None:
        return claim
    listed = [
        {"type": name, "status": status, "reason": "Why", "message": 'say "so"'} for name, status in conditions.items()
    ]
    raw = {"driver": DRIVER, "pool": "n", "device": "a", "conditions": listed}
    return replace_fields(claim, status={"devices": (msgspec.convert(raw, AllocatedDeviceStatus),)})


@pytest.mark.parametrize(
    ("claim", "ready"),
    [
        pytest.param(being_made_ready({"Ready": "True"}), True, id="ready"),
        pytest.param(being_made_ready({"Ready": "False"}), False, id="not-yet"),
        pytest.param(being_made_ready({}), False, id="no-condition"),
        pytest.param(being_made_ready(), False, id="no-status"),
        pytest.param(being_made_ready({"Ready": "True", "Broken": "False"}), True, id="not-broken"),
        pytest.param(being_made_ready(bindingConditions=[]), True, id="nothing-to-wait-for"),
        pytest.param(make_claim(), False, id="not-allocated"),
    ],
)
def test_ready(claim: ResourceClaim, ready: bool) -> None:
    assert is_ready(claim) is ready


def test_a_failed_device_is_an_error_with_its_reason() -> None:
    text = 'device binding failed: claim=claim, reason=Why, message="say \\"so\\""'
    with pytest.raises(DeviceBindingFailed) as caught:
        is_ready(being_made_ready({"Ready": "True", "Broken": "True"}))
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("claim", "wait"),
    [
        pytest.param(being_made_ready({"Ready": "True"}, minutes=99), True, id="ready-long-ago"),
        pytest.param(being_made_ready({}, minutes=9), True, id="in-time"),
        pytest.param(being_made_ready({}, minutes=10), True, id="at-the-last-moment"),
        pytest.param(being_made_ready({}, minutes=11), False, id="overdue"),
        pytest.param(being_made_ready({}), True, id="nobody-knows-since-when"),
        pytest.param(being_made_ready({"Broken": "True"}, minutes=1), False, id="broken"),
    ],
)
def test_waiting_for_devices(claim: ResourceClaim, wait: bool) -> None:
    assert may_become_ready(claim, NOW, TIMEOUT) is wait


def test_a_pod_waits_until_all_its_claims_are_ready() -> None:
    ready, waiting = being_made_ready({"Ready": "True"}), being_made_ready({}, minutes=1)
    keys = ("default/claim",)
    assert all_ready(keys, {"default/claim": ready}, NOW, TIMEOUT)
    assert not all_ready(keys, {"default/claim": waiting}, NOW, TIMEOUT)
    with pytest.raises(DeviceBindingTimeout, match="device binding timeout: claim=claim"):
        all_ready(keys, {"default/claim": being_made_ready({}, minutes=11)}, NOW, TIMEOUT)
    with pytest.raises(ClaimChanged, match='could not find ResourceClaim "default/claim"'):
        all_ready(keys, {}, NOW, TIMEOUT)


def test_claims_with_binding_conditions() -> None:
    assert has_binding_conditions(being_made_ready())
    assert not has_binding_conditions(being_made_ready(bindingConditions=[]))
    assert not has_binding_conditions(make_claim())
