"""Naive twin of `bayplan.devices.search`: the device search of kube-scheduler as a recursion over claims and requests.

Nothing is optimised: the allocated devices are a list that grows during the recursion. Only the state of the "distinct"
constraint is kept and reset, as upstream does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bayplan.codec.quantity import Quantity
from bayplan.devices import capacity
from bayplan.devices.assumptions import AllocatedDevices
from bayplan.devices.constraints import find_attribute, typed_value
from bayplan.devices.device_requests import RequestAlternative
from bayplan.devices.pools import NodePools, PoolDevice
from bayplan.devices.search import MAX_DEVICES
from bayplan.devices.selectors import DeviceSelectors
from bayplan.objects.core import Node
from bayplan.objects.resource import DeviceConstraint, ResourceClaim
from bayplan.objects.taints import tolerated


class TooManyError(Exception):
    """A claim would get too many devices."""


class NaiveSearch:
    def __init__(
        self,
        node: Node,
        pools: NodePools,
        in_use: AllocatedDevices,
        selectors: DeviceSelectors,
        claims: Sequence[ResourceClaim],
    ) -> None:
        self.node, self.pools, self.in_use, self.selectors, self.claims = node, pools, in_use, selectors, claims

    def run(self, requests: Sequence[Sequence[RequestAlternative]]) -> list[tuple[str, str]] | None:
        """The picks as (request, device) in order, or None."""
        found = self.picks(requests)
        return None if found is None else [(ask.name, str(device.id)) for ask, device in found]

    def picks(
        self, requests: Sequence[Sequence[RequestAlternative]]
    ) -> list[tuple[RequestAlternative, PoolDevice]] | None:
        self.requests = requests
        self.memory: dict[tuple[int, int], dict[str, Any]] = {}
        found = self._request(0, [])
        return None if found is None else [(ask, device) for ask, device, _ in found]

    def can_serve(self, ask: RequestAlternative, device: PoolDevice) -> bool:
        """Whether "all devices" includes this device."""
        return self._selects(ask, device) and self._has_room(ask, device, [])

    def _request(self, number: int, picks: list[Any]) -> list[Any] | None:
        if number == len(self.requests):
            return picks
        asks = self.requests[number]
        too_many = True
        for ask in asks:
            try:
                found = self._device(number, ask, 0, 0, picks)
            except TooManyError:
                continue
            too_many = False
            if found is not None:
                return found
        if too_many:
            raise TooManyError
        return None

    def _next_request(self, number: int, ask: RequestAlternative, picks: list[Any]) -> list[Any] | None:
        last_of_claim = number + 1 < len(self.requests) and self.requests[number + 1][0].position != ask.position
        try:
            return self._request(number + 1, picks)
        except TooManyError:
            if last_of_claim:
                return None
            raise

    def _device(
        self, number: int, ask: RequestAlternative, taken: int, start: int, picks: list[Any]
    ) -> list[Any] | None:
        if ask.wants_all and not ask.every:
            return None
        if taken >= ask.count:
            return self._next_request(number, ask, picks)
        if sum(other.position == ask.position for other, _, _ in picks) + ask.count - taken > MAX_DEVICES:
            raise TooManyError
        if ask.wants_all:
            device = ask.every[taken]
            paid = None if self._occupied(ask, device, picks) else self._take(ask, device, picks, must=True)
            if paid is None:
                return None
            return self._go_on(number, ask, taken, 0, picks, device, paid)
        for place in range(start, len(self.pools.devices)):
            device = self.pools.devices[place]
            if self._occupied(ask, device, picks) or not self._selects(ask, device):
                continue
            if not self._has_room(ask, device, picks):
                continue
            paid = self._take(ask, device, picks, must=False)
            if paid is None:
                continue
            found = self._go_on(number, ask, taken, place + 1, picks, device, paid)
            if found is not None:
                return found
        return None

    def _go_on(
        self,
        number: int,
        ask: RequestAlternative,
        taken: int,
        start: int,
        picks: list[Any],
        device: PoolDevice,
        paid: bool,
    ) -> list[Any] | None:
        try:
            found = self._device(number, ask, taken + 1, start, [*picks, (ask, device, paid)])
        except TooManyError:
            self._forget(ask, len(self._constraints(ask)))
            raise
        if found is None:
            self._forget(ask, len(self._constraints(ask)))
        return found

    def _occupied(self, ask: RequestAlternative, device: PoolDevice, picks: list[Any]) -> bool:
        takers = {other.position for other, item, _ in picks if item.id == device.id and not item.shareable}
        if ask.admin:
            return ask.position in takers
        return bool(takers) or self.in_use.is_exclusively_allocated(device.id)

    def _selects(self, ask: RequestAlternative, device: PoolDevice) -> bool:
        return self.selectors.select(ask, device) and device.reaches(self.node)

    def _has_room(self, ask: RequestAlternative, device: PoolDevice, picks: list[Any]) -> bool:
        shares = [
            capacity.consumed_capacity(other.capacity, item.device.capacity)
            for other, item, _ in picks
            if item.id == device.id and item.shareable
        ]
        return capacity.fits(ask.capacity, device.device.capacity, [self.in_use.consumed_capacity(device.id), *shares])

    def _take(self, ask: RequestAlternative, device: PoolDevice, picks: list[Any], *, must: bool) -> bool | None:
        """Whether the counters that the device consumes suffice; None if a counter is unknown."""
        shared = device.shareable and (
            self.in_use.has_consumed_capacity(device.id) or any(item.id == device.id for _, item, _ in picks)
        )
        pays = bool(device.counters) and not shared
        if pays and not self._counters_suffice(device, picks):
            return None
        if not all(tolerated(taint, ask.tolerations) for taint in device.blocking_taints):
            return None
        joined = 0
        for constraint in self._constraints(ask):
            if not self._joins(ask, joined, constraint, device, picks):
                self._forget(ask, joined)
                if must:
                    raise ask.error(f"cannot add device {device.id} because a claim constraint would not be satisfied")
                return None
            joined += 1
        if not self._has_room(ask, device, picks):
            self._forget(ask, joined)
            return None
        return pays

    def _counters_suffice(self, device: PoolDevice, picks: list[Any]) -> bool:
        pool = self.pools.by_id[device.pool]
        left = dict(pool.counters)
        for item in (*pool.devices, *pool.elsewhere):
            if self.in_use.is_allocated(item.id):
                for name, amount in item.counters:
                    left[name] = left[name].sub(amount)
        used: dict[Any, Quantity] = {}
        for item in [device, *(item for _, item, paid in picks if paid and item.pool == device.pool)]:
            for name, amount in item.counters:
                used[name] = used.get(name, Quantity()).add(amount)
        return not any(left[name] < used.get(name, Quantity()) for name in left)

    # constraints

    def _constraints(self, ask: RequestAlternative) -> tuple[DeviceConstraint, ...]:
        return self.claims[ask.position].spec.devices.constraints

    def _concerns(self, constraint: DeviceConstraint, ask: RequestAlternative) -> bool:
        return not constraint.requests or ask.request in constraint.requests or ask.name in constraint.requests

    def _joins(
        self, ask: RequestAlternative, number: int, constraint: DeviceConstraint, device: PoolDevice, picks: list[Any]
    ) -> bool:
        if not self._concerns(constraint, ask):
            return True
        name = constraint.match_attribute or constraint.distinct_attribute or ""
        attribute = find_attribute(device.device, device.id.driver, name)
        if attribute is None:
            return False
        value = typed_value(attribute)
        if constraint.match_attribute is not None:
            mates = [
                item for other, item, _ in picks if other.position == ask.position and self._concerns(constraint, other)
            ]
            found = [find_attribute(item.device, item.id.driver, name) for item in mates]
            return all(other is not None and typed_value(other) == value for other in found)
        memory = self.memory.setdefault((ask.position, number), {})
        if value in memory.values():
            return False
        memory[ask.request] = value
        return True

    def _forget(self, ask: RequestAlternative, joined: int) -> None:
        for number, constraint in enumerate(self._constraints(ask)[:joined]):
            if self._concerns(constraint, ask):
                self.memory.get((ask.position, number), {}).pop(ask.request, None)
