"""QoS class of a pod, computed from cpu and memory as the kubelet does.

Called by plugins for pods with exclusive CPUs and for eviction order. Volcano prefers `status.qosClass`, which the API
server computes by the same rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from bayplan.codec.quantity import Quantity, parse_quantity
from bayplan.objects.core import Pod, ResourceRequirements
from bayplan.objects.meta import ResourceList
from bayplan.objects.resources import CPU, MEMORY

_COMPUTE = (CPU, MEMORY)


class Qos(IntEnum):
    """QoS classes, in eviction order."""

    BEST_EFFORT = 0
    BURSTABLE = 1
    GUARANTEED = 2


def qos_of(pod: Pod) -> Qos:
    """The pod's class. Pod-level requests and limits replace those of the containers."""
    whole = pod.spec.resources
    if whole is not None:
        limited = not whole.limits or len(_positive(whole.limits)) == len(_COMPUTE)
        return _qos_class([whole], limited=limited)
    parts = [container.resources for container in (*pod.spec.containers, *pod.spec.init_containers)]
    return _qos_class(parts, limited=all(len(_positive(part.limits)) == len(_COMPUTE) for part in parts))


def _qos_class(parts: Iterable[ResourceRequirements], *, limited: bool) -> Qos:
    """Compute the class; `limited` means that every part has limits for both cpu and memory."""
    parts = list(parts)
    requests = _sum(part.requests for part in parts)
    limits = _sum(part.limits for part in parts)
    if not requests and not limits:
        return Qos.BEST_EFFORT
    return Qos.GUARANTEED if limited and requests == limits else Qos.BURSTABLE


def _sum(lists: Iterable[ResourceList]) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {}
    for each in lists:
        for name, quantity in _positive(each).items():
            total[name] = total[name].add(quantity) if name in total else quantity
    return total


def _positive(resources: ResourceList) -> dict[str, Quantity]:
    found = {name: parse_quantity(resources[name]) for name in _COMPUTE if name in resources}
    return {name: quantity for name, quantity in found.items() if quantity.sign() > 0}
