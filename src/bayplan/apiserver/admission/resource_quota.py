"""ResourceQuota: usage of a quota, and the check of a new object against it.

Admission calls it. Usage is counted from the stored objects, so it is
always current. A namespace without quotas costs one lookup; a quota costs a walk over the objects of the kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.apiserver.resources.kinds import BUILT_IN, ServedResource, Tree
from bayplan.apiserver.resources.lookup import ObjectLookup, built_in
from bayplan.apiserver.resources.pod_resources import (
    Quantities,
    add_quantities,
    count_quantity,
    format_quantities,
    parse_quantities,
    pod_amounts,
)
from bayplan.apiserver.resources.qos import qos_class
from bayplan.objects.quotas import (
    STORAGE_CLASS_SUFFIX,
    PodScopeFields,
    compute_usage,
    in_scope,
    scopes_of,
    service_usage,
    storage_usage,
)
from bayplan.objects.resources import is_native

_REQUIRED_ON_ALL = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
_COUNTED = {
    "pods": "Pod",
    "services": "Service",
    "secrets": "Secret",
    "configmaps": "ConfigMap",
    "resourcequotas": "ResourceQuota",
    "replicationcontrollers": "ReplicationController",
    "persistentvolumeclaims": "PersistentVolumeClaim",
}


def object_usage(resource: ServedResource, item: Tree) -> Quantities:
    """The usage of one object, by every name that a quota may use."""
    found: Quantities = {f"count/{resource.qualified}": count_quantity(1)}
    if resource.group:
        return found
    if resource.kind == "Pod":
        return found | (_pod_usage(item) if _is_active(item) else {})
    if resource.plural in _COUNTED:
        found[resource.plural] = count_quantity(1)
    if resource.kind == "Service":
        found |= service_usage(item["spec"])
    elif resource.kind == "PersistentVolumeClaim":
        found |= _claim_usage(item["spec"])
    return found


def _is_active(pod: Tree) -> bool:
    """A finished pod uses no resources; it still counts as an object."""
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _pod_usage(pod: Tree) -> Quantities:
    spec = pod["spec"]
    return {"pods": count_quantity(1), **compute_usage(pod_amounts(spec, "requests"), pod_amounts(spec, "limits"))}


def _claim_usage(spec: Tree) -> Quantities:
    size = parse_quantities((spec.get("resources") or {}).get("requests")).get("storage")
    return storage_usage(spec.get("storageClassName"), size)


# Scopes


def matches(quota: Tree, resource: ServedResource, item: Tree) -> bool:
    """Whether the quota's scopes include the object; scopes apply to pods only."""
    scopes = scopes_of(quota["spec"])
    if not scopes:
        return True
    if resource.kind != "Pod" or resource.group:
        return False
    pod_scopes = _pod_scopes(item["spec"])
    return all(in_scope(each, pod_scopes) for each in scopes)


