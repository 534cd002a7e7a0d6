"""What do the LimitRanges of a namespace add to a pod, and what do they refuse?

Asked by admission for pods and claims. A namespace without LimitRanges costs one lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.resources.pod_resources import Amounts, amounts, effective
from bayplan.codec.quantity import Quantity, parse_quantity

_NOTE = "kubernetes.io/limit-ranger"
_NONE = parse_quantity("0")
Constraint = Callable[[str, str, Quantity, Amounts, Amounts], str | None]


def fill_pod(pod: Tree, ranges: Iterable[Tree]) -> None:
    """Give containers that do not say how much the amounts that the namespace has for them."""
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
    for field, called in (("containers", "container"), ("initContainers", "init container")):
        for container in pod["spec"].get(field) or ():
            resources = container.setdefault("resources", {})
            for name, given in (("requests", requests), ("limits", limits)):
                own = resources.get(name) or {}
                new = sorted(set(given) - set(own))
                if new:
                    resources[name] = {**own, **{key: given[key] for key in new}}
                    what = f"{', '.join(new)} {name.removesuffix('s')} for {called} {container.get('name', '')}"
                    notes.append(what)
    if notes:
        annotations = pod["metadata"].get("annotations") or {}
        pod["metadata"]["annotations"] = {**annotations, _NOTE: f"LimitRanger plugin set: {'; '.join(notes)}"}


def pod_problems(pod: Tree, ranges: Iterable[Tree]) -> list[str]:
    """What a pod asks for and may not have, for the first LimitRange that refuses it."""
    spec = pod["spec"]
    for each in ranges:
        found: list[str] = []
        for limit in each["spec"].get("limits") or ():
            if limit.get("type") == "Container":
                for field in ("containers", "initContainers"):
                    for container in spec.get(field) or ():
                        resources = container.get("resources") or {}
                        found += _problems(limit, amounts(resources.get("requests")), amounts(resources.get("limits")))
            elif limit.get("type") == "Pod":
                found += _problems(limit, _whole(spec, "requests"), _whole(spec, "limits"))
        if found:
            return found
    return []


def _whole(spec: Tree, field: str) -> Amounts:
    total = effective(spec, field)
    told = amounts((spec.get("resources") or {}).get(field))
    return total | {name: amount for name, amount in told.items() if name in ("cpu", "memory")}


def claim_problems(claim: Tree, ranges: Iterable[Tree]) -> list[str]:
    requests = amounts((claim["spec"].get("resources") or {}).get("requests"))
    for each in ranges:
        found: list[str] = []
        for limit in each["spec"].get("limits") or ():
            if limit.get("type") == "PersistentVolumeClaim":
                found += _each(limit, "min", _least, requests, {})
                found += _each(limit, "max", _most_request, requests, {})
        if found:
            return found
    return []


def _problems(limit: Tree, requests: Amounts, limits: Amounts) -> list[str]:
    return [
        *_each(limit, "min", _least, requests, limits),
        *_each(limit, "max", _most, requests, limits),
        *_each(limit, "maxLimitRequestRatio", _ratio, requests, limits),
    ]


def _each(limit: Tree, field: str, rule: Constraint, requests: Amounts, limits: Amounts) -> list[str]:
    found = (rule(limit["type"], name, bound, requests, limits) for name, bound in amounts(limit.get(field)).items())
    return [problem for problem in found if problem]


def _least(kind: str, name: str, bound: Quantity, requests: Amounts, limits: Amounts) -> str | None:
    told = f"minimum {name} usage per {kind} is {bound}"
    if name not in requests:
        return f"{told}.  No request is specified"
    if requests[name].compare(bound) < 0:
        return f"{told}, but request is {requests[name]}"
    if name in limits and limits[name].compare(bound) < 0:
        return f"{told}, but limit is {limits[name]}"
    return None


def _most(kind: str, name: str, bound: Quantity, requests: Amounts, limits: Amounts) -> str | None:
    told = f"maximum {name} usage per {kind} is {bound}"
    if name not in limits:
        return f"{told}.  No limit is specified"
    if limits[name].compare(bound) > 0:
        return f"{told}, but limit is {limits[name]}"
    if name in requests and requests[name].compare(bound) > 0:
        return f"{told}, but request is {requests[name]}"
    return None


def _most_request(kind: str, name: str, bound: Quantity, requests: Amounts, limits: Amounts) -> str | None:  # noqa: ARG001
    told = f"maximum {name} usage per {kind} is {bound}"
    if name not in requests:
        return f"{told}.  No request is specified"
    return f"{told}, but request is {requests[name]}" if requests[name].compare(bound) > 0 else None


def _ratio(kind: str, name: str, bound: Quantity, requests: Amounts, limits: Amounts) -> str | None:
    told = f"{name} max limit to request ratio per {kind} is {bound}"
    request, limit = requests.get(name, _NONE), limits.get(name, _NONE)
    if request.is_zero():
        return f"{told}, but no request is specified or request is 0"
    if limit.is_zero():
        return f"{told}, but no limit is specified or limit is 0"
    ratio = limit.milli_value() / request.milli_value()
    return f"{told}, but provided ratio is {ratio:f}" if ratio * 1000 > bound.milli_value() else None
