"""QoS class of a pod. Computed at its creation and at a resize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.resources.pod_resources import Quantities, add_quantities, init_and_app_containers
from bayplan.codec.quantity import parse_quantity


def qos_class(spec: Tree) -> str:
    """Guaranteed, Burstable or BestEffort; only cpu and memory count."""
    requests: Quantities = {}
    limits: Quantities = {}
    guaranteed = True
    if spec.get("resources") is not None:
        requests, limits = _positive(spec["resources"].get("requests")), _positive(spec["resources"].get("limits"))
        guaranteed = not limits or len(limits) == 2
    else:
        for container in init_and_app_containers(spec):
            resources = container.get("resources") or {}
            own = _positive(resources.get("limits"))
            add_quantities(requests, _positive(resources.get("requests")))
            add_quantities(limits, own)
            guaranteed = guaranteed and len(own) == 2
    if not requests and not limits:
        return "BestEffort"
    same = requests.keys() == limits.keys() and all(limits[name].compare(requests[name]) == 0 for name in requests)
    return "Guaranteed" if guaranteed and same else "Burstable"


def _positive(amounts: Mapping[str, Any] | None) -> Quantities:
    if not amounts:
        return {}
    found = {name: parse_quantity(amounts[name]) for name in ("cpu", "memory") if name in amounts}
    return {name: amount for name, amount in found.items() if amount.sign() > 0}
