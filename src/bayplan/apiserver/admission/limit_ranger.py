"""LimitRanger: defaults and constraints of the LimitRanges of a namespace.

`plugins` calls it for pods and claims. A namespace without LimitRanges costs one lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.resources.pod_resources import Quantities, effective_resources, parse_quantities
from bayplan.codec.quantity import Quantity, parse_quantity

_LIMIT_RANGER_ANNOTATION = "kubernetes.io/limit-ranger"
_NONE = parse_quantity("0")
Constraint = Callable[[str, str, Quantity, Quantities, Quantities], str | None]


def set_pod_defaults(pod: Tree, ranges: Iterable[Tree]) -> None:
    """Set the default requests and limits of the namespace in containers without them."""
    for each in ranges:
        requests, limits = _defaults(each)
        if requests or limits:
            _fill_containers(pod, requests, limits)


def _defaults(limit_range: Tree) -> tuple[Mapping[str, str], Mapping[str, str]]:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for limit in limit_range["spec"].get("limits") or ():
        if limit.get("type") == "Container":
            requests |= limit.get("defaultRequest") or {}
            limits |= limit.get("default") or {}
    return requests, limits


def _fill_containers(pod: Tree, requests: Mapping[str, str], limits: Mapping[str, str]) -> None:
    notes = []
    for field, container_kind in (("containers", "container"), ("initContainers", "init container")):
        for container in pod["spec"].get(field) or ():
            resources = container.setdefault("resources", {})
            for name, given in (("requests", requests), ("limits", limits)):
                own = resources.get(name) or {}
                new = sorted(set(given) - set(own))
                if new:
                    resources[name] = {**own, **{key: given[key] for key in new}}
                    note = f"{', '.join(new)} {name.removesuffix('s')} for {container_kind} {container.get('name', '')}"
                    notes.append(note)
    if notes:
        annotations = pod["metadata"].get("annotations") or {}
        pod["metadata"]["annotations"] = {
            **annotations,
            _LIMIT_RANGER_ANNOTATION: f"LimitRanger plugin set: {'; '.join(notes)}",
        }


def pod_violations(pod: Tree, ranges: Iterable[Tree]) -> list[str]:
    """The constraints that a pod violates, of the first LimitRange with a violation."""
    spec = pod["spec"]
    for each in ranges:
        found: list[str] = []
        for limit in each["spec"].get("limits") or ():
            if limit.get("type") == "Container":
                for field in ("containers", "initContainers"):
                    for container in spec.get(field) or ():
                        resources = container.get("resources") or {}
                        found += _violations(
                            limit,
                            parse_quantities(resources.get("requests")),
                            parse_quantities(resources.get("limits")),
                        )
            elif limit.get("type") == "Pod":
                found += _violations(
                    limit, _pod_level_resources(spec, "requests"), _pod_level_resources(spec, "limits")
                )
        if found:
            return found
    return []


def _pod_level_resources(spec: Tree, field: str) -> Quantities:
    total = effective_resources(spec, field)
    pod_level = parse_quantities((spec.get("resources") or {}).get(field))
    return total | {name: amount for name, amount in pod_level.items() if name in ("cpu", "memory")}


def claim_violations(claim: Tree, ranges: Iterable[Tree]) -> list[str]:
    requests = parse_quantities((claim["spec"].get("resources") or {}).get("requests"))
    for each in ranges:
        found: list[str] = []
        for limit in each["spec"].get("limits") or ():
            if limit.get("type") == "PersistentVolumeClaim":
                found += _check_each(limit, "min", _min_violation, requests, {})
                found += _check_each(limit, "max", _max_request_violation, requests, {})
        if found:
            return found
    return []


def _violations(limit: Tree, requests: Quantities, limits: Quantities) -> list[str]:
    return [
        *_check_each(limit, "min", _min_violation, requests, limits),
        *_check_each(limit, "max", _max_violation, requests, limits),
        *_check_each(limit, "maxLimitRequestRatio", _ratio_violation, requests, limits),
    ]


def _check_each(limit: Tree, field: str, rule: Constraint, requests: Quantities, limits: Quantities) -> list[str]:
    found = (
        rule(limit["type"], name, bound, requests, limits) for name, bound in parse_quantities(limit.get(field)).items()
    )
    return [problem for problem in found if problem]


def _min_violation(kind: str, name: str, bound: Quantity, requests: Quantities, limits: Quantities) -> str | None:
    text = f"minimum {name} usage per {kind} is {bound}"
    if name not in requests:
        return f"{text}.  No request is specified"
    if requests[name].compare(bound) < 0:
        return f"{text}, but request is {requests[name]}"
    if name in limits and limits[name].compare(bound) < 0:
        return f"{text}, but limit is {limits[name]}"
    return None


def _max_violation(kind: str, name: str, bound: Quantity, requests: Quantities, limits: Quantities) -> str | None:
    text = f"maximum {name} usage per {kind} is {bound}"
    if name not in limits:
        return f"{text}.  No limit is specified"
    if limits[name].compare(bound) > 0:
        return f"{text}, but limit is {limits[name]}"
    if name in requests and requests[name].compare(bound) > 0:
        return f"{text}, but request is {requests[name]}"
    return None


def _max_request_violation(kind: str, name: str, bound: Quantity, requests: Quantities, _: Quantities) -> str | None:
    text = f"maximum {name} usage per {kind} is {bound}"
    if name not in requests:
        return f"{text}.  No request is specified"
    return f"{text}, but request is {requests[name]}" if requests[name].compare(bound) > 0 else None


def _ratio_violation(kind: str, name: str, bound: Quantity, requests: Quantities, limits: Quantities) -> str | None:
    text = f"{name} max limit to request ratio per {kind} is {bound}"
    request, limit = requests.get(name, _NONE), limits.get(name, _NONE)
    if request.is_zero():
        return f"{text}, but no request is specified or request is 0"
    if limit.is_zero():
        return f"{text}, but no limit is specified or limit is 0"
    ratio = limit.milli_value() / request.milli_value()
    return f"{text}, but provided ratio is {ratio:f}" if ratio * 1000 > bound.milli_value() else None
