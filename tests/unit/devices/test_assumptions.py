"""Devices in use, and claims as the scheduler assumes them ahead of the API server."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.codec.quantity import parse_quantity
from bayplan.devices.assumptions import AllocatedDevices, DeviceAssumptions
from bayplan.devices.identity import DeviceId, PoolId
from bayplan.objects.resource import ResourceClaim
from bayplan.snapshot import Catalog
from support.builders.devices import DRIVER, make_allocation, make_claim
from support.builders.framework import replace_fields


def of(name: str) -> DeviceId:
    return DeviceId(DRIVER, "n", name)


def holding(*names: str, **fields: Any) -> Any:
    return make_allocation(*({"pool": "n", "device": name, **fields} for name in names))


# Devices in use.


def test_an_allocation_uses_its_device() -> None:
    in_use = AllocatedDevices([holding("a")])
    assert [in_use.is_exclusively_allocated(of("a")), in_use.is_exclusively_allocated(of("b"))] == [True, False]
    assert [in_use.is_allocated(of("a")), in_use.is_allocated(of("b"))] == [True, False]


def test_admin_access_uses_no_device() -> None:
    assert AllocatedDevices([holding("a", adminAccess=True)]) == AllocatedDevices()


def test_shares_add_up_and_do_not_use_the_whole_device() -> None:
    in_use = AllocatedDevices(
        holding("a", shareID=share, consumedCapacity={"memory": amount})
        for share, amount in (("1", "2Gi"), ("2", "1Gi"))
    )
    assert not in_use.is_exclusively_allocated(of("a"))
    assert in_use.is_allocated(of("a"))
    assert in_use.consumed_capacity(of("a")) == {"memory": parse_quantity("3Gi")}


def test_a_share_without_amounts_is_allocated_but_not_measured() -> None:
    in_use = AllocatedDevices([holding("a", shareID="1")])
    assert (in_use.is_allocated(of("a")), in_use.has_consumed_capacity(of("a"))) == (True, False)


def test_removing_all_allocations_leaves_nothing() -> None:
    in_use = AllocatedDevices()
    for allocation in (holding("a"), holding("b", shareID="1", consumedCapacity={"memory": "1"}), holding("a")):
        in_use.add(allocation)
    in_use.remove(holding("a"))
    assert in_use.is_exclusively_allocated(of("a"))  # two claims have it
    in_use.remove(holding("b", shareID="1", consumedCapacity={"memory": "1"}))
    in_use.remove(holding("a"))
    assert in_use == AllocatedDevices()
    assert in_use.consumed_capacity(of("b")) == {}


def test_the_latest_change_depends_on_the_given_pools() -> None:
    in_use, pools = AllocatedDevices(), [PoolId(DRIVER, "n"), PoolId(DRIVER, "m")]
    numbers = [in_use.latest_change_of(pools)]
    in_use.add(holding("a"))
    numbers.append(in_use.latest_change_of(pools))
    in_use.add(make_allocation({"pool": "far", "device": "a"}))
    assert in_use.latest_change_of(pools) == numbers[-1]
    in_use.remove(holding("a"))
    numbers.append(in_use.latest_change_of(pools))
    assert len(set(numbers)) == 3


# Claims.


def taken(devices: DeviceAssumptions) -> list[str]:
    return [name for name in "abc" if devices.in_use.is_exclusively_allocated(of(name))]


def version(claim: ResourceClaim, number: int) -> ResourceClaim:
    return replace_fields(claim, metadata={"resource_version": str(number)})


FREE = make_claim(version="1")
ALLOCATED = make_claim(allocation=holding("a"), version="2")


def test_events_of_claims_update_the_devices_in_use() -> None:
    devices = DeviceAssumptions([FREE])
    assert taken(devices) == []
    devices.observe(ALLOCATED)
    assert (taken(devices), devices.claims["default/claim"]) == (["a"], ALLOCATED)
    devices.delete("default/claim")
    assert (taken(devices), dict(devices.claims)) == ([], {})


def test_an_old_version_changes_nothing() -> None:
    devices = DeviceAssumptions([ALLOCATED])
    devices.observe(FREE)
    assert devices.claims["default/claim"] is ALLOCATED


def test_a_new_claim_of_the_same_name_replaces_the_old_one() -> None:
    devices = DeviceAssumptions([ALLOCATED])
    devices.observe(replace_fields(FREE, metadata={"uid": "another", "resource_version": "1"}))
    assert taken(devices) == []


def test_of_claims_without_versions_the_latest_event_counts() -> None:
    devices = DeviceAssumptions([make_claim(allocation=holding("a"))])
    devices.observe(make_claim())
    assert taken(devices) == []


def test_a_pending_allocation_uses_its_devices() -> None:
    devices = DeviceAssumptions([FREE])
    devices.begin(FREE, holding("b"))
    assert (taken(devices), devices.pending(FREE.metadata.uid)) == (["b"], holding("b"))
    assert devices.finish(FREE.metadata.uid)
    assert (taken(devices), devices.pending(FREE.metadata.uid)) == ([], None)
    assert not devices.finish(FREE.metadata.uid)


def test_a_claim_counts_once_while_it_is_pending_and_written() -> None:
    devices = DeviceAssumptions([FREE])
    share = holding("a", shareID="1", consumedCapacity={"memory": "1Gi"})
    devices.begin(FREE, share)
    devices.observe(version(replace_fields(FREE, status={"allocation": share}), 2))
    assert devices.in_use == AllocatedDevices([share])
    devices.finish(FREE.metadata.uid)
    assert devices.in_use == AllocatedDevices([share])


def test_an_assumed_claim_counts_until_the_watch_shows_a_newer_one() -> None:
    devices = DeviceAssumptions([FREE])
    assert devices.assume(ALLOCATED)
    devices.observe(FREE)
    assert taken(devices) == ["a"]
    devices.observe(version(FREE, 3))
    assert taken(devices) == []


def test_an_outdated_write_is_not_assumed() -> None:
    devices = DeviceAssumptions([version(FREE, 3)])
    assert not devices.assume(ALLOCATED)
    assert taken(devices) == []


def test_restore_drops_the_assumption() -> None:
    devices = DeviceAssumptions([FREE])
    devices.assume(ALLOCATED)
    devices.restore("default/claim")
    assert devices.claims["default/claim"] is FREE
    devices.restore("default/claim")
    assert devices.claims["default/claim"] is FREE


def test_restore_uses_the_latest_event() -> None:
    devices = DeviceAssumptions([FREE])
    devices.assume(version(ALLOCATED, 5))
    event = version(FREE, 4)
    devices.observe(event)
    assert taken(devices) == ["a"]
    devices.restore("default/claim")
    assert devices.claims["default/claim"] is event


def test_a_created_claim_is_known_before_the_watch_shows_it() -> None:
    catalog = Catalog([make_claim(name="other")])
    devices = DeviceAssumptions()
    devices.sync(catalog)
    devices.assume(ALLOCATED)
    catalog.upsert(make_claim(name="third"))
    devices.sync(catalog)
    assert (sorted(devices.claims), taken(devices)) == (["default/claim", "default/other", "default/third"], ["a"])
    catalog.upsert(ALLOCATED)
    catalog.delete(ALLOCATED)
    devices.observe(ALLOCATED)
    devices.sync(catalog)
    assert taken(devices) == []


def test_a_created_claim_can_be_restored_to_nothing() -> None:
    devices = DeviceAssumptions()
    devices.assume(ALLOCATED)
    devices.restore("default/claim")
    assert (dict(devices.claims), taken(devices)) == ({}, [])


def test_the_revision_changes_with_every_change() -> None:
    devices = DeviceAssumptions()
    seen = [devices.revision]
    for change in (
        lambda: devices.observe(FREE),
        lambda: devices.begin(FREE, holding("b")),
        lambda: devices.finish(FREE.metadata.uid),
        lambda: devices.assume(ALLOCATED),
        lambda: devices.restore("default/claim"),
        lambda: devices.delete("default/claim"),
    ):
        change()
        seen.append(devices.revision)
    assert seen == sorted(set(seen))


# Synchronization with a catalog.


class CountingCatalog(Catalog):
    """Counts how often all claims are read."""

    looks = 0

    @property
    def resource_claims(self) -> Any:
        self.looks += 1
        return super().resource_claims


def test_sync_follows_a_catalog() -> None:
    catalog = CountingCatalog([FREE])
    devices = DeviceAssumptions()
    devices.sync(catalog)
    catalog.upsert(ALLOCATED)
    assert taken(devices) == []
    devices.sync(catalog)
    assert taken(devices) == ["a"]
    catalog.delete(ALLOCATED)
    devices.sync(catalog)
    assert (taken(devices), dict(devices.claims)) == ([], {})


def test_sync_reads_no_claims_if_all_events_were_passed_on() -> None:
    catalog = CountingCatalog()
    devices = DeviceAssumptions()
    devices.sync(catalog)
    before = catalog.looks
    for claim in (FREE, ALLOCATED):
        catalog.upsert(claim)
        devices.observe(claim, revision=catalog.revision(ResourceClaim))
    devices.sync(catalog)
    assert (taken(devices), catalog.looks) == (["a"], before)
    catalog.delete(ALLOCATED)
    devices.delete(ALLOCATED.key, revision=catalog.revision(ResourceClaim))
    devices.sync(catalog)
    assert (taken(devices), catalog.looks) == ([], before)


# Allocations in BindRequests.


def test_a_reserved_device_is_in_use_whether_or_not_its_claim_is_allocated() -> None:
    """The binder writes, reverts and writes again; between two attempts no other claim gets the device."""
    claim = make_claim(name="c")
    written = replace_fields(claim, status={"allocation": holding("a")})
    known = DeviceAssumptions([claim])
    known.reserve_for_request(claim.key, "pod", holding("a"))
    for event in (written, claim, written, claim):
        assert known.in_use == AllocatedDevices([holding("a")])
        known.observe(event)
    assert known.in_use == AllocatedDevices([holding("a")])
    known.release(claim.key, "pod")
    assert known.in_use == AllocatedDevices()


def test_a_reservation_counts_before_its_claim_is_known() -> None:
    known, claim = DeviceAssumptions(), make_claim(name="c")
    known.reserve_for_request(claim.key, "pod", holding("a"))
    assert known.in_use == AllocatedDevices()
    known.observe(claim)
    assert known.in_use == AllocatedDevices([holding("a")])
    known.delete(claim.key)
    assert known.in_use == AllocatedDevices()


def test_a_carried_out_reservation_ends_with_the_next_event_of_the_claim() -> None:
    claim = make_claim(name="c")
    known = DeviceAssumptions([claim])
    known.begin(claim, holding("a"))  # decided by the scheduler, written by the binder
    known.reserve_for_request(claim.key, "pod", holding("a"))
    known.keep(claim.key, "pod")
    assert known.in_use == AllocatedDevices([holding("a")])
    known.observe(replace_fields(claim, status={"allocation": holding("a")}))
    assert known.in_use == AllocatedDevices([holding("a")])
    known.observe(claim)  # deallocated after the pod was deleted
    assert known.in_use == AllocatedDevices()


@pytest.mark.parametrize("promised", [True, False], ids=["promised", "decided only"])
@pytest.mark.parametrize(
    ("version", "held"),
    [
        pytest.param("5", True, id="the watch of claims is behind"),
        pytest.param("9", False, id="the claim was deallocated before the pod was shown on its node"),
    ],
)
def test_devices_of_a_bound_pod_are_in_use_until_the_watch_catches_up(version: str, held: bool, promised: bool) -> None:
    claim = make_claim(name="c")
    known = DeviceAssumptions([claim])
    known.begin(claim, holding("a"))
    if promised:
        known.reserve_for_request(claim.key, "pod", holding("a"))
    known.observe(replace_fields(claim, metadata={"resource_version": version}))
    known.keep(claim.key, "pod", written_before=7)
    assert known.in_use == AllocatedDevices([holding("a")] if held else [])
    known.observe(replace_fields(claim, metadata={"resource_version": "8"}, status={"allocation": holding("a")}))
    assert known.in_use == AllocatedDevices([holding("a")] if held else []), "an older version changes nothing"
    known.observe(replace_fields(claim, metadata={"resource_version": "10"}))
    assert known.in_use == AllocatedDevices()


def test_devices_of_a_bound_pod_are_free_if_its_claim_was_deleted() -> None:
    claim = make_claim(name="c")
    known = DeviceAssumptions([claim])
    known.begin(claim, holding("a"))
    known.delete(claim.key)
    assert known.in_use == AllocatedDevices([holding("a")]), "the pod may still be bound"
    known.keep(claim.key, "pod", written_before=7)
    assert known.in_use == AllocatedDevices()


def test_two_pods_that_share_a_claim_reserve_its_device_until_both_release_it() -> None:
    claim = make_claim(name="c")
    known = DeviceAssumptions([claim])
    for uid in ("one", "two"):
        known.reserve_for_request(claim.key, uid, holding("a"))
    known.release(claim.key, "one")
    assert known.in_use == AllocatedDevices([holding("a")])
    known.release(claim.key, "two")
    assert known.in_use == AllocatedDevices()


# Holders of devices.


def test_the_holder_of_a_device_is_found_unless_it_is_ignored() -> None:
    mine, theirs = (
        make_claim(name=name, allocation=holding(*held)) for name, held in (("mine", "a"), ("theirs", "bc"))
    )
    devices = DeviceAssumptions([mine, theirs])
    assert devices.holder(holding("c", "a"), {mine.metadata.uid}) == (theirs, of("c"))
    assert devices.holder(holding("a"), {mine.metadata.uid}) is None
    assert devices.holder(holding("d")) is None
    assert devices.holder(holding("c", adminAccess=True)) is None


def test_shares_of_a_device_exclude_the_whole_device_but_not_each_other() -> None:
    shared = make_claim(name="shared", allocation=holding("a", shareID="1"))
    devices = DeviceAssumptions([shared])
    assert devices.holder(holding("a", shareID="2")) is None
    assert devices.holder(holding("a")) == (shared, of("a"))


def test_a_pending_claim_is_the_holder_of_its_devices() -> None:
    devices, claim = DeviceAssumptions(), make_claim(name="mine")
    devices.begin(claim, holding("a"))
    held = devices.holder(holding("a"))
    assert held is not None
    assert held[0].key == claim.key
    devices.finish(claim.metadata.uid)
    assert devices.holder(holding("a")) is None


# Devices released in memory.


def listening(*claims: ResourceClaim) -> tuple[DeviceAssumptions, list[Any]]:
    devices = DeviceAssumptions(claims)
    heard: list[Any] = []
    devices.listener = lambda old, new: heard.append((old and old.status.allocation, new and new.status.allocation))
    return devices, heard


def test_an_abandoned_allocation_is_reported_as_a_deallocation() -> None:
    devices, heard = listening(FREE)
    devices.begin(FREE, holding("b"))
    assert heard == []
    devices.finish(FREE.metadata.uid)
    devices.finish(FREE.metadata.uid)
    assert heard == [(holding("b"), None)]


def test_a_written_allocation_is_not_reported() -> None:
    devices, heard = listening(FREE)
    devices.begin(FREE, holding("a"))
    devices.observe(ALLOCATED)
    devices.finish(FREE.metadata.uid)
    assert heard == []


def test_another_scheduler_allocates_other_devices_to_a_claim() -> None:
    devices, heard = listening(FREE)
    devices.begin(FREE, holding("b"))
    devices.observe(ALLOCATED)
    assert (taken(devices), heard) == (["a"], [(holding("b"), None)])
    devices.finish(FREE.metadata.uid)
    assert len(heard) == 1


def test_a_dropped_reservation_is_reported_as_a_deallocation() -> None:
    devices, heard = listening(FREE)
    devices.reserve_for_request("default/claim", "p", holding("b"))
    devices.release("default/claim", "p")
    assert heard == [(holding("b"), None)]


def test_a_carried_out_reservation_ends_with_the_next_version_of_the_claim() -> None:
    devices, heard = listening(FREE)
    devices.reserve_for_request("default/claim", "p", holding("a"))
    devices.keep("default/claim", "p")
    devices.observe(ALLOCATED)
    assert heard == []
    devices.reserve_for_request("default/claim", "q", holding("a"))
    devices.observe(version(FREE, 9))  # the watch reports this itself
    assert heard == []
    devices.keep("default/claim", "q")
    devices.observe(version(FREE, 10))
    assert heard == [(holding("a"), None)]


def test_a_deleted_claim_releases_its_reservations() -> None:
    devices, heard = listening(FREE)
    devices.reserve_for_request("default/claim", "p", holding("b"))
    devices.delete("default/claim")
    assert (taken(devices), heard) == ([], [(holding("b"), None)])


def test_a_trial_reports_nothing() -> None:
    devices, heard = listening(FREE)
    with devices.trial():
        devices.begin(FREE, holding("b"))
        devices.finish(FREE.metadata.uid)
    assert heard == []
    devices.begin(FREE, holding("b"))
    devices.finish(FREE.metadata.uid)
    assert len(heard) == 1
