"""What does one object count for in a ResourceQuota? Pods by what they ask for, claims by their size, others by number.

Pure; a few microseconds an object. The names are those that a quota may use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bayplan.controllers.seen import SeenPod, Tree, Whole
from bayplan.objects.quantity import Format, Quantity, parse_quantity
from bayplan.objects.resources import is_dra_extended_resource_name, is_hugepages, pod_limits, pod_requests
from bayplan.objects.volumes import PersistentVolumeClaim

Amounts = dict[str, Quantity]

COMPUTE = ("cpu", "memory", "ephemeral-storage")
PLAIN = frozenset(
    {"pods", "services", "secrets", "configmaps", "resourcequotas", "replicationcontrollers", "persistentvolumeclaims"}
)
"""Kinds that a quota may name without `count/`."""
CLASS_MARK = ".storageclass.storage.k8s.io/"


def number(count: int) -> Quantity:
    return Quantity.of(count, Format.DECIMAL_SI)


def pod_usage(pod: SeenPod) -> Amounts:
    """A pod that has ended is one object still, and holds nothing."""
    if pod.finished:
        return {"count/pods": number(1)}
    found: Amounts = {"count/pods": number(1), "pods": number(1)}
    requests, limits = pod_requests(pod), pod_limits(pod)
    for name in COMPUTE:
        if name in requests:
            found[name] = found[f"requests.{name}"] = requests[name]
        if name in limits:
            found[f"limits.{name}"] = limits[name]
    for name, amount in requests.items():
        if is_hugepages(name):
            found[name] = found[f"requests.{name}"] = amount
        elif is_dra_extended_resource_name(name):
            found[f"requests.{name}"] = amount
    return found


def claim_usage(claim: PersistentVolumeClaim) -> Amounts:
    found: Amounts = {"count/persistentvolumeclaims": number(1), "persistentvolumeclaims": number(1)}
    name, size = claim.spec.storage_class_name, claim.spec.resources.requests.get("storage")
    if name:
        found[f"{name}{CLASS_MARK}persistentvolumeclaims"] = number(1)
    if size is not None:
        found["requests.storage"] = parse_quantity(size)
        if name:
            found[f"{name}{CLASS_MARK}requests.storage"] = parse_quantity(size)
    return found


def service_usage(service: Whole) -> Amounts:
    spec = service.spec
    ports, kind = spec.get("ports") or (), spec.get("type")
    given = sum(1 for port in ports if port.get("nodePort"))
    takes_all = kind == "NodePort" or (kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts", True))
    on_nodes = len(ports) if takes_all else given if kind == "LoadBalancer" else 0
    return {
        "count/services": number(1),
        "services": number(1),
        "services.nodeports": number(on_nodes),
        "services.loadbalancers": number(int(kind == "LoadBalancer")),
    }


# Which pods a quota means.


def scopes_of(quota: Whole) -> list[Tree]:
    plain = [{"scopeName": name, "operator": "Exists"} for name in quota.spec.get("scopes") or ()]
    return [*plain, *((quota.spec.get("scopeSelector") or {}).get("matchExpressions") or ())]


def in_scopes(pod: SeenPod, scopes: Iterable[Tree]) -> bool:
    return all(_in_scope(pod, each) for each in scopes)


def _in_scope(pod: SeenPod, scope: Tree) -> bool:
    ends = pod.spec.active_deadline_seconds is not None
    match scope.get("scopeName"):
        case "Terminating":
            return ends
        case "NotTerminating":
            return not ends
        case "BestEffort":
            return _best_effort(pod)
        case "NotBestEffort":
            return not _best_effort(pod)
        case "PriorityClass":
            return _class_matches(scope, pod.spec.priority_class_name)
        case "CrossNamespacePodAffinity":
            return _crosses_namespaces(pod)
    return False


def _best_effort(pod: SeenPod) -> bool:
    """Whether the pod asks for nothing."""
    wholes = [pod.spec.resources] if pod.spec.resources is not None else []
    each = [*wholes, *(container.resources for container in (*pod.spec.containers, *pod.spec.init_containers))]
    return not any(_asks(part.requests) or _asks(part.limits) for part in each)


def _asks(amounts: Mapping[str, object]) -> bool:
    return any(parse_quantity(str(amounts[name])).sign() > 0 for name in ("cpu", "memory") if name in amounts)


def _class_matches(scope: Tree, name: str) -> bool:
    values = scope.get("values") or ()
    match scope.get("operator"):
        case "In":
            return name in values
        case "NotIn":
            return name not in values
        case "Exists":
            return bool(name)
        case "DoesNotExist":
            return not name
    return False


def _crosses_namespaces(pod: SeenPod) -> bool:
    affinity = pod.spec.affinity
    if affinity is None:
        return False
    for side in (affinity.pod_affinity, affinity.pod_anti_affinity):
        terms = [*side.required, *(each.pod_affinity_term for each in side.preferred)] if side is not None else []
        if any(term.namespaces or term.namespace_selector is not None for term in terms):
            return True
    return False


def added(total: Amounts, more: Mapping[str, Quantity]) -> None:
    """Add what the total has a name for."""
    for name, amount in more.items():
        if name in total:
            total[name] = total[name].add(amount)
