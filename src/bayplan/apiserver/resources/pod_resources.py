"""How much do the containers of a pod ask for together, written as plain trees?

Asked by defaults, quality of service, quotas and limit ranges. `bayplan.objects.resources` answers the same for typed
pods; here nothing is typed, and the limits are asked for as well. A few microseconds a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.codec.quantity import Format, Quantity, parse_quantity
from bayplan.objects.resources import is_pod_level

Amounts = dict[str, Quantity]


def rounded_list(amounts: dict[str, str]) -> None:
    """Amounts as they are kept, in place: nothing finer than a thousandth."""
    for name, text in amounts.items():
        if not isinstance(text, str) or text[-1:] in "un" or "e-" in text or "E-" in text:
            quantity = parse_quantity(text)
            exact = Quantity.of_milli(quantity.milli_value(), quantity.format)
            amounts[name] = text if quantity.compare(exact) == 0 and isinstance(text, str) else str(exact)


def amounts(tree: Mapping[str, Any] | None) -> Amounts:
    return {name: parse_quantity(text) for name, text in tree.items()} if tree else {}


def added(total: Amounts, more: Mapping[str, Quantity]) -> None:
    for name, amount in more.items():
        total[name] = total[name].add(amount) if name in total else amount


def raised(total: Amounts, floor: Mapping[str, Quantity]) -> None:
    for name, amount in floor.items():
        if name not in total or amount.compare(total[name]) > 0:
            total[name] = amount


def restarts_always(container: Mapping[str, Any]) -> bool:
    """Whether an init container stays beside the others once it has started."""
    return container.get("restartPolicy") == "Always"


def effective(spec: Tree, field: str) -> Amounts:
    """What all containers say in `requests` or `limits`, added up as they run."""
    total: Amounts = {}
    for container in spec.get("containers") or ():
        added(total, _told(container, field))
    staying: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        told = _told(container, field)
        if restarts_always(container):
            added(total, told)
            added(staying, told)
            raised(peak, staying)
        else:
            while_it_runs = dict(told)
            added(while_it_runs, staying)
            raised(peak, while_it_runs)
    raised(total, peak)
    return total


def pod_amounts(spec: Tree, field: str) -> Amounts:
    """What the pod counts for in quotas: pod-level amounts win over its containers', overhead comes on top."""
    total = effective(spec, field)
    whole = (spec.get("resources") or {}).get(field)
    if whole:
        total |= {name: amount for name, amount in amounts(whole).items() if is_pod_level(name)}
    overhead = amounts(spec.get("overhead"))
    if field == "requests":
        added(total, overhead)
    else:
        for name, amount in overhead.items():
            if name in total and not total[name].is_zero():
                total[name] = total[name].add(amount)
    return total


def as_texts(found: Mapping[str, Quantity]) -> dict[str, str]:
    return {name: str(amount) for name, amount in found.items()}


def count(number: int) -> Quantity:
    return Quantity.of(number, Format.DECIMAL_SI)


def containers_of(spec: Mapping[str, Any]) -> Iterable[Tree]:
    """Init containers, then the others."""
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _told(container: Mapping[str, Any], field: str) -> Amounts:
    return amounts((container.get("resources") or {}).get(field))
