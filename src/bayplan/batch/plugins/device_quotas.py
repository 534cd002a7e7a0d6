"""Does a queue have devices left, of those that pods get through resource claims?

Part of capacity. A queue limits a device class by `deviceclass/<class>` in its capability (a count) and by
`<dimension>.deviceclass/<class>` (an amount of what devices share out, looked at only if that is switched on). A class
that the capability does not name has no limit. A claim that several pods of a queue share counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bayplan.batch.jobs import Job
from bayplan.batch.tasks import Task
from bayplan.objects.core import Pod, PodResourceClaim
from bayplan.objects.meta import ResourceList
from bayplan.objects.quantity import Quantity, parse_quantity
from bayplan.objects.resource import DeviceRequest, ResourceClaim
from bayplan.objects.volcano import QueueSpec

COUNT_PREFIX = "deviceclass/"
CAPACITY_SEPARATOR = ".deviceclass/"
EXCEEDED = "dra-resource-exceeded"
ALL_DEVICES = "All"


@dataclass(slots=True)
class Devices:
    """Some devices of one class."""

    count: int = 0
    capacity: dict[str, Quantity] = field(default_factory=dict)

    def add(self, other: Devices, times: int = 1) -> None:
        self.count += other.count * times
        for name, quantity in other.capacity.items():
            for _ in range(max(times, 1)):
                self.capacity[name] = self.capacity.get(name, Quantity()).add(quantity)

    def sub(self, other: Devices) -> None:
        """Take away, never below nothing."""
        self.count = max(self.count - other.count, 0)
        for name, quantity in other.capacity.items():
            if name in self.capacity:
                left = self.capacity[name].sub(quantity)
                self.capacity[name] = left if left.sign() >= 0 else Quantity()

    def clone(self) -> Devices:
        return Devices(self.count, dict(self.capacity))


ByClass = dict[str, Devices]
ByClaim = Mapping[str, ByClass]


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
        named = [_read(each) for each in (spec.capability, spec.deserved, spec.guarantee.resource)]
        return cls(named[0]) if any(named) else None

    def clone(self) -> DeviceQuota:
        twin = DeviceQuota(self.capability)
        twin.allocated = {name: devices.clone() for name, devices in self.allocated.items()}
        twin.inqueue = {name: devices.clone() for name, devices in self.inqueue.items()}
        twin._users = dict(self._users)
        return twin

    def has_room(self, claims: ByClaim, *, consumable: bool) -> bool:
        """Whether a task with these claims may come; claims that are in use here already cost nothing."""
        asked = merged(devices for claim, devices in claims.items() if not self._users.get(claim))
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
            future.add(self.allocated.get(name) or Devices())
            future.add(inqueue.get(name) or Devices())
            if most.count > 0 and future.count > most.count:
                return False
            if consumable and any(
                dimension not in most.capacity or future.capacity[dimension].compare(most.capacity[dimension]) > 0
                for dimension in devices.capacity
            ):
                return False
        return True

    def admit(self, minimum: ByClass) -> None:
        _merge(self.inqueue, minimum)

    def hold(self, claims: ByClaim) -> None:
        for claim, devices in claims.items():
            users = self._users.get(claim, 0)
            if users == 0:
                _merge(self.allocated, devices)
            self._users[claim] = users + 1

    def free(self, claims: ByClaim) -> None:
        for claim, devices in claims.items():
            users = self._users.pop(claim, 0)
            if users > 1:
                self._users[claim] = users - 1
                continue
            for name, amount in devices.items():
                if name in self.allocated:
                    self.allocated[name].sub(amount)


class DeviceAsks:
    """What tasks and jobs ask for through resource claims."""

    def __init__(self, claims: Mapping[str, ResourceClaim], *, consumable: bool) -> None:
        self._claims = claims
        self._consumable = consumable
        self._known: dict[str, ByClaim] = {}

    def of(self, task: Task) -> ByClaim:
        """By claim; nothing as long as one of the pod's claims is not there."""
        if not task.pod.spec.resource_claims:
            return {}
        found = self._known.get(task.uid)
        if found is None:
            found = self._known[task.uid] = self._read(task.pod)
        return found

    def minimum(self, job: Job) -> ByClass:
        """What the smallest number of tasks that lets the job start asks for; shared claims count for each of them."""
        asking = [task for task in job.tasks.values() if self.of(task)]
        total: ByClass = {}
        if not job.task_min_available:
            first = sorted(asking, key=lambda task: (task.namespace, task.name, task.uid))
            for task in first[: max(job.min_available, 0)]:
                _merge(total, merged(self.of(task).values()))
            return total
        by_role = {task.role: task for task in reversed(asking)}
        for role, task in by_role.items():
            times = job.task_min_available.get(role, 0)
            if times > 0:
                _merge(total, merged(self.of(task).values()), times)
        return total

    def _read(self, pod: Pod) -> ByClaim:
        found: dict[str, ByClass] = {}
        for reference in pod.spec.resource_claims:
            name = _claim_name(pod, reference)
            claim = self._claims.get(f"{pod.namespace}/{name}") if name else None
            if claim is None:
                return {}
            asked: ByClass = {}
            for request in claim.spec.devices.requests:
                _merge(asked, self._requested(request))
            if asked:
                found[f"{pod.namespace}/{name}"] = asked
        return found

    def _requested(self, request: DeviceRequest) -> ByClass:
        """Requests with alternatives, or for all devices of a node, cannot be told before they are granted."""
        exactly = request.exactly
        if exactly is None or request.first_available or exactly.allocation_mode == ALL_DEVICES:
            return {}
        if not exactly.device_class_name:
            return {}
        count = exactly.count or 1
        devices = Devices(count)
        if self._consumable and exactly.capacity is not None:
            each = {name: parse_quantity(text) for name, text in exactly.capacity.requests.items()}
            devices.add(Devices(0, each), times=count)
        return {exactly.device_class_name: devices}


def merged(parts: Iterable[ByClass]) -> ByClass:
    total: ByClass = {}
    for part in parts:
        _merge(total, part)
    return total


def _merge(total: ByClass, part: ByClass, times: int = 1) -> None:
    for name, devices in part.items():
        total.setdefault(name, Devices()).add(devices, times)


def _read(resources: ResourceList) -> ByClass:
    found: ByClass = {}
    for name, text in resources.items():
        dimension, separator, device_class = name.partition(CAPACITY_SEPARATOR)
        if dimension and separator and device_class:
            found.setdefault(device_class, Devices()).capacity[dimension] = parse_quantity(text)
        elif not (dimension and separator) and name.startswith(COUNT_PREFIX) and len(name) > len(COUNT_PREFIX):
            found.setdefault(name.removeprefix(COUNT_PREFIX), Devices()).count = parse_quantity(text).value()
    return found


def _claim_name(pod: Pod, reference: PodResourceClaim) -> str:
    if reference.resource_claim_name is not None:
        return reference.resource_claim_name
    for status in pod.status.resource_claim_statuses:
        if status.name == reference.name and status.resource_claim_name is not None:
            return status.resource_claim_name
    return ""
