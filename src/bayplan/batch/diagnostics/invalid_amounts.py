"""Which amounts of a pod group or a queue are no quantities or below zero, and what counts then?

Asked when such an object comes or changes, and of quotas by the plugin that reads them. The API server lets most of
them pass: these kinds are custom ones. What cannot be read is left out of the object, and a sentence says so, instead
of a plugin that breaks on it. So is what is below zero, which would give to everybody else: Volcano's webhook refuses
it of queues, but not of groups.
Cost: a look at each amount.
"""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.codec.quantity import QuantityError, parse_quantity
from bayplan.objects.meta import ResourceList
from bayplan.objects.volcano.types import PodGroup, Queue


class AmountReader:
    """Reads the amounts of one object."""

    def __init__(self, title: str) -> None:
        self._title = title
        self.faults: list[str] = []

    def read(self, field: str, amounts: ResourceList) -> ResourceList:
        """The amounts that are quantities and not below zero; the same object where all are."""
        bad = {name: fault for name, text in amounts.items() if (fault := _amount_error(text))}
        for name, fault in bad.items():
            self.faults.append(f'{self._title}: {field}.{name} is "{amounts[name]}", {fault}; it counts as missing')
        return {name: text for name, text in amounts.items() if name not in bad} if bad else amounts


def with_valid_amounts(group: PodGroup) -> tuple[PodGroup, list[str]]:
    """The group with what can be read of it, and what cannot."""
    if not group.spec.min_resources:
        return group, []
    reader = AmountReader(f"pod group {group.key}")
    amounts = reader.read("minResources", group.spec.min_resources)
    if reader.faults:
        group = replace(group, spec=replace(group.spec, min_resources=amounts))
    return group, reader.faults


def queue_with_valid_amounts(queue: Queue) -> tuple[Queue, list[str]]:
    """The queue with what can be read of it, and what cannot."""
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
        promised = replace(spec.guarantee, resource=guarantee)
        spec = replace(spec, weight=weight, capability=capability, deserved=deserved, guarantee=promised)
        queue = replace(queue, spec=spec, status=replace(status, allocated=allocated))
    return queue, reader.faults


def _amount_error(text: str | float) -> str:
    """What is wrong with an amount; empty if nothing is."""
    try:
        amount = parse_quantity(text)
    except QuantityError:
        return "not a quantity such as 500m or 1.5Gi"
    return "which is below zero" if amount.sign() < 0 else ""
