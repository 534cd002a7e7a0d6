"""How much of a ResourceQuota is used, and would this object exceed it?

Asked by admission, and by whoever keeps the status of quotas. Usage is counted from what is stored, so that it is
never behind; a namespace without quotas costs one lookup, one with a quota a walk over its objects of that kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.apiserver.resources.kinds import BUILT_IN, Resource, Tree
from bayplan.apiserver.resources.lookup import Lookup, built_in
from bayplan.apiserver.resources.pod_resources import (
    Amounts,
    added,
    amounts,
    as_texts,
    count,
    pod_amounts,
)
from bayplan.apiserver.resources.qos import quality_of_service
from bayplan.objects.quotas import (
    CLASS_MARK,
    PodTraits,
    compute_usage,
    in_scope,
    scopes_of,
    service_usage,
    storage_usage,
)
from bayplan.objects.resources import is_native

_ASKED_OF_ALL = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
_COUNTED = {
    "pods": "Pod",
    "services": "Service",
    "secrets": "Secret",
    "configmaps": "ConfigMap",
    "resourcequotas": "ResourceQuota",
    "replicationcontrollers": "ReplicationController",
    "persistentvolumeclaims": "PersistentVolumeClaim",
}


def usage(resource: Resource, item: Tree) -> Amounts:
    """What one object counts for, by every name that a quota may use."""
    found: Amounts = {f"count/{resource.qualified}": count(1)}
    if resource.group:
        return found
    if resource.kind == "Pod":
        return found | (_pod_usage(item) if _counts(item) else {})
    if resource.plural in _COUNTED:
        found[resource.plural] = count(1)
    if resource.kind == "Service":
        found |= service_usage(item["spec"])
    elif resource.kind == "PersistentVolumeClaim":
        found |= _claim_usage(item["spec"])
    return found


def _counts(pod: Tree) -> bool:
    """A pod that has ended holds no resources; it is one object still."""
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _pod_usage(pod: Tree) -> Amounts:
    spec = pod["spec"]
    return {"pods": count(1), **compute_usage(pod_amounts(spec, "requests"), pod_amounts(spec, "limits"))}


def _claim_usage(spec: Tree) -> Amounts:
    size = amounts((spec.get("resources") or {}).get("requests")).get("storage")
    return storage_usage(spec.get("storageClassName"), size)


# Which objects a quota means


def matches(quota: Tree, resource: Resource, item: Tree) -> bool:
    """Whether the quota's scopes let it count the object; they mean pods alone."""
    scopes = scopes_of(quota["spec"])
    if not scopes:
        return True
    if resource.kind != "Pod" or resource.group:
        return False
    traits = _traits(item["spec"])
    return all(in_scope(each, traits) for each in scopes)


def _traits(spec: Tree) -> PodTraits:
    return PodTraits(
        ends=spec.get("activeDeadlineSeconds") is not None,
        best_effort=quality_of_service(spec) == "BestEffort",
        priority_class=spec.get("priorityClassName") or "",
        crosses_namespaces=_crosses_namespaces(spec),
    )


def _crosses_namespaces(spec: Tree) -> bool:
    for kind in ("podAffinity", "podAntiAffinity"):
        pods = (spec.get("affinity") or {}).get(kind) or {}
        terms = list(pods.get("requiredDuringSchedulingIgnoredDuringExecution") or ())
        terms += [
            each.get("podAffinityTerm") or {}
            for each in pods.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        ]
        if any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms):
            return True
    return False


# The sum, and the question


def used(quota: Tree, lookup: Lookup) -> Amounts:
    """What the objects of the namespace use of what the quota limits."""
    hard = quota["spec"].get("hard") or {}
    total: Amounts = {name: count(0) for name in hard}
    for resource in _resources_of(hard):
        for item in lookup.list(resource, quota["metadata"]["namespace"]):
            if matches(quota, resource, item):
                mine = usage(resource, item)
                added(total, {name: amount for name, amount in mine.items() if name in hard})
    return total


