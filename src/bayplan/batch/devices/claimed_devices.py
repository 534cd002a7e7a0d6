"""Devices that tasks request through resource claims, counted by device class.

Called by `capacity`, which limits them per queue, and when a session closes, for the usage in queue statuses. Cost:
zero for a pod without claims.
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
"""Prefix of a device class name in the amounts of a queue: number of devices of that class."""

ALL_DEVICES = "All"


@dataclass(slots=True)
class DeviceClassAmount:
    """Devices of one class: their number and capacity."""

    count: int = 0
    capacity: dict[str, Quantity] = field(default_factory=dict)

    def add(self, other: DeviceClassAmount, times: int = 1) -> None:
        self.count += other.count * times
        for name, quantity in other.capacity.items():
            for _ in range(max(times, 1)):
                self.capacity[name] = self.capacity.get(name, Quantity()).add(quantity)

    def sub(self, other: DeviceClassAmount) -> None:
        """Subtract, never below zero."""
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
    """Device requests of tasks and jobs through resource claims."""

    def __init__(self, claims: Mapping[str, ResourceClaim], *, consumable: bool) -> None:
        self._claims = claims
        self._consumable = consumable
        self._known: dict[str, ByClaim] = {}

    @property
    def has_claims(self) -> bool:
        return bool(self._claims)

    def of_task(self, task: Task) -> ByClaim:
        """By claim; empty while one of the pod's claims is missing."""
        if not task.pod.spec.resource_claims:
            return {}
        found = self._known.get(task.uid)
        if found is None:
            found = self._known[task.uid] = self._read(task.pod)
        return found

    def of_job_minimum(self, job: Job) -> ByClass:
        """The request of the minimum number of tasks that starts the job. A shared claim counts for each task."""
        claiming = [task for task in job.tasks.values() if self.of_task(task)]
        total: ByClass = {}
        if not job.task_min_available:
            first = sorted(claiming, key=lambda task: (task.namespace, task.name, task.uid))
            for task in first[: max(job.min_available, 0)]:
                add_claims(total, sum_claims(self.of_task(task).values()))
            return total
        by_role = {task.role: task for task in reversed(claiming)}
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
            requested: ByClass = {}
            for request in claim.spec.devices.requests:
                add_claims(requested, self._requested_devices(request))
            if requested:
                found[f"{pod.namespace}/{name}"] = requested
        return found

    def _requested_devices(self, request: DeviceRequest) -> ByClass:
        """The devices of one request. Requests with alternatives, or for all devices, are unknown before allocation and
        count as none."""
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
