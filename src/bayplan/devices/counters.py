"""Is there enough left of the counters that partitioned devices share?

A device may be a part of another one: both consume the same counters of their pool. What allocated devices consume is
gone before the search begins, wherever in the pool they are; what the search takes is kept here and given back when
it turns around.

Asked only for devices that consume counters. Cost: the first question about a pool looks at all its devices; after
that, a comparison for each counter of the pool.
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
        """Take the device's share, unless that makes any counter of the pool fall short.

        Also a counter that the device does not consume: where allocated devices have overdrawn one, the pool gives no
        more devices that consume anything.
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
