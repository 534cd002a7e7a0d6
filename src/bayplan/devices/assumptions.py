"""Device claims as the scheduler assumes them, and the devices in use.

`DeviceAssumptions` is the scheduler's view of all claims: the claims of the API server, claims that the scheduler has
written and not yet seen in the watch (`assume`), allocations that are decided but not written (`begin`), and
allocations in BindRequests (`reserve_for_request`). The binder writes the latter, reverts them when an attempt fails,
and writes them again. The cache owns one instance, passes claim events to it, and gives it to plugins; `revision`
changes whenever a result may change.

`AllocatedDevices` counts the devices in use. Each claim counts once, however many of these stages it is in. Cost: an
event costs as much as the allocation it changes; queries are lookups. `sync` is for catalogs without a watch: it
compares all claims after a change.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from bayplan.codec.quantity import Quantity, parse_quantity
from bayplan.devices.capacity import Amounts
from bayplan.devices.identity import DeviceId, PoolId
from bayplan.devices.lookup import DeviceLookup
from bayplan.objects.resource import AllocationResult, DeviceRequestAllocationResult, ResourceClaim, ResourceClaimStatus

_NO_CAPACITY: Mapping[str, Quantity] = {}


class AllocatedDevices:
    """The devices of all allocations. A device is allocated whole, or in shares with a consumed capacity each."""

    def __init__(self, allocations: Iterable[AllocationResult] = ()) -> None:
        self._whole: dict[DeviceId, int] = {}
        self._shares: dict[DeviceId, int] = {}
        self._measured: dict[DeviceId, int] = {}  # shares with a consumed capacity
        self._consumed: dict[DeviceId, Amounts] = {}
        self._touched: dict[PoolId, int] = {}
        self._changes = 0
        for allocation in allocations:
            self.add(allocation)

    def is_exclusively_allocated(self, device: DeviceId) -> bool:
        """Whether the device is allocated whole, so that no other claim can use it."""
        return device in self._whole

    def is_allocated(self, device: DeviceId) -> bool:
        """Whether the device is allocated, whole or in part."""
        return device in self._whole or device in self._shares

    def consumed_capacity(self, device: DeviceId) -> Mapping[str, Quantity]:
        """The consumed capacity of all shares together."""
        return self._consumed.get(device, _NO_CAPACITY)

    def has_consumed_capacity(self, device: DeviceId) -> bool:
        return device in self._measured

    def latest_change_of(self, pools: Iterable[PoolId]) -> int:
        """A number that changes whenever the use of a device of these pools does."""
        latest = 0
        for pool in pools:
            latest = max(latest, self._touched.get(pool, 0))
        return latest

    def _touch(self, device: DeviceId) -> None:
        self._changes += 1
        self._touched[PoolId(device.driver, device.pool)] = self._changes

    def add(self, allocation: AllocationResult) -> None:
        for device, result in _exclusive_results(allocation):
            self._touch(device)
            if result.share_id is None:
                _count(self._whole, device, 1)
                continue
            _count(self._shares, device, 1)
            if result.consumed_capacity:
                _count(self._measured, device, 1)
                amounts = self._consumed.setdefault(device, {})
                for name, text in result.consumed_capacity.items():
                    amount = parse_quantity(text)
                    amounts[name] = amounts[name].add(amount) if name in amounts else amount

    def remove(self, allocation: AllocationResult) -> None:
        """Undo an `add` of an equal allocation."""
        for device, result in _exclusive_results(allocation):
            self._touch(device)
            if result.share_id is None:
                _count(self._whole, device, -1)
                continue
            _count(self._shares, device, -1)
            if result.consumed_capacity:
                amounts = self._consumed[device]
                for name, text in result.consumed_capacity.items():
                    amounts[name] = amounts[name].sub(parse_quantity(text))
                if _count(self._measured, device, -1) == 0:
                    del self._consumed[device]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AllocatedDevices):
            return NotImplemented
        own, other_counts = (self._whole, self._shares, self._consumed), (other._whole, other._shares, other._consumed)
        return own == other_counts

    __hash__ = None  # type: ignore[assignment]


def _exclusive_results(allocation: AllocationResult) -> Iterator[tuple[DeviceId, DeviceRequestAllocationResult]]:
    """The results that exclude other claims. Admin access uses a device without allocating it."""
    for result in allocation.devices.results:
        if not result.admin_access:
            yield DeviceId(result.driver, result.pool, result.device), result


def _devices_and_shares(allocation: AllocationResult) -> set[tuple[DeviceId, str | None]]:
    return {(device, result.share_id) for device, result in _exclusive_results(allocation)}


def _count(counts: dict[DeviceId, int], device: DeviceId, change: int) -> int:
    total = counts.get(device, 0) + change
    if total:
        counts[device] = total
    else:
        counts.pop(device, None)
    return total


class DeviceAssumptions:
    """All claims as the scheduler assumes them, and the devices they use."""

    def __init__(self, claims: Iterable[ResourceClaim] = ()) -> None:
        self.in_use = AllocatedDevices()
        self.revision = 0
        self.listener: Callable[[ResourceClaim | None, ResourceClaim | None], None] | None = None
        """Called with a claim before and after a change that the watch does not show.

        The scheduler has written the claim, or devices that were only reserved in memory are free. `trial` suspends it.
        """
        self._known: dict[str, ResourceClaim] = {}  # by key: from the API server, or written by the scheduler since
        self._from_server: dict[str, ResourceClaim | None] = {}  # by key: the API server's version of an assumed claim
        self._pending: dict[str, ResourceClaim] = {}  # by uid: allocated by the scheduler and not written yet
        self._reservations: dict[str, dict[str, AllocationResult]] = {}  # by key, and by the uid of the pod
        self._until_next_event: set[tuple[str, str]] = set()  # reservations that end with the next event of the claim
        self._counted: dict[str, AllocationResult] = {}  # by uid: the counted allocation of a claim
        self._seen = -1  # the revision of the catalog's claims that is processed
        for claim in claims:
            self.observe(claim)

    @property
    def claims(self) -> Mapping[str, ResourceClaim]:
        """The newest known version of each claim, by `namespace/name`."""
        return self._known

    def holder(
        self, allocation: AllocationResult, ignored: Container[str] = ()
    ) -> tuple[ResourceClaim, DeviceId] | None:
        """A claim that already uses one of these devices exclusively, and the device.

        `excused`: uids of claims that do not count. Cost: one lookup per device, unless one is in use.
        """
        for device, result in _exclusive_results(allocation):
            shares = result.share_id is not None
            if not (self.in_use.is_exclusively_allocated(device) if shares else self.in_use.is_allocated(device)):
                continue
            for uid, counted in self._counted.items():
                if uid not in ignored and any(
                    other == device and not (shares and other_result.share_id is not None)
                    for other, other_result in _exclusive_results(counted)
                ):
                    return self._by_uid(uid), device
        return None

    def _by_uid(self, uid: str) -> ResourceClaim:
        return next(claim for claim in (*self._known.values(), *self._pending.values()) if claim.metadata.uid == uid)

    # Claims from the API server.

    def observe(self, claim: ResourceClaim, *, revision: int | None = None) -> None:
        """Process an event of a claim from the API server. An older version than the known one changes nothing.

        A caller that passes on every change of a catalog gives its `revision`, so that `sync` has nothing to do.
        """
        self._accept(claim.key, claim)
        self._seen = self._seen if revision is None else revision

    def delete(self, key: str, *, revision: int | None = None) -> None:
        self._accept(key, None)
        self._seen = self._seen if revision is None else revision

    def sync(self, lookup: DeviceLookup) -> None:
        """Compare all claims with a catalog, unless every change was passed on."""
        revision = lookup.revision(ResourceClaim)
        if revision == self._seen:
            return
        self._seen = revision
        stored = lookup.resource_claims
        for key in [*stored, *(key for key in self._known if key not in stored)]:
            self._accept(key, stored.get(key))

    def _accept(self, key: str, claim: ResourceClaim | None) -> None:
        known = self._known.get(key)
        if claim is known:
            self._from_server.pop(key, None)
        elif key not in self._from_server:
            if claim is None or known is None or _is_newer(claim, known):
                self._set(key, claim)
        elif claim is None and self._from_server[key] is None:
            return  # the scheduler has just created it and the watch has not shown it yet
        elif claim is None or known is None or _is_newer(claim, known):
            del self._from_server[key]
            self._set(key, claim)
        else:
            self._from_server[key] = claim

    # Claims that the scheduler has written.

    def assume(self, claim: ResourceClaim) -> bool:
        """Use the claim that a write returned. Returns False if the claim has changed again since."""
        known = self._known.get(claim.key)
        if known is not None and not _is_newer(claim, known) and _version(claim) != _version(known):
            return False
        self._from_server.setdefault(claim.key, known)
        self._set(claim.key, claim)
        self._notify(known, claim)
        return True

    def restore(self, key: str) -> None:
        """Drop the assumption: the last version from the API server counts again."""
        if key in self._from_server:
            assumed, from_server = self._known.get(key), self._from_server.pop(key)
            self._set(key, from_server)
            self._notify(assumed, from_server)

    def _notify(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if self.listener is not None and old is not new:
            self.listener(old, new)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Suspend the listener: allocations that end in this block began in this attempt; no waiting pod saw them."""
        listener, self.listener = self.listener, None
        try:
            yield
        finally:
            self.listener = listener

    @contextmanager
    def _report_freed(self, claim: ResourceClaim) -> Iterator[None]:
        """Report the release of devices that the claim held only in memory, as a deallocation.

        The watch reports the end of an allocation that the API server has shown.
        """
        uid, known = claim.metadata.uid, self._known.get(claim.key)
        is_shown = known is not None and known.metadata.uid == uid and known.status.allocation is not None
        before = None if is_shown else self._counted.get(uid)
        yield
        after = self._counted.get(uid)
        if (
            before is None
            or before is after
            or (after is not None and _devices_and_shares(before) <= _devices_and_shares(after))
        ):
            return
        self._notify(
            *(msgspec.structs.replace(claim, status=_status_with_allocation(claim, each)) for each in (before, None))
        )

    # Allocations that are decided and not written.

    def pending(self, uid: str) -> AllocationResult | None:
        """The pending allocation of a claim, if any. Other pods that share the claim must wait for it."""
        claim = self._pending.get(uid)
        return claim.status.allocation if claim is not None else None

    def begin(self, claim: ResourceClaim, allocation: AllocationResult) -> None:
        """Count the devices of an allocation that will be written."""
        status = msgspec.structs.replace(claim.status, allocation=allocation)
        self._pending[claim.metadata.uid] = msgspec.structs.replace(claim, status=status)
        self._recount(claim.metadata.uid, claim.key)

    def finish(self, uid: str) -> bool:
        """End a pending allocation that is written or abandoned. Returns False if there was none."""
        claim = self._pending.get(uid)
        if claim is not None:
            with self._report_freed(claim):
                del self._pending[uid]
                self._recount(uid, claim.key)
        return claim is not None

    # Allocations in BindRequests.

    def reserve_for_request(self, key: str, uid: str, allocation: AllocationResult) -> None:
        """Reserve the devices of an allocation that the binder will write for the pod of this uid."""
        self._reservations.setdefault(key, {})[uid] = allocation
        self._until_next_event.discard((key, uid))
        self._recount_known(key)

    def release(self, key: str, uid: str) -> None:
        """Drop the reservation: the binder will not write the allocation for this pod."""
        known = self._known.get(key)
        if known is None:
            self._drop_reservation(key, uid)
            return
        with self._report_freed(known):
            self._drop_reservation(key, uid)

    def keep(self, key: str, uid: str, *, written_before: int = 0) -> None:
        """Keep the reservation until the watch shows the allocation, which the binder has written for this pod.

        `written_before`: a resource version not older than that write; 0 if unknown. A newer claim without an
        allocation was deallocated since. Versions of pods and claims are comparable: etcd has one counter.
        """
        known = self._known.get(key)
        if known is None:  # the claim was deleted since
            for claim in [each for each in self._pending.values() if each.key == key]:
                self.finish(claim.metadata.uid)
            self._drop_reservation(key, uid)
            return
        is_shown = known.status.allocation is not None or 0 < written_before < _version(known)
        with self._report_freed(known):
            decided = self._pending.pop(known.metadata.uid, None)
            if is_shown:
                self._drop_reservation(key, uid)
                return
            if decided is not None and decided.status.allocation is not None:
                self._reservations.setdefault(key, {}).setdefault(uid, decided.status.allocation)
            if uid in self._reservations.get(key, ()):
                self._until_next_event.add((key, uid))
            self._recount_known(key)

    def _drop_reservation(self, key: str, uid: str) -> None:
        self._until_next_event.discard((key, uid))
        reservations = self._reservations.get(key, {})
        reservations.pop(uid, None)
        if not reservations:
            self._reservations.pop(key, None)
        self._recount_known(key)

    def _recount_known(self, key: str) -> None:
        if (known := self._known.get(key)) is not None:
            self._recount(known.metadata.uid, key)

    # Counting.

    def _set(self, key: str, claim: ResourceClaim | None) -> None:
        old = self._known.get(key)
        if old is None:
            self._replace(key, claim)
            return
        with self._report_freed(old):
            self._replace(key, claim)

    def _replace(self, key: str, claim: ResourceClaim | None) -> None:
        for _, uid in [each for each in self._until_next_event if each[0] == key]:
            self._drop_reservation(key, uid)
        old = self._known.pop(key, None) if claim is None else self._known.get(key)
        if claim is not None:
            self._known[key] = claim
        for uid in {item.metadata.uid for item in (old, claim) if item is not None}:
            self._recount(uid, key)

    def _recount(self, uid: str, key: str) -> None:
        """Count the current allocation of the claim: the written one, else the pending or the reserved one."""
        self.revision += 1
        known = self._known.get(key)
        allocation = known.status.allocation if known is not None and known.metadata.uid == uid else None
        if allocation is None:
            allocation = self.pending(uid)
        if allocation is None and known is not None and known.metadata.uid == uid and key in self._reservations:
            allocation = next(iter(self._reservations[key].values()))
        counted = self._counted.get(uid)
        if counted is allocation:
            return
        if counted is not None:
            self.in_use.remove(self._counted.pop(uid))
        if allocation is not None:
            self._counted[uid] = allocation
            self.in_use.add(allocation)


def _status_with_allocation(claim: ResourceClaim, allocation: AllocationResult | None) -> ResourceClaimStatus:
    return msgspec.structs.replace(claim.status, allocation=allocation)


def _is_newer(claim: ResourceClaim, known: ResourceClaim) -> bool:
    """Whether a claim of the same key is another object, or a newer version.

    Without versions the latest event counts.
    """
    if claim.metadata.uid != known.metadata.uid:
        return True
    return _version(claim) > _version(known) or not claim.metadata.resource_version


def _version(claim: ResourceClaim) -> int:
    text = claim.metadata.resource_version
    return int(text) if text.isdecimal() else 0
