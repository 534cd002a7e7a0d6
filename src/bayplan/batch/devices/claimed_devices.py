"""Which devices do tasks ask for through resource claims?

Asked by `capacity`, which limits them by queue, and when a session closes, for what queues are told to hold. Devices
are counted by their class. Cost: nothing for a pod without claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bayplan.batch.model.jobs import Job
from bayplan.batch.model.tasks import Task
from bayplan.codec.quantity import Quantity, parse_quantity
from bayplan.objects.core import Pod, PodResourceClaim
from bayplan.objects.resource import DeviceRequest, ResourceClaim

COUNT_PREFIX = "deviceclass/"
"""With the name of a class: how many devices of it, where amounts of a queue are listed."""

ALL_DEVICES = "All"


@dataclass(slots=True)
class DeviceClassAmount:
    """Some devices of one class."""

    count: int = 0
    capacity: dict[str, Quantity] = field(default_factory=dict)

    def add(self, other: DeviceClassAmount, times: int = 1) -> None:
        self.count += other.count * times
        for name, quantity in other.capacity.items():
            for _ in range(max(times, 1)):
                self.capacity[name] = self.capacity.get(name, Quantity()).add(quantity)

    def sub(self, other: DeviceClassAmount) -> None:
        """Take away, never below nothing."""
        self.count = max(self.count - other.count, 0)
        for name, quantity in other.capacity.items():
            if name in self.capacity:
                left = self.capacity[name].sub(quantity)
                self.capacity[name] = left if left.sign() >= 0 else Quantity()

    def clone(self) -> DeviceClassAmount:
        return DeviceClassAmount(self.count, dict(self.capacity))


ByClass = dict[str, DeviceClassAmount]
ByClaim = Mapping[str, ByClass]


class ClaimedDeviceRequests:
    """What tasks and jobs ask for through resource claims."""

    def __init__(self, claims: Mapping[str, ResourceClaim], *, consumable: bool) -> None:
        self._claims = claims
        self._consumable = consumable
        self._known: dict[str, ByClaim] = {}

    @property
    def has_claims(self) -> bool:
        """Whether the cluster has any; where not, nobody asks for anything."""
        return bool(self._claims)

    def of_task(self, task: Task) -> ByClaim:
        """By claim; nothing as long as one of the pod's claims is not there."""
        if not task.pod.spec.resource_claims:
            return {}
        found = self._known.get(task.uid)
        if found is None:
            found = self._known[task.uid] = self._read(task.pod)
        return found

    def of_job_minimum(self, job: Job) -> ByClass:
        """What the smallest number of tasks that lets the job start asks for; shared claims count for each of them."""
        asking = [task for task in job.tasks.values() if self.of_task(task)]
        total: ByClass = {}
        if not job.task_min_available:
            first = sorted(asking, key=lambda task: (task.namespace, task.name, task.uid))
            for task in first[: max(job.min_available, 0)]:
                add_claims(total, sum_claims(self.of_task(task).values()))
            return total
        by_role = {task.role: task for task in reversed(asking)}
        for role, task in by_role.items():
            times = job.task_min_available.get(role, 0)
            if times > 0:
                add_claims(total, sum_claims(self.of_task(task).values()), times)
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
                add_claims(asked, self._requested(request))
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
        devices = DeviceClassAmount(count)
        if self._consumable and exactly.capacity is not None:
            each = {name: parse_quantity(text) for name, text in exactly.capacity.requests.items()}
            devices.add(DeviceClassAmount(0, each), times=count)
        return {exactly.device_class_name: devices}


def sum_claims(parts: Iterable[ByClass]) -> ByClass:
    total: ByClass = {}
    for part in parts:
        add_claims(total, part)
    return total


def add_claims(total: ByClass, part: ByClass, times: int = 1) -> None:
    for name, devices in part.items():
        total.setdefault(name, DeviceClassAmount()).add(devices, times)


def _claim_name(pod: Pod, reference: PodResourceClaim) -> str:
    if reference.resource_claim_name is not None:
        return reference.resource_claim_name
    for status in pod.status.resource_claim_statuses:
        if status.name == reference.name and status.resource_claim_name is not None:
            return status.resource_claim_name
    return ""