def _pod_scopes(spec: Tree) -> PodScopeFields:
    return PodScopeFields(
        is_terminating=spec.get("activeDeadlineSeconds") is not None,
        best_effort=qos_class(spec) == "BestEffort",
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


# Usage and check


def namespace_usage(quota: Tree, lookup: ObjectLookup) -> Quantities:
    """The usage of the objects in the namespace, for the names in the quota."""
    hard = quota["spec"].get("hard") or {}
    total: Quantities = {name: count_quantity(0) for name in hard}
    for resource in _resources_of(hard):
        for item in lookup.list(resource, quota["metadata"]["namespace"]):
            if matches(quota, resource, item):
                usage = object_usage(resource, item)
                add_quantities(total, {name: amount for name, amount in usage.items() if name in hard})
    return total


def _resources_of(hard: Mapping[str, Any]) -> Iterable[ServedResource]:
    found: dict[str, ServedResource] = {}
    for name in hard:
        if name.startswith("count/"):
            wanted = name.removeprefix("count/")
            found.update((wanted, each) for each in BUILT_IN if each.qualified == wanted and each.stored)
        elif name in _COUNTED:
            found[name] = built_in(_COUNTED[name])
        elif name.startswith("services."):
            found["services"] = built_in("Service")
        elif name == "requests.storage" or STORAGE_CLASS_SUFFIX in name:
            found["persistentvolumeclaims"] = built_in("PersistentVolumeClaim")
        else:
            found["pods"] = built_in("Pod")
    return {each.qualified: each for each in found.values()}.values()


def status_of(quota: Tree, lookup: ObjectLookup) -> Tree:
    return {"hard": dict(quota["spec"].get("hard") or {}), "used": format_quantities(namespace_usage(quota, lookup))}


def quota_violation(
    quota: Tree, resource: ServedResource, item: Tree, old: Tree | None, lookup: ObjectLookup
) -> str | None:
    """Why the quota refuses the object, or None."""
    hard = parse_quantities(quota["spec"].get("hard"))
    usage = {name: amount for name, amount in object_usage(resource, item).items() if name in hard}
    if not usage and not _missing_names(hard, resource):
        return None
    if not matches(quota, resource, item):
        return None
    name = quota["metadata"]["name"]
    if resource.kind == "Pod" and old is None and (missing := _missing(hard, item["spec"])):
        return f"failed quota: {name}: must specify {missing}"
    if old is not None and matches(quota, resource, old):
        before = object_usage(resource, old)
        usage = {key: amount.sub(before[key]) if key in before else amount for key, amount in usage.items()}
    usage = {key: amount for key, amount in usage.items() if amount.sign() > 0}
    if not usage:
        return None
    used_amounts = namespace_usage(quota, lookup)
    exceeded = sorted(key for key, amount in usage.items() if used_amounts[key].add(amount).compare(hard[key]) > 0)
    if not exceeded:
        return None
    columns = (
        f"{word}: {','.join(f'{key}={table[key]}' for key in exceeded)}"
        for word, table in _usage_columns(usage, used_amounts, hard)
    )
    return f"exceeded quota: {name}, {', '.join(columns)}"


def _usage_columns(usage: Quantities, used_amounts: Quantities, hard: Quantities) -> tuple[tuple[str, Quantities], ...]:
    return ("requested", usage), ("used", used_amounts), ("limited", hard)


def _missing_names(hard: Quantities, resource: ServedResource) -> bool:
    return resource.kind == "Pod" and not resource.group and any(name in _REQUIRED_ON_ALL for name in hard)


def _missing(hard: Quantities, spec: Tree) -> str:
    """The resources of the quota that containers must specify and do not; none if the pod has pod-level resources."""
    if spec.get("resources"):
        return ""
    lacking: dict[str, set[str]] = {}
    for field in ("containers", "initContainers"):
        for container in spec.get(field) or ():
            resources = container.get("resources") or {}
            usage = compute_usage(
                parse_quantities(resources.get("requests")), parse_quantities(resources.get("limits"))
            )
            for name in hard:
                if name in _REQUIRED_ON_ALL and name not in usage:
                    lacking.setdefault(name, set()).add(container.get("name", ""))
    return "; ".join(f"{name} for: {','.join(sorted(lacking[name]))}" for name in sorted(lacking))


def covers_kind(quota: Tree, resource: ServedResource) -> bool:
    """Whether objects of the kind can count against the quota; most writes are of other kinds."""
    hard = quota["spec"].get("hard") or {}
    if f"count/{resource.qualified}" in hard:
        return True
    if resource.group:
        return False
    if resource.kind == "Pod":
        return any(not _is_non_pod_resource(name) for name in hard)
    if resource.kind == "Service":
        return any(name.startswith("services") for name in hard)
    if resource.kind == "PersistentVolumeClaim":
        return any(
            name.startswith(("persistentvolumeclaims", "requests.storage")) or STORAGE_CLASS_SUFFIX in name
            for name in hard
        )
    return resource.plural in hard


def _is_non_pod_resource(name: str) -> bool:
    if name == "pods":
        return False
    return (
        name in _COUNTED
        or name.startswith(("count/", "services.", "requests.storage"))
        or (STORAGE_CLASS_SUFFIX in name and not is_native(name))
    )
