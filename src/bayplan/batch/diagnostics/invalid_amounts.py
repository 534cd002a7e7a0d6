"""Check of the amounts of pod groups and queues: invalid or negative quantities.

Called when such an object is added or changes, and by the plugin that reads quotas. The API server accepts most of
these values, because the kinds are custom resources. An invalid amount is removed from the object and reported, so that
no plugin fails on it. A negative amount is removed, too, because it would add resources for all other queues. Volcano's
webhook rejects negative amounts of queues, but not of pod groups. Cost: one check per amount.
"""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.codec.quantity import QuantityError, parse_quantity
from bayplan.objects.meta import ResourceList
from bayplan.objects.volcano.types import PodGroup, Queue


class AmountReader:
    """Checks the amounts of one object."""

    def __init__(self, title: str) -> None:
        self._title = title
        self.faults: list[str] = []

    def read(self, field: str, amounts: ResourceList) -> ResourceList:
        """The valid, non-negative amounts; the same object if all are valid."""
        bad = {name: fault for name, text in amounts.items() if (fault := _amount_error(text))}
        for name, fault in bad.items():
            self.faults.append(f'{self._title}: {field}.{name} is "{amounts[name]}", {fault}; it counts as missing')
        return {name: text for name, text in amounts.items() if name not in bad} if bad else amounts


def with_valid_amounts(group: PodGroup) -> tuple[PodGroup, list[str]]:
    """The group with its valid amounts, and the errors."""
    if not group.spec.min_resources:
        return group, []
    reader = AmountReader(f"pod group {group.key}")
    amounts = reader.read("minResources", group.spec.min_resources)
    if reader.faults:
        group = replace(group, spec=replace(group.spec, min_resources=amounts))
    return group, reader.faults


def queue_with_valid_amounts(queue: Queue) -> tuple[Queue, list[str]]:
    """The queue with its valid amounts, and the errors."""
    reader, spec, status = AmountReader(f"queue {queue.name}"), queue.spec, queue.status
    capability = reader.read("capability", spec.capability)
    deserved = reader.read("deserved", spec.deserved)
    guarantee = reader.read("guarantee.resource", spec.guarantee.resource)
    allocated = reader.read("status.allocated", status.allocated)
    weight = spec.weight
    if weight < 0:
        reader.faults.append(f"queue {queue.name}: weight is {weight}, which is below zero; it counts as 1")
        weight = 1
    if reader.faults:
        valid_guarantee = replace(spec.guarantee, resource=guarantee)
        spec = replace(spec, weight=weight, capability=capability, deserved=deserved, guarantee=valid_guarantee)
        queue = replace(queue, spec=spec, status=replace(status, allocated=allocated))
    return queue, reader.faults


def _amount_error(text: str | float) -> str:
    """The error of an amount; "" if it is valid."""
    try:
        amount = parse_quantity(text)
    except QuantityError:
        return "not a quantity such as 500m or 1.5Gi"
    return "which is below zero" if amount.sign() < 0 else ""
