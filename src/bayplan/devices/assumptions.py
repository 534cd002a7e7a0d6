"""Which devices are taken, by whom, and what do we know that the API server does not know yet?

`DeviceAssumptions` is the scheduler's own view of all claims: what the API server told, what we have written and not
seen come back (`assume`), allocations that are decided but not written (`begin`), and those that a BindRequest carries:
the binder writes them, takes them back where an attempt fails, and writes them again (`reserve_for_request`). The cache
owns one, passes claim events on to it, and hands it to plugins; `revision` changes whenever an answer of it may.

`AllocatedDevices` is the ledger of devices that follows from it. Each claim counts once, however many of these stages
it is in. Cost: an event costs as much as the allocation it changes, questions are lookups. `sync` is for those whose
catalog nobody watches: it compares all claims after a change."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from bayplan.codec.quantity import Quantity, parse_quantity
from bayplan.devices.capacity import Amounts
from bayplan.devices.identity import DeviceId, PoolId
from bayplan.devices.lookup import DeviceLookup
from bayplan.objects.resource import (
    AllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)

_NO_CAPACITY: Mapping[str, Quantity] = {}


class AllocatedDevices:
    """The devices that allocations hold. A device may be held whole, or in shares with a capacity each."""

    def __init__(self, allocations: Iterable[AllocationResult] = ()) -> None:
        self._whole: dict[DeviceId, int] = {}
        self._shares: dict[DeviceId, int] = {}
        self._measured: dict[DeviceId, int] = {}  # shares that say how much they consume
        self._consumed: dict[DeviceId, Amounts] = {}
        self._touched: dict[PoolId, int] = {}
        self._changes = 0
        for allocation in allocations:
            self.add(allocation)

    def is_exclusively_allocated(self, device: DeviceId) -> bool:
        """Held whole: nobody else can have any of it."""
        return device in self._whole

    def is_allocated(self, device: DeviceId) -> bool:
        """Held by somebody, whole or in part."""
        return device in self._whole or device in self._shares

    def consumed(self, device: DeviceId) -> Mapping[str, Quantity]:
        """What all shares together take of each capacity."""
        return self._consumed.get(device, _NO_CAPACITY)

    def has_consumed_capacity(self, device: DeviceId) -> bool:
        """Whether some share says how much it consumes."""
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
        mine, theirs = (self._whole, self._shares, self._consumed), (other._whole, other._shares, other._consumed)
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]


def _exclusive_results(allocation: AllocationResult) -> Iterator[tuple[DeviceId, DeviceRequestAllocationResult]]:
    """The results that keep others off: an administrator looks at a device without holding it."""
    for result in allocation.devices.results:
        if not result.admin_access:
            yield DeviceId(result.driver, result.pool, result.device), result


def _held(allocation: AllocationResult) -> set[tuple[DeviceId, str | None]]:
    return {(device, result.share_id) for device, result in _exclusive_results(allocation)}


def _count(counts: dict[DeviceId, int], device: DeviceId, change: int) -> int:
    total = counts.get(device, 0) + change
    if total:
        counts[device] = total
    else:
        counts.pop(device, None)
    return total


class DeviceAssumptions:
    """All claims as the scheduler knows them, and the devices they hold."""

    def __init__(self, claims: Iterable[ResourceClaim] = ()) -> None:
        self.in_use = AllocatedDevices()
        self.revision = 0
        self.listener: Callable[[ResourceClaim | None, ResourceClaim | None], None] | None = None
        """Called with a claim before and after, when it changes here and the watch does not show it: it was written by
        us, or devices that were only held in memory are free. `trial` suspends it."""
        self._known: dict[str, ResourceClaim] = {}  # by key: told by the API server, or written by us since
        self._told: dict[str, ResourceClaim | None] = {}  # by key, where we know better: what the API server told
        self._pending: dict[str, ResourceClaim] = {}  # by uid: allocated by us and not written yet
        self._promised: dict[
            str, dict[str, AllocationResult]
        ] = {}  # by key, and by the uid of the pod that is to use it
        self._kept: set[tuple[str, str]] = set()  # promises that end with the next word on the claim
        self._counted: dict[str, AllocationResult] = {}  # by uid: what the ledger holds for a claim
        self._seen = -1  # the revision of the catalog's claims up to which we know them
        for claim in claims:
            self.observe(claim)

    @property
    def claims(self) -> Mapping[str, ResourceClaim]:
        """The newest known version of each claim, by `namespace/name`."""
        return self._known

    def holder(
        self, allocation: AllocationResult, excused: Container[str] = ()
    ) -> tuple[ResourceClaim, DeviceId] | None:
        """A claim because of which another cannot have these devices, and the one of them that it has.

        `excused`: uids of claims that do not count. Costs a lookup a device, unless somebody has it."""
        for device, result in _exclusive_results(allocation):
            shares = result.share_id is not None
            if not (self.in_use.is_exclusively_allocated(device) if shares else self.in_use.is_allocated(device)):
                continue
            for uid, counted in self._counted.items():
                if uid not in excused and any(
                    other == device and not (shares and theirs.share_id is not None)
                    for other, theirs in _exclusive_results(counted)
                ):
                    return self._by_uid(uid), device
        return None

    def _by_uid(self, uid: str) -> ResourceClaim:
        """A claim that counts."""
        return next(claim for claim in (*self._known.values(), *self._pending.values()) if claim.metadata.uid == uid)

    # what the API server tells

    def observe(self, claim: ResourceClaim, *, revision: int | None = None) -> None:
        """The API server shows a claim. Older than what we know already, it changes nothing.

        Whoever passes on every change of a catalog gives its `revision`, so that `sync` has nothing left to do.
        """
        self._accept(claim.key, claim)
        self._seen = self._seen if revision is None else revision

    def delete(self, key: str, *, revision: int | None = None) -> None:
        """The claim is gone from the API server."""
        self._accept(key, None)
        self._seen = self._seen if revision is None else revision

    def sync(self, lookup: DeviceLookup) -> None:
        """Catch up with a catalog: compares every claim, unless every change was passed on."""
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
            self._told.pop(key, None)
        elif key not in self._told:
            if claim is None or known is None or _is_newer(claim, known):
                self._set(key, claim)
        elif claim is None and self._told[key] is None:
            return  # we have just created it and the API server has not shown it yet
        elif claim is None or known is None or _is_newer(claim, known):
            del self._told[key]
            self._set(key, claim)
        else:
            self._told[key] = claim

    # what we have written

    def assume(self, claim: ResourceClaim) -> bool:
        """Our own write succeeded and this came back. False if the claim has changed again since."""
        known = self._known.get(claim.key)
        if known is not None and not _is_newer(claim, known) and _version(claim) != _version(known):
            return False
        self._told.setdefault(claim.key, known)
        self._set(claim.key, claim)
        self._notify(known, claim)
        return True

    def restore(self, key: str) -> None:
        """Believe the API server again: what it told last counts."""
        if key in self._told:
            assumed, told = self._known.get(key), self._told.pop(key)
            self._set(key, told)
            self._notify(assumed, told)

    def _notify(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if self.listener is not None and old is not new:
            self.listener(old, new)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """What is freed in this block was taken in the same attempt, so no waiting pod has seen it taken."""
        listener, self.listener = self.listener, None
        try:
            yield
        finally:
            self.listener = listener

    @contextmanager
    def _reporting_freed(self, claim: ResourceClaim) -> Iterator[None]:
        """Report devices that the claim holds in memory before this block, and not after it: as a deallocation.

        The watch reports an allocation that the API server has shown and shows no more."""
        uid, known = claim.metadata.uid, self._known.get(claim.key)
        is_shown = known is not None and known.metadata.uid == uid and known.status.allocation is not None
        before = None if is_shown else self._counted.get(uid)
        yield
        after = self._counted.get(uid)
        if before is None or before is after or (after is not None and _held(before) <= _held(after)):
            return
        self._notify(*(msgspec.structs.replace(claim, status=_allocated(claim, each)) for each in (before, None)))

    # what is decided and not written

    def pending(self, uid: str) -> AllocationResult | None:
        """The allocation in flight for a claim, if there is one: other pods that share the claim must wait for it."""
        claim = self._pending.get(uid)
        return claim.status.allocation if claim is not None else None

    def begin(self, claim: ResourceClaim, allocation: AllocationResult) -> None:
        """Hold the devices of an allocation that is going to be written."""
        status = msgspec.structs.replace(claim.status, allocation=allocation)
        self._pending[claim.metadata.uid] = msgspec.structs.replace(claim, status=status)
        self._finish(claim.metadata.uid, claim.key)

    def finish(self, uid: str) -> bool:
        """The allocation is written, or given up. False if there was none in flight."""
        claim = self._pending.get(uid)
        if claim is not None:
            with self._reporting_freed(claim):
                del self._pending[uid]
                self._finish(uid, claim.key)
        return claim is not None

    # what others are to write

    def reserve_for_request(self, key: str, uid: str, allocation: AllocationResult) -> None:
        """Somebody else is to write this allocation, for the pod of this uid: until then nobody gets the devices."""
        self._promised.setdefault(key, {})[uid] = allocation
        self._kept.discard((key, uid))
        self._settle_known(key)

    def release(self, key: str, uid: str) -> None:
        """The allocation will not be written for this pod."""
        known = self._known.get(key)
        if known is None:
            self._drop_promise(key, uid)
            return
        with self._reporting_freed(known):
            self._drop_promise(key, uid)

    def keep(self, key: str, uid: str, *, written_before: int = 0) -> None:
        """Another process has written the allocation for this pod. The devices are held until the watch shows it.

        `written_before`: a version by which that was done; 0 if it is not known. A claim of a later version that has no
        allocation was deallocated since. Versions of pods and claims are comparable: etcd counts them together.
        """
        known = self._known.get(key)
        if known is None:  # the claim was deleted since
            for claim in [each for each in self._pending.values() if each.key == key]:
                self.finish(claim.metadata.uid)
            self._drop_promise(key, uid)
            return
        is_shown = known.status.allocation is not None or 0 < written_before < _version(known)
        with self._reporting_freed(known):
            decided = self._pending.pop(known.metadata.uid, None)
            if is_shown:
                self._drop_promise(key, uid)
                return
            if decided is not None and decided.status.allocation is not None:
                self._promised.setdefault(key, {}).setdefault(uid, decided.status.allocation)
            if uid in self._promised.get(key, ()):
                self._kept.add((key, uid))
            self._settle_known(key)

    def _drop_promise(self, key: str, uid: str) -> None:
        self._kept.discard((key, uid))
        promised = self._promised.get(key, {})
        promised.pop(uid, None)
        if not promised:
            self._promised.pop(key, None)
        self._settle_known(key)

    def _settle_known(self, key: str) -> None:
        if (known := self._known.get(key)) is not None:
            self._finish(known.metadata.uid, key)

    # the ledger

    def _set(self, key: str, claim: ResourceClaim | None) -> None:
        old = self._known.get(key)
        if old is None:
            self._replace(key, claim)
            return
        with self._reporting_freed(old):
            self._replace(key, claim)

    def _replace(self, key: str, claim: ResourceClaim | None) -> None:
        for _, uid in [each for each in self._kept if each[0] == key]:
            self._drop_promise(key, uid)
        old = self._known.pop(key, None) if claim is None else self._known.get(key)
        if claim is not None:
            self._known[key] = claim
        for uid in {item.metadata.uid for item in (old, claim) if item is not None}:
            self._finish(uid, key)

    def _finish(self, uid: str, key: str) -> None:
        """Make the ledger hold what the claim holds now: its written allocation, else the one in flight or promised."""
        self.revision += 1
        known = self._known.get(key)
        allocation = known.status.allocation if known is not None and known.metadata.uid == uid else None
        if allocation is None:
            allocation = self.pending(uid)
        if allocation is None and known is not None and known.metadata.uid == uid and key in self._promised:
            allocation = next(iter(self._promised[key].values()))
        counted = self._counted.get(uid)
        if counted is allocation:
            return
        if counted is not None:
            self.in_use.remove(self._counted.pop(uid))
        if allocation is not None:
            self._counted[uid] = allocation
            self.in_use.add(allocation)


def _allocated(claim: ResourceClaim, allocation: AllocationResult | None) -> ResourceClaimStatus:
    return msgspec.structs.replace(claim.status, allocation=allocation)


def _is_newer(claim: ResourceClaim, known: ResourceClaim) -> bool:
    """Whether a claim of the same key is a later one, or a later version. Without versions, the last told counts."""
    if claim.metadata.uid != known.metadata.uid:
        return True
    return _version(claim) > _version(known) or not claim.metadata.resource_version


def _version(claim: ResourceClaim) -> int:
    text = claim.metadata.resource_version
    return int(text) if text.isdecimal() else 0
