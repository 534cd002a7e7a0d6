"""Intents to write claims: patches, and conflicts that end a write."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bayplan.devices import claim_intents, extended_resources
from bayplan.devices.claims import FINALIZER
from bayplan.devices.errors import ClaimChanged
from bayplan.objects.core import ContainerExtendedResourceRequest
from bayplan.objects.resource import ResourceClaimConsumer
from support.builders.devices import exactly, make_allocation, make_claim
from support.builders.framework import CREATED, make_pod, replace_fields

NOW = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
POD = make_pod("p")
CLAIM = make_claim(exactly(), version="7")
ALLOCATION = make_allocation({"pool": "n", "device": "a"})
ALLOCATED = replace_fields(CLAIM, status={"allocation": ALLOCATION})
OTHER = ResourceClaimConsumer(resource="pods", name="other", uid="uid-other")


def test_an_allocation_is_written_with_its_time_and_its_user() -> None:
    write = claim_intents.ReserveClaim(CLAIM, POD, NOW, ALLOCATION)
    assert write.finalizer_patch(CLAIM) == {"metadata": {"resourceVersion": "7", "finalizers": [FINALIZER]}}
    patch = write.status_patch(CLAIM)
    assert patch["metadata"] == {"resourceVersion": "7"}
    assert patch["status"]["allocation"]["allocationTimestamp"] == "2026-05-01T12:00:00Z"
    assert patch["status"]["allocation"]["devices"]["results"][0]["device"] == "a"
    assert list(patch["status"]["reservedFor"]) == [{"resource": "pods", "name": "p", "uid": POD.uid}]
    assert write.describe() == "add allocation and reservation to claim default/claim"
    assert write.describe(finalizer=True) == "add finalizer to claim default/claim"


def test_an_existing_finalizer_is_not_added_again() -> None:
    claim = replace_fields(CLAIM, metadata={"finalizers": ("theirs", FINALIZER)})
    assert claim_intents.ReserveClaim(claim, POD, NOW, ALLOCATION).finalizer_patch(claim) is None


def test_other_finalizers_stay() -> None:
    claim = replace_fields(CLAIM, metadata={"finalizers": ("theirs",)})
    patch = claim_intents.ReserveClaim(claim, POD, NOW, ALLOCATION).finalizer_patch(claim)
    assert patch == {"metadata": {"resourceVersion": "7", "finalizers": ["theirs", FINALIZER]}}


def test_a_reservation_is_added_to_existing_ones_and_keeps_the_allocation() -> None:
    claim = replace_fields(ALLOCATED, status={"reserved_for": (OTHER,)})
    write = claim_intents.ReserveClaim(claim, POD, NOW)
    assert write.finalizer_patch(claim) is None
    assert [user["name"] for user in write.status_patch(claim)["status"]["reservedFor"]] == ["other", "p"]
    assert write.describe() == "add reservation to claim default/claim"


@pytest.mark.parametrize(
    ("write", "found", "text"),
    [
        pytest.param(
            claim_intents.ReserveClaim(CLAIM, POD, NOW, ALLOCATION),
            replace_fields(CLAIM, metadata={"deletion_timestamp": CREATED}),
            "claim default/claim got deleted in the meantime",
            id="deleted",
        ),
        pytest.param(
            claim_intents.ReserveClaim(CLAIM, POD, NOW, ALLOCATION),
            ALLOCATED,
            "claim default/claim got allocated elsewhere in the meantime",
            id="allocated-by-another",
        ),
        pytest.param(
            claim_intents.ReserveClaim(ALLOCATED, POD, NOW),
            CLAIM,
            "claim default/claim got deallocated elsewhere in the meantime",
            id="deallocated-by-another",
        ),
    ],
)
def test_after_a_conflict_the_current_claim_decides(
    write: claim_intents.ReserveClaim, found: object, text: str
) -> None:
    with pytest.raises(ClaimChanged, match=text):
        write.status_patch(found)  # type: ignore[arg-type]


def test_unreserve_removes_one_pod_without_listing_the_rest() -> None:
    assert claim_intents.UnreserveClaim(ALLOCATED, POD).patch(ALLOCATED) == {
        "metadata": {"uid": CLAIM.metadata.uid, "resourceVersion": ALLOCATED.metadata.resource_version},
        "status": {"reservedFor": [{"$patch": "delete", "uid": POD.uid}]},
    }


def test_deallocating_clears_everything_that_belongs_to_the_allocation() -> None:
    assert claim_intents.DeallocateClaim(ALLOCATED).patch() == {
        "metadata": {"resourceVersion": "7"},
        "status": {"allocation": None, "reservedFor": None, "devices": None},
    }


def test_the_finalizer_is_removed_before_a_claim_is_deleted() -> None:
    claim = replace_fields(CLAIM, metadata={"finalizers": (FINALIZER, "theirs")})
    write = claim_intents.DeleteClaim(claim)
    assert write.finalizer_patch(claim) == {"metadata": {"resourceVersion": "7", "finalizers": ["theirs"]}}
    assert write.finalizer_patch(CLAIM) is None


def test_the_special_claim_is_created_under_a_generated_name() -> None:
    claim = extended_resources.with_requests(extended_resources.new_special_claim(POD), CLAIM.spec.devices.requests)
    manifest = claim_intents.CreateSpecialClaim(claim, POD).manifest("abcde")
    assert manifest["metadata"] == {
        "namespace": "default",
        "name": "p-extended-resources-abcde",
        "generateName": "p-extended-resources-",
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        "ownerReferences": ({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": POD.uid, "controller": True},),
    }
    assert manifest["spec"]["devices"]["requests"][0]["name"] == "r0"
    assert (manifest["apiVersion"], manifest["kind"]) == ("resource.k8s.io/v1", "ResourceClaim")


def test_the_pod_status_records_its_special_claim() -> None:
    use = ContainerExtendedResourceRequest(container_name="c", resource_name="example.com/gpu", request_name="r")
    write = claim_intents.RecordSpecialClaim(POD, "made", (use,))
    status = write.patch(POD)["status"]["extendedResourceClaimStatus"]
    assert status["resourceClaimName"] == "made"
    assert list(status["requestMappings"]) == [
        {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r"}
    ]
    assert write.describe() == "update pod default/p ExtendedResourceClaimStatus"
