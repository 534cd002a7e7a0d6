"""Admission plugins: mutating (`admit`) and validating (`validate`).

The write pipeline calls `admit` before the object is prepared and validated, and `validate` at the end, when plugins
cannot change the object. Both read other objects through `ObjectLookup`. Cost: some ten microseconds for a pod in a
namespace without quotas and limit ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from bayplan.apiserver.admission import limit_ranger, pod_security, resource_quota
from bayplan.apiserver.api_errors import forbidden, namespace_terminating, not_found
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.resources.lookup import ObjectLookup, built_in
from bayplan.codec.field_errors import aggregate
from bayplan.codec.quantity import parse_quantity

Operation = Literal["create", "update", "delete"]

IMMORTAL_NAMESPACES = ("default", "kube-system", "kube-public")
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_DEFAULT_INGRESS_CLASS = "ingressclass.kubernetes.io/is-default-class"
_TOLERATION_SECONDS = 300


def admit(
    resource: ServedResource,
    item: Tree | None,
    old: Tree | None,
    operation: Operation,
    lookup: ObjectLookup,
    subresource: str = "",
) -> None:
    """Run the mutating plugins on the object, in place. Raises if one refuses. `item` is None for a deletion."""
    if operation == "delete":
        _check_immortal_namespace(resource, old or {})
        return
    assert item is not None
    if operation == "create" and resource.namespaced:
        _check_namespace(resource, item, lookup)
    if subresource or resource.custom:
        return
    if resource.kind == "Pod" and not resource.group:
        _admit_pod(resource, item, old, lookup)
    elif resource.kind == "PersistentVolumeClaim" and not resource.group:
        if item["spec"].get("storageClassName") is None:
            _set_default_class(item, lookup)
    elif resource.kind == "Ingress" and operation == "create":
        _set_ingress_class(item, lookup)


def validate(
    resource: ServedResource,
    item: Tree,
    old: Tree | None,
    operation: Operation,
    lookup: ObjectLookup,
    subresource: str = "",
) -> list[str]:
    """Run the validating plugins. Raises if one refuses; returns the warnings."""
    if operation == "delete":
        return []
    applies = subresource in ("", "resize")
    if applies and not resource.group and not resource.custom:
        _check_limits(resource, item, operation, lookup, subresource)
        if resource.kind == "PersistentVolumeClaim" and old is not None:
            _check_volume_resize(resource, item, old, lookup)
    warnings = pod_security.evaluate(resource, item, old, lookup, subresource=subresource)
    if applies and resource.kind == "PriorityClass" and resource.group == "scheduling.k8s.io":
        _check_single_global_default(resource, item, operation, lookup)
    if applies and resource.namespaced:
        _check_quotas(resource, item, old, lookup)
    return warnings


# Namespaces


def _check_immortal_namespace(resource: ServedResource, old: Tree) -> None:
    name = (old.get("metadata") or {}).get("name", "")
    if resource.kind == "Namespace" and not resource.group and name in IMMORTAL_NAMESPACES:
        raise forbidden(resource, name, "this namespace may not be deleted")


def _object_name(item: Tree) -> str:
    """The name in a refusal: the prefix if the name is generated."""
    metadata = item["metadata"]
    name, prefix = str(metadata.get("name", "")), metadata.get("generateName")
    return str(prefix) if prefix and (not name or len(name) == len(prefix) + 5) else name


def _check_namespace(resource: ServedResource, item: Tree, lookup: ObjectLookup) -> None:
    """Refuse creates in a missing or terminating namespace."""
    if resource.group == "authorization.k8s.io":
        return
    name = item["metadata"].get("namespace", "")
    found = lookup.get(built_in("Namespace"), "", name)
    if found is None:
        raise not_found(built_in("Namespace"), name)
    if (found.get("status") or {}).get("phase") == "Terminating":
        raise namespace_terminating(resource, _object_name(item), name)


# Pods


def _admit_pod(resource: ServedResource, pod: Tree, old: Tree | None, lookup: ObjectLookup) -> None:
    spec = pod["spec"]
    if old is None:
        ranges = list(lookup.list(built_in("LimitRange"), pod["metadata"].get("namespace", "")))
        if ranges:
            limit_ranger.set_pod_defaults(pod, ranges)
        _set_priority(resource, pod, lookup)
    else:
        for name in ("priority", "preemptionPolicy"):
            if spec.get(name) is None and name in old["spec"]:
                spec[name] = old["spec"][name]
    _set_tolerations(spec)
    if old is None:
        _set_runtime_class(resource, pod, lookup)


def _set_priority(resource: ServedResource, pod: Tree, lookup: ObjectLookup) -> None:
    spec, name = pod["spec"], _object_name(pod)
    chosen = _priority_class(resource, pod, lookup)
    value = chosen.get("value", 0)
    policy = chosen.get("preemptionPolicy", "PreemptLowerPriority")
    if chosen:
        spec["priorityClassName"] = chosen["metadata"]["name"]
    computed = "priority admission controller computed"
    if spec.get("priority") not in (None, value):
        given = f"the integer value of priority ({spec['priority']}) must not be provided in pod spec"
        raise forbidden(resource, name, f"{given}; {computed} {value} from the given PriorityClass name")
    spec["priority"] = value
    if spec.get("preemptionPolicy") not in (None, policy):
        given = f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec"
        raise forbidden(resource, name, f"{given}; {computed} {policy} from the given PriorityClass name")
    spec["preemptionPolicy"] = policy


def _priority_class(resource: ServedResource, pod: Tree, lookup: ObjectLookup) -> Tree:
    """The class that the pod names, or the global default: of several the one with the lowest value."""
    kind = built_in("PriorityClass", "scheduling.k8s.io")
    wanted = pod["spec"].get("priorityClassName")
    if wanted:
        found = lookup.get(kind, "", wanted)
        if found is None:
            reason = f"no PriorityClass with name {wanted} was found"
            raise forbidden(resource, _object_name(pod), reason)
        return found
    defaults = [each for each in lookup.list(kind) if each.get("globalDefault")]
    return min(defaults, key=lambda each: int(each.get("value", 0)), default={})


def _set_tolerations(spec: Tree) -> None:
    tolerations = spec.get("tolerations") or []
    for key in (NOT_READY, UNREACHABLE):
        if not any(_tolerates(each, key) for each in tolerations):
            added = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATION_SECONDS}
            tolerations = [*tolerations, added]
    spec["tolerations"] = tolerations


def _tolerates(toleration: Mapping[str, Any], key: str) -> bool:
    return toleration.get("key", "") in (key, "") and toleration.get("effect", "") in ("NoExecute", "")


def _set_runtime_class(resource: ServedResource, pod: Tree, lookup: ObjectLookup) -> None:
    spec, name = pod["spec"], _object_name(pod)
    wanted = spec.get("runtimeClassName")
    found: Tree = {}
    if wanted is not None:
        stored = lookup.get(built_in("RuntimeClass", "node.k8s.io"), "", wanted)
        if stored is None:
            raise forbidden(resource, name, f'pod rejected: RuntimeClass "{wanted}" not found')
        found = stored
    overhead = (found.get("overhead") or {}).get("podFixed")
    if overhead is None:
        if spec.get("overhead") is not None:
            reason = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
            raise forbidden(resource, name, reason)
    elif spec.get("overhead") not in (None, overhead):
        raise forbidden(resource, name, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
    else:
        spec["overhead"] = dict(overhead)
    if scheduling := found.get("scheduling"):
        _set_scheduling(resource, name, spec, scheduling)


def _set_scheduling(resource: ServedResource, name: str, spec: Tree, scheduling: Tree) -> None:
    selector = dict(spec.get("nodeSelector") or {})
    for key, value in (scheduling.get("nodeSelector") or {}).items():
        if selector.get(key, value) != value:
            required = f"runtimeClass.scheduling.nodeSelector[{key}] = {value}"
            reason = f"conflict: {required}; pod.spec.nodeSelector[{key}] = {selector[key]}"
            raise forbidden(resource, name, reason)
        selector[key] = value
    if selector:
        spec["nodeSelector"] = selector
    own = spec.get("tolerations") or []
    more = [each for each in scheduling.get("tolerations") or () if each not in own]
    if more:
        spec["tolerations"] = [*own, *more]


# Claims, ingresses, priority classes


def _set_default_class(claim: Tree, lookup: ObjectLookup) -> None:
    name = _default_class(lookup.list(built_in("StorageClass", "storage.k8s.io")), _DEFAULT_CLASS)
    if name is not None and "volume.beta.kubernetes.io/storage-class" not in (
        claim["metadata"].get("annotations") or {}
    ):
        claim["spec"]["storageClassName"] = name


def _default_class(items: Iterable[Tree], annotation: str) -> str | None:
    """The default class: of several the newest, then the first by name."""
    default_classes = [each for each in items if (each["metadata"].get("annotations") or {}).get(annotation) == "true"]
    default_classes.sort(key=lambda each: str(each["metadata"]["name"]))
    default_classes.sort(key=lambda each: str(each["metadata"].get("creationTimestamp", "")), reverse=True)
    return default_classes[0]["metadata"]["name"] if default_classes else None


def _set_ingress_class(item: Tree, lookup: ObjectLookup) -> None:
    annotated = "kubernetes.io/ingress.class" in (item["metadata"].get("annotations") or {})
    if item["spec"].get("ingressClassName") is None and not annotated:
        classes = lookup.list(built_in("IngressClass", "networking.k8s.io"))
        name = _default_class(classes, _DEFAULT_INGRESS_CLASS)
        if name is not None:
            item["spec"]["ingressClassName"] = name


def _check_volume_resize(resource: ServedResource, item: Tree, old: Tree, lookup: ObjectLookup) -> None:
    before, after = (
        parse_quantity(((each["spec"].get("resources") or {}).get("requests") or {}).get("storage", "0"))
        for each in (old, item)
    )
    name = _object_name(item)
    if after.compare(before) <= 0:
        return
    if (old.get("status") or {}).get("phase") != "Bound":
        raise forbidden(resource, name, "Only bound persistent volume claims can be expanded")
    chosen = item["spec"].get("storageClassName") or ""
    found = lookup.get(built_in("StorageClass", "storage.k8s.io"), "", chosen) if chosen else None
    if found is None or chosen != old["spec"].get("storageClassName") or not found.get("allowVolumeExpansion"):
        reason = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc"
        raise forbidden(resource, name, f"{reason} must support resize")


def _check_single_global_default(
    resource: ServedResource, item: Tree, operation: Operation, lookup: ObjectLookup
) -> None:
    if not item.get("globalDefault"):
        return
    name = _object_name(item)
    for other in lookup.list(resource):
        other_name = other["metadata"]["name"]
        if other.get("globalDefault") and (operation == "create" or other_name != name):
            reason = f"PriorityClass {other_name} is already marked as default. Only one default can exist"
            raise forbidden(resource, name, reason)


# Limits and quotas


def _check_limits(
    resource: ServedResource, item: Tree, operation: Operation, lookup: ObjectLookup, subresource: str
) -> None:
    is_pod = resource.kind == "Pod" and (operation == "create" or subresource == "resize")
    is_claim = resource.kind == "PersistentVolumeClaim"
    if not (is_pod or is_claim):
        return
    ranges = list(lookup.list(built_in("LimitRange"), item["metadata"].get("namespace", "")))
    if not ranges:
        return
    found = limit_ranger.pod_violations(item, ranges) if is_pod else limit_ranger.claim_violations(item, ranges)
    if found:
        raise forbidden(resource, _object_name(item), aggregate(found))


def _check_quotas(resource: ServedResource, item: Tree, old: Tree | None, lookup: ObjectLookup) -> None:
    namespace = item["metadata"].get("namespace", "")
    for quota in lookup.list(built_in("ResourceQuota"), namespace):
        if resource_quota.covers_kind(quota, resource):
            message = resource_quota.quota_violation(quota, resource, item, old, lookup)
            if message:
                raise forbidden(resource, _object_name(item), message)