def _resources_of(hard: Mapping[str, Any]) -> Iterable[Resource]:
    found: dict[str, Resource] = {}
    for name in hard:
        if name.startswith("count/"):
            wanted = name.removeprefix("count/")
            found.update((wanted, each) for each in BUILT_IN if each.qualified == wanted and each.stored)
        elif name in _COUNTED:
            found[name] = built_in(_COUNTED[name])
        elif name.startswith("services."):
            found["services"] = built_in("Service")
        elif name == "requests.storage" or CLASS_MARK in name:
            found["persistentvolumeclaims"] = built_in("PersistentVolumeClaim")
        else:
            found["pods"] = built_in("Pod")
    return {each.qualified: each for each in found.values()}.values()


def status_of(quota: Tree, lookup: Lookup) -> Tree:
    """The status that a quota should have."""
    return {"hard": dict(quota["spec"].get("hard") or {}), "used": as_texts(used(quota, lookup))}


def problem(quota: Tree, resource: Resource, item: Tree, old: Tree | None, lookup: Lookup) -> str | None:
    """Why the quota refuses the object, or None."""
    hard = amounts(quota["spec"].get("hard"))
    mine = {name: amount for name, amount in usage(resource, item).items() if name in hard}
    if not mine and not _missing_names(hard, resource):
        return None
    if not matches(quota, resource, item):
        return None
    name = quota["metadata"]["name"]
    if resource.kind == "Pod" and old is None and (missing := _missing(hard, item["spec"])):
        return f"failed quota: {name}: must specify {missing}"
    if old is not None and matches(quota, resource, old):
        before = usage(resource, old)
        mine = {key: amount.sub(before[key]) if key in before else amount for key, amount in mine.items()}
    mine = {key: amount for key, amount in mine.items() if amount.sign() > 0}
    if not mine:
        return None
    sums = used(quota, lookup)
    over = sorted(key for key, amount in mine.items() if sums[key].add(amount).compare(hard[key]) > 0)
    if not over:
        return None
    told = (f"{word}: {','.join(f'{key}={table[key]}' for key in over)}" for word, table in _columns(mine, sums, hard))
    return f"exceeded quota: {name}, {', '.join(told)}"


def _columns(mine: Amounts, sums: Amounts, hard: Amounts) -> tuple[tuple[str, Amounts], ...]:
    return ("requested", mine), ("used", sums), ("limited", hard)


def _missing_names(hard: Amounts, resource: Resource) -> bool:
    return resource.kind == "Pod" and not resource.group and any(name in _ASKED_OF_ALL for name in hard)


def _missing(hard: Amounts, spec: Tree) -> str:
    """Amounts that a quota limits must be given by every container, unless the pod as a whole gives them."""
    if spec.get("resources"):
        return ""
    lacking: dict[str, set[str]] = {}
    for field in ("containers", "initContainers"):
        for container in spec.get(field) or ():
            resources = container.get("resources") or {}
            told = compute_usage(amounts(resources.get("requests")), amounts(resources.get("limits")))
            for name in hard:
                if name in _ASKED_OF_ALL and name not in told:
                    lacking.setdefault(name, set()).add(container.get("name", ""))
    return "; ".join(f"{name} for: {','.join(sorted(lacking[name]))}" for name in sorted(lacking))


def limits_kind(quota: Tree, resource: Resource) -> bool:
    """Whether objects of the kind can count against the quota at all: most writes are about other kinds."""
    hard = quota["spec"].get("hard") or {}
    if f"count/{resource.qualified}" in hard:
        return True
    if resource.group:
        return False
    if resource.kind == "Pod":
        return any(not _of_others(name) for name in hard)
    if resource.kind == "Service":
        return any(name.startswith("services") for name in hard)
    if resource.kind == "PersistentVolumeClaim":
        return any(
            name.startswith(("persistentvolumeclaims", "requests.storage")) or CLASS_MARK in name for name in hard
        )
    return resource.plural in hard


def _of_others(name: str) -> bool:
    if name == "pods":
        return False
    return (
        name in _COUNTED
        or name.startswith(("count/", "services.", "requests.storage"))
        or (CLASS_MARK in name and not is_native(name))
    )
