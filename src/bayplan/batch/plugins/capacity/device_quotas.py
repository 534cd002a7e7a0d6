"""Device quotas of queues for devices that pods get through resource claims (DRA).

Part of capacity. The key `deviceclass/<class>` of a queue's capability limits the number of devices of a class. The key
`<dimension>.deviceclass/<class>` limits a shared amount; it is only read if consumable capacity is enabled. A class
without such a key is unlimited. A claim that several pods of a queue share counts once.
"""

from __future__ import annotations

from bayplan.batch.devices.claimed_devices import (
    COUNT_PREFIX,
    ByClaim,
    ByClass,
    DeviceClassAmount,
    add_claims,
    sum_claims,
)
from bayplan.codec.quantity import parse_quantity
from bayplan.objects.meta import ResourceList
from bayplan.objects.volcano.types import QueueSpec

CAPACITY_SEPARATOR = ".deviceclass/"
EXCEEDED = "dra-resource-exceeded"


class DeviceQuota:
    """Device limits of a queue, and the devices that its tasks use."""

    def __init__(self, capability: ByClass) -> None:
        self.capability = capability
        self.allocated: ByClass = {}
        self.inqueue: ByClass = {}
        self._users: dict[str, int] = {}  # number of tasks by claim

    @classmethod
    def of(cls, spec: QueueSpec) -> DeviceQuota | None:
        """Read the quota of a queue; None if the queue names no device class."""
        quotas = [_read_quota(each) for each in (spec.capability, spec.deserved, spec.guarantee.resource)]
        return cls(quotas[0]) if any(quotas) else None

    def clone(self) -> DeviceQuota:
        copy = DeviceQuota(self.capability)
        copy.allocated = {name: devices.clone() for name, devices in self.allocated.items()}
        copy.inqueue = {name: devices.clone() for name, devices in self.inqueue.items()}
        copy._users = dict(self._users)
        return copy

    def has_room(self, claims: ByClaim, *, consumable: bool) -> bool:
        """Whether a task with these claims fits the quota; claims that the queue uses already cost nothing."""
        requested = sum_claims(devices for claim, devices in claims.items() if not self._users.get(claim))
        return self._within(requested, consumable=consumable, inqueue={})

    def would_admit(self, minimum: ByClass, *, consumable: bool) -> bool:
        """Whether a job with this minimum may be enqueued; the minimums of Inqueue jobs count too."""
        return self._within(minimum, consumable=consumable, inqueue=self.inqueue)

    def _within(self, requested: ByClass, *, consumable: bool, inqueue: ByClass) -> bool:
        for name, devices in requested.items():
            limit = self.capability.get(name)
            if limit is None:
                continue
            total = devices.clone()
            total.add(self.allocated.get(name) or DeviceClassAmount())
            total.add(inqueue.get(name) or DeviceClassAmount())
            if limit.count > 0 and total.count > limit.count:
                return False
            if consumable and any(
                dimension not in limit.capacity or total.capacity[dimension].compare(limit.capacity[dimension]) > 0
                for dimension in devices.capacity
            ):
                return False
        return True

    def admit(self, minimum: ByClass) -> None:
        add_claims(self.inqueue, minimum)

    def allocate(self, claims: ByClaim) -> None:
        for claim, devices in claims.items():
            users = self._users.get(claim, 0)
            if users == 0:
                add_claims(self.allocated, devices)
            self._users[claim] = users + 1

    def deallocate(self, claims: ByClaim) -> None:
        for claim, devices in claims.items():
            users = self._users.pop(claim, 0)
            if users > 1:
                self._users[claim] = users - 1
                continue
            for name, amount in devices.items():
                if name in self.allocated:
                    self.allocated[name].sub(amount)


def _read_quota(resources: ResourceList) -> ByClass:
    found: ByClass = {}
    for name, text in resources.items():
        dimension, separator, device_class = name.partition(CAPACITY_SEPARATOR)
        if dimension and separator and device_class:
            found.setdefault(device_class, DeviceClassAmount()).capacity[dimension] = parse_quantity(text)
        elif not (dimension and separator) and name.startswith(COUNT_PREFIX) and len(name) > len(COUNT_PREFIX):
            found.setdefault(name.removeprefix(COUNT_PREFIX), DeviceClassAmount()).count = parse_quantity(text).value()
    return found
