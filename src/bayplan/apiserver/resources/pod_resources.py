"""Sums of the resource requests and limits of a pod, given as a decoded tree.

Used by defaulting, QoS classes, quotas and limit ranges. `bayplan.objects.resources` does the same for typed pods,
without limits. Cost: a few microseconds a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.codec.quantity import Quantity, QuantityFormat, parse_quantity
from bayplan.objects.resources import is_pod_level

Quantities = dict[str, Quantity]


def round_quantities(amounts: dict[str, str]) -> None:
    """Round quantities to thousandths, in place, as they are stored."""
    for name, text in amounts.items():
        if not isinstance(text, str) or text[-1:] in "un" or "e-" in text or "E-" in text:
            quantity = parse_quantity(text)
            exact = Quantity.of_milli(quantity.milli_value(), quantity.format)
            amounts[name] = text if quantity.compare(exact) == 0 and isinstance(text, str) else str(exact)


def parse_quantities(tree: Mapping[str, Any] | None) -> Quantities:
    return {name: parse_quantity(text) for name, text in tree.items()} if tree else {}


def add_quantities(total: Quantities, more: Mapping[str, Quantity]) -> None:
    for name, amount in more.items():
        total[name] = total[name].add(amount) if name in total else amount


def max_quantities(total: Quantities, minimum: Mapping[str, Quantity]) -> None:
    for name, amount in minimum.items():
        if name not in total or amount.compare(total[name]) > 0:
            total[name] = amount


def restarts_always(container: Mapping[str, Any]) -> bool:
    """Whether an init container is a sidecar, which keeps running beside the other containers."""
    return container.get("restartPolicy") == "Always"


def effective_resources(spec: Tree, field: str) -> Quantities:
    """The `requests` or `limits` of all containers, added up in the order in which they run."""
    total: Quantities = {}
    for container in spec.get("containers") or ():
        add_quantities(total, _container_quantities(container, field))
    sidecars: Quantities = {}
    peak: Quantities = {}
    for container in spec.get("initContainers") or ():
        amounts_of_container = _container_quantities(container, field)
        if restarts_always(container):
            add_quantities(total, amounts_of_container)
            add_quantities(sidecars, amounts_of_container)
            max_quantities(peak, sidecars)
        else:
            with_sidecars = dict(amounts_of_container)
            add_quantities(with_sidecars, sidecars)
            max_quantities(peak, with_sidecars)
    max_quantities(total, peak)
    return total


def pod_amounts(spec: Tree, field: str) -> Quantities:
    """The amounts of the pod for quotas: pod-level resources replace those of containers; overhead is added."""
    total = effective_resources(spec, field)
    pod_level = (spec.get("resources") or {}).get(field)
    if pod_level:
        total |= {name: amount for name, amount in parse_quantities(pod_level).items() if is_pod_level(name)}
    overhead = parse_quantities(spec.get("overhead"))
    if field == "requests":
        add_quantities(total, overhead)
    else:
        for name, amount in overhead.items():
            if name in total and not total[name].is_zero():
                total[name] = total[name].add(amount)
    return total


def format_quantities(found: Mapping[str, Quantity]) -> dict[str, str]:
    return {name: str(amount) for name, amount in found.items()}


def count_quantity(number: int) -> Quantity:
    return Quantity.of(number, QuantityFormat.DECIMAL_SI)


def init_and_app_containers(spec: Mapping[str, Any]) -> Iterable[Tree]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _container_quantities(container: Mapping[str, Any], field: str) -> Quantities:
    return parse_quantities((container.get("resources") or {}).get(field))
