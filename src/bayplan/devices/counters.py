"""Shared counters of partitioned devices.

A device may be a part of another one: both consume the same counters of their pool. The consumption of allocated
devices is subtracted before the search begins, wherever in the pool they are. The consumption of the search is tracked
here and undone on backtracking.

Used only for devices that consume counters. Cost: the first query of a pool visits all its devices; after that, one
comparison per counter of the pool.
"""

from __future__ import annotations

from bayplan.codec.quantity import Quantity
from bayplan.devices.assumptions import AllocatedDevices
from bayplan.devices.identity import PoolId
from bayplan.devices.pools import CounterName, NodePools, PoolDevice, VisiblePool

_ZERO = Quantity()


class SharedCounters:
    """The counters of all pools that a node sees, during one search."""

    def __init__(self, pools: NodePools, in_use: AllocatedDevices) -> None:
        self._pools = pools
        self._in_use = in_use
        self._left: dict[PoolId, dict[CounterName, Quantity]] = {}
        self._taken: dict[PoolId, dict[CounterName, Quantity]] = {}

    def consume(self, device: PoolDevice) -> bool:
        """Consume the device's counters, unless any counter of the pool would be exceeded.

        This includes counters that the device does not consume: if allocated devices have overdrawn one, the pool gives
        no more devices that consume counters.
        """
        left, taken = self._available(device.pool), self._taken.setdefault(device.pool, {})
        for name, amount in device.counters:
            taken[name] = taken[name].add(amount) if name in taken else amount
        if not any(available < taken.get(name, _ZERO) for name, available in left.items()):
            return True
        self.release(device)
        return False

    def release(self, device: PoolDevice) -> None:
        taken = self._taken[device.pool]
        for name, amount in device.counters:
            taken[name] = taken[name].sub(amount)

    def _available(self, pool_id: PoolId) -> dict[CounterName, Quantity]:
        left = self._left.get(pool_id)
        if left is None:
            left = self._left[pool_id] = self._after_allocations(self._pools.by_id[pool_id])
        return left

    def _after_allocations(self, pool: VisiblePool) -> dict[CounterName, Quantity]:
        left = dict(pool.counters)
        for device in (*pool.devices, *pool.elsewhere):
            if device.counters and self._in_use.is_allocated(device.id):
                for name, amount in device.counters:
                    left[name] = left[name].sub(amount)
        return left
