"""How much do the containers of a pod ask for together, written as plain trees?

Asked by defaults, quality of service, quotas and limit ranges. `bayplan.objects.resources` answers the same for typed
pods; here nothing is typed, and the limits are asked for as well. A few microseconds a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.codec.quantity import Quantity, QuantityFormat, parse_quantity
from bayplan.objects.resources import is_pod_level

Quantities = dict[str, Quantity]


def round_quantities(amounts: dict[str, str]) -> None:
    """Amounts as they are kept, in place: nothing finer than a thousandth."""
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


def max_quantities(total: Quantities, floor: Mapping[str, Quantity]) -> None:
    for name, amount in floor.items():
        if name not in total or amount.compare(total[name]) > 0:
            total[name] = amount


def restarts_always(container: Mapping[str, Any]) -> bool:
    """Whether an init container stays beside the others once it has started."""
    return container.get("restartPolicy") == "Always"


def effective_resources(spec: Tree, field: str) -> Quantities:
    """What all containers say in `requests` or `limits`, added up as they run."""
    total: Quantities = {}
    for container in spec.get("containers") or ():
        add_quantities(total, _container_quantities(container, field))
    staying: Quantities = {}
    peak: Quantities = {}
    for container in spec.get("initContainers") or ():
        told = _container_quantities(container, field)
        if restarts_always(container):
            add_quantities(total, told)
            add_quantities(staying, told)
            max_quantities(peak, staying)
        else:
            while_it_runs = dict(told)
            add_quantities(while_it_runs, staying)
            max_quantities(peak, while_it_runs)
    max_quantities(total, peak)
    return total


def pod_amounts(spec: Tree, field: str) -> Quantities:
    """What the pod counts for in quotas: pod-level amounts win over its containers', overhead comes on top."""
    total = effective_resources(spec, field)
    whole = (spec.get("resources") or {}).get(field)
    if whole:
        total |= {name: amount for name, amount in parse_quantities(whole).items() if is_pod_level(name)}
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
    """Init containers, then the others."""
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _container_quantities(container: Mapping[str, Any], field: str) -> Quantities:
    return parse_quantities((container.get("resources") or {}).get(field))
