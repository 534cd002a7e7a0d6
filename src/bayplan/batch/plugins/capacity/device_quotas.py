"""Does a queue have devices left, of those that pods get through resource claims?

Part of capacity. A queue limits a device class by `deviceclass/<class>` in its capability (a count) and by
`<dimension>.deviceclass/<class>` (an amount of what devices share out, looked at only if that is switched on). A class
that the capability does not name has no limit. A claim that several pods of a queue share counts once.
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
    """The device limits of a queue, and what it has of them."""

    def __init__(self, capability: ByClass) -> None:
        self.capability = capability
        self.allocated: ByClass = {}
        self.inqueue: ByClass = {}
        self._users: dict[str, int] = {}  # of claims

    @classmethod
    def of(cls, spec: QueueSpec) -> DeviceQuota | None:
        """None for a queue that says nothing of device classes."""
        named = [_read_quota(each) for each in (spec.capability, spec.deserved, spec.guarantee.resource)]
        return cls(named[0]) if any(named) else None

    def clone(self) -> DeviceQuota:
        twin = DeviceQuota(self.capability)
        twin.allocated = {name: devices.clone() for name, devices in self.allocated.items()}
        twin.inqueue = {name: devices.clone() for name, devices in self.inqueue.items()}
        twin._users = dict(self._users)
        return twin

    def has_room(self, claims: ByClaim, *, consumable: bool) -> bool:
        """Whether a task with these claims may come; claims that are in use here already cost nothing."""
        asked = sum_claims(devices for claim, devices in claims.items() if not self._users.get(claim))
        return self._within(asked, consumable=consumable, inqueue={})

    def would_admit(self, minimum: ByClass, *, consumable: bool) -> bool:
        """Whether a job with this minimum may come in, those that are in but have not started counted."""
        return self._within(minimum, consumable=consumable, inqueue=self.inqueue)

    def _within(self, asked: ByClass, *, consumable: bool, inqueue: ByClass) -> bool:
        for name, devices in asked.items():
            most = self.capability.get(name)
            if most is None:
                continue
            future = devices.clone()
            future.add(self.allocated.get(name) or DeviceClassAmount())
            future.add(inqueue.get(name) or DeviceClassAmount())
            if most.count > 0 and future.count > most.count:
                return False
            if consumable and any(
                dimension not in most.capacity or future.capacity[dimension].compare(most.capacity[dimension]) > 0
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
