"""The usage that ResourceQuotas count, and the pods in their scopes.

Used by the API server's admission for JSON trees and by the quota controller for typed objects. Pure functions; a few
microseconds per object. The names are those of a quota's `hard` list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.codec.quantity import Quantity, QuantityFormat
from bayplan.objects.resources import is_dra_extended_resource_name, is_hugepages

Amounts = dict[str, Quantity]

COMPUTE_RESOURCES = ("cpu", "memory", "ephemeral-storage")
STORAGE_CLASS_SUFFIX = ".storageclass.storage.k8s.io/"


def object_count(count: int) -> Quantity:
    return Quantity.of(count, QuantityFormat.DECIMAL_SI)


def compute_usage(requests: Mapping[str, Quantity], limits: Mapping[str, Quantity]) -> Amounts:
    found: Amounts = {}
    for name in COMPUTE_RESOURCES:
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


def storage_usage(storage_class: str | None, size: Quantity | None) -> Amounts:
    """The usage of a claim, also of its storage class."""
    found: Amounts = {}
    if storage_class:
        found[f"{storage_class}{STORAGE_CLASS_SUFFIX}persistentvolumeclaims"] = object_count(1)
    if size is not None:
        found["requests.storage"] = size
        if storage_class:
            found[f"{storage_class}{STORAGE_CLASS_SUFFIX}requests.storage"] = size
    return found


def service_usage(spec: Mapping[str, Any]) -> Amounts:
    """The node ports and load balancers of a service."""
    ports, kind = spec.get("ports") or (), spec.get("type")
    given = sum(1 for port in ports if port.get("nodePort"))
    takes_all = kind == "NodePort" or (kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts", True))
    on_nodes = len(ports) if takes_all else given if kind == "LoadBalancer" else 0
    return {
        "services.nodeports": object_count(on_nodes),
        "services.loadbalancers": object_count(int(kind == "LoadBalancer")),
    }


# Scopes.


@dataclass(frozen=True, slots=True)
class PodScopeFields:
    """The facts about a pod that scopes test."""

    is_terminating: bool
    best_effort: bool
    priority_class: str
    crosses_namespaces: bool


def scopes_of(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The scopes of a quota in either notation."""
    plain = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    return [*plain, *((spec.get("scopeSelector") or {}).get("matchExpressions") or ())]


def in_scope(scope: Mapping[str, Any], pod: PodScopeFields) -> bool:
    match scope.get("scopeName"):
        case "Terminating":
            return pod.is_terminating
        case "NotTerminating":
            return not pod.is_terminating
        case "BestEffort":
            return pod.best_effort
        case "NotBestEffort":
            return not pod.best_effort
        case "PriorityClass":
            return _class_matches(scope, pod.priority_class)
        case "CrossNamespacePodAffinity":
            return pod.crosses_namespaces
    return False


def _class_matches(scope: Mapping[str, Any], name: str) -> bool:
    values = scope.get("values") or ()
    match scope.get("operator"):
        case "In":
            return bool(name) and name in values
        case "NotIn":
            return not name or name not in values
        case "Exists":
            return bool(name)
        case "DoesNotExist":
            return not name
    return False
