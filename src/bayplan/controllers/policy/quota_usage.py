"""Usage of an object in a ResourceQuota, and the match of pods with quota scopes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bayplan.codec.quantity import Quantity, parse_quantity
from bayplan.controllers.core.api_types import PodFields, Tree, UntypedObject
from bayplan.objects import quotas
from bayplan.objects.quotas import Amounts, PodScopeFields, compute_usage, in_scope, object_count, storage_usage
from bayplan.objects.resources import pod_limits, pod_requests
from bayplan.objects.volumes import PersistentVolumeClaim

COUNTED_KINDS = frozenset(
    {"pods", "services", "secrets", "configmaps", "resourcequotas", "replicationcontrollers", "persistentvolumeclaims"}
)
"""Resources that a quota may name without `count/`."""


def pod_usage(pod: PodFields) -> Amounts:
    """Usage of a pod. A finished pod counts as an object and uses no resources."""
    if pod.finished:
        return {"count/pods": object_count(1)}
    found: Amounts = {"count/pods": object_count(1), "pods": object_count(1)}
    return found | compute_usage(pod_requests(pod), pod_limits(pod))


def claim_usage(claim: PersistentVolumeClaim) -> Amounts:
    found: Amounts = {"count/persistentvolumeclaims": object_count(1), "persistentvolumeclaims": object_count(1)}
    size = claim.spec.resources.requests.get("storage")
    return found | storage_usage(claim.spec.storage_class_name, None if size is None else parse_quantity(size))


def service_usage(service: UntypedObject) -> Amounts:
    return {"count/services": object_count(1), "services": object_count(1), **quotas.service_usage(service.spec)}


# Scopes.


def scopes_of(quota: UntypedObject) -> list[Tree]:
    return [dict(scope) for scope in quotas.scopes_of(quota.spec)]


def in_scopes(pod: PodFields, scopes: Iterable[Tree]) -> bool:
    traits = PodScopeFields(
        is_terminating=pod.spec.active_deadline_seconds is not None,
        best_effort=_best_effort(pod),
        priority_class=pod.spec.priority_class_name,
        crosses_namespaces=_crosses_namespaces(pod),
    )
    return all(in_scope(each, traits) for each in scopes)


def _best_effort(pod: PodFields) -> bool:
    """Whether the pod has QoS class BestEffort: no requests and no limits."""
    pod_level = [pod.spec.resources] if pod.spec.resources is not None else []
    each = [*pod_level, *(container.resources for container in (*pod.spec.containers, *pod.spec.init_containers))]
    return not any(_has_requests(part.requests) or _has_requests(part.limits) for part in each)


def _has_requests(amounts: Mapping[str, object]) -> bool:
    return any(parse_quantity(str(amounts[name])).sign() > 0 for name in ("cpu", "memory") if name in amounts)


def _crosses_namespaces(pod: PodFields) -> bool:
    affinity = pod.spec.affinity
    if affinity is None:
        return False
    for side in (affinity.pod_affinity, affinity.pod_anti_affinity):
        terms = [*side.required, *(each.pod_affinity_term for each in side.preferred)] if side is not None else []
        if any(term.namespaces or term.namespace_selector is not None for term in terms):
            return True
    return False


def add_known(total: Amounts, more: Mapping[str, Quantity]) -> None:
    """Add the amounts that the total tracks."""
    for name, amount in more.items():
        if name in total:
            total[name] = total[name].add(amount)
