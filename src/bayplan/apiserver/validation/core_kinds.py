"""Validation of nodes, namespaces, ConfigMaps, Secrets, quotas, limit ranges, events, leases and priority classes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.metadata import (
    check_immutable,
    check_kube_finalizer,
    check_labels,
    check_metadata,
    check_metadata_update,
)
from bayplan.apiserver.validation.names import cidr, config_key, dns_label, dns_subdomain, label_key
from bayplan.apiserver.validation.pods.pod_spec import check_template
from bayplan.apiserver.validation.pods.scheduling import check_taints, check_tolerations
from bayplan.apiserver.validation.resource_quantities import (
    check_quantities,
    check_quantity,
    check_requirements,
    container_resource_name,
    overcommit_allowed,
    quota_resource_name,
    resource_name,
)
from bayplan.codec import json_text
from bayplan.codec.field_errors import FieldErrorList
from bayplan.codec.json_text import JsonSyntaxError
from bayplan.codec.quantity import parse_quantity

MAX_DATA_BYTES = 1024 * 1024
LARGEST_USER_PRIORITY = 1_000_000_000
_IMMUTABLE_DATA = "field is immutable when `immutable` is set"
_TOKEN_ACCOUNT = "kubernetes.io/service-account.name"
_SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


# Configuration


def check_config_map(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    data, binary = item.get("data") or {}, item.get("binaryData") or {}
    for key in data:
        out.each_invalid(f"data[{key}]", key, config_key(key))
        if key in binary:
            out.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    for key in binary:
        out.each_invalid(f"binaryData[{key}]", key, config_key(key))
    size = sum(len(value.encode()) for value in data.values()) + sum(map(decoded_size, binary.values()))
    if size > MAX_DATA_BYTES:
        out.too_long("[]", MAX_DATA_BYTES)  # upstream passes an empty path here, which it prints as "[]"


def decoded_size(text: str) -> int:
    """The number of bytes after decoding a base64 text."""
    return len(text) * 3 // 4 - text[-2:].count("=")


def check_config_map_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    if old.get("immutable"):
        if not item.get("immutable"):
            out.forbidden("immutable", _IMMUTABLE_DATA)
        for name in ("data", "binaryData"):
            if (item.get(name) or {}) != (old.get(name) or {}):
                out.forbidden(name, _IMMUTABLE_DATA)
    check_config_map(out, item)


def check_secret(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    data = item.get("data") or {}
    for key in data:
        out.each_invalid(f"data[{key}]", key, config_key(key))
    if sum(map(decoded_size, data.values())) > MAX_DATA_BYTES:
        out.too_long("data", MAX_DATA_BYTES)
    _check_secret_type(out, item, data)


def _check_secret_type(out: FieldErrorList, item: Tree, data: Mapping[str, str]) -> None:
    match item.get("type"):
        case "kubernetes.io/service-account-token":
            if not (item["metadata"].get("annotations") or {}).get(_TOKEN_ACCOUNT):
                out.required(f"metadata.annotations[{_TOKEN_ACCOUNT}]")
        case "kubernetes.io/dockercfg":
            _check_docker(out, data, ".dockercfg")
        case "kubernetes.io/dockerconfigjson":
            _check_docker(out, data, ".dockerconfigjson")
        case "kubernetes.io/basic-auth":
            if "username" not in data and "password" not in data:
                out.required("data[username]")
                out.required("data[password]")
        case "kubernetes.io/ssh-auth":
            if not data.get("ssh-privatekey"):
                out.required("data[ssh-privatekey]")
        case "kubernetes.io/tls":
            for key in ("tls.crt", "tls.key"):
                if key not in data:
                    out.required(f"data[{key}]")


def _check_docker(out: FieldErrorList, data: Mapping[str, str], key: str) -> None:
    if key not in data:
        out.required(f"data[{key}]")
        return
    problem = ""
    try:
        found = json_text.to_plain(json_text.parse(base64.b64decode(data[key]).decode("utf-8", "replace")))
    except JsonSyntaxError as fault:
        problem = str(fault)
    else:
        if not isinstance(found, dict):
            word = {list: "array", str: "string", bool: "bool"}.get(type(found), "number")
            problem = f"json: cannot unmarshal {word} into Go value of type map[string]interface {{}}"
    if problem:
        out.invalid(f"data[{key}]", "<secret contents redacted>", problem)


def check_secret_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    check_immutable(out, item.get("type", ""), old.get("type", ""), "type")
    if old.get("immutable"):
        if not item.get("immutable"):
            out.forbidden("immutable", _IMMUTABLE_DATA)
        if (item.get("data") or {}) != (old.get("data") or {}):
            out.forbidden("data", _IMMUTABLE_DATA)
    check_secret(out, item)


def check_metadata_only(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)


def check_metadata_only_update_and_form(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    check_metadata_only(out, item)


# Namespaces and nodes


def check_namespace(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_label, namespaced=False)
    for name in (item.get("spec") or {}).get("finalizers", ()):
        out.each_invalid("spec.finalizers", name, label_key(name))
        check_kube_finalizer(out, name, "spec.finalizers")


def check_metadata_only_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])


def check_node(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=False)
    check_taints(out, item["spec"].get("taints", ()), "metadata.taints")
    _check_node_amounts(out, item.get("status") or {})
    addresses = item["spec"].get("podCIDRs") or ()
    for index, text in enumerate(addresses):
        out.each_invalid(f"spec.podCIDRs[{index}]", text, cidr(text))
    if len(addresses) > 1 and (len(addresses) > 2 or len({":" in text for text in addresses}) == 1):
        rule = "may specify no more than one CIDR for each IP family"
        out.invalid("spec.podCIDRs", addresses, rule)


def _check_node_amounts(out: FieldErrorList, status: Tree) -> None:
    for name in ("capacity", "allocatable"):
        for resource, text in (status.get(name) or {}).items():
            check_quantity(out, resource, parse_quantity(text), f"status.{name}.{resource}")


def check_node_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_node(out, item)
    check_metadata_update(out, item["metadata"], old["metadata"])
    spec, before = item["spec"], old["spec"]
    ranges, old_ranges = list(spec.get("podCIDRs") or ()), list(before.get("podCIDRs") or ())
    rule = 'node updates may not change podCIDR except from "" to valid'
    if old_ranges and len(old_ranges) != len(ranges):
        out.forbidden("spec.podCIDRs", rule)
    elif old_ranges:
        for first, second in zip(old_ranges, ranges, strict=True):
            if first != second:
                out.forbidden("spec.podCIDRs", rule)
    if before.get("providerID") and before["providerID"] != spec.get("providerID"):
        rule = 'node updates may not change providerID except from "" to valid'
        out.forbidden("spec.providerID", rule)


# Quotas and limits


def check_quota(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    _check_quota_spec(out, item["spec"])


_SCOPES = (
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
)
_COMPUTE = (
    "pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
)


def _scope_fits(scope: str, resource: str) -> bool:
    if scope == "BestEffort":
        return resource == "pods"
    if scope == "VolumeAttributesClass":
        return resource in ("persistentvolumeclaims", "requests.storage")
    return resource in _COMPUTE if scope in _SCOPES else True


def _check_quota_spec(out: FieldErrorList, spec: Tree) -> None:
    hard = spec.get("hard") or {}
    check_quantities(out, hard, quota_resource_name, "spec.hard")
    scopes = spec.get("scopes") or []
    standard = sorted(name for name in hard if "/" not in name and not quota_resource_name(name))
    for scope in scopes:
        if scope not in _SCOPES:
            out.invalid("spec.scopes", scopes, "unsupported scope")
        for name in standard:
            if not _scope_fits(scope, name):
                out.invalid("spec.scopes", scopes, "unsupported scope applied to resource")
    _check_conflicting(out, set(scopes), scopes, "spec.scopes")
    if (selector := spec.get("scopeSelector")) is not None:
        _check_scope_selector(out, selector, scopes, standard)


def _check_conflicting(out: FieldErrorList, found: set[str], shown: list[str], path: str) -> None:
    for scope in ("BestEffort", "Terminating"):
        if {scope, f"Not{scope}"} <= found:
            out.invalid(path, shown or None, "conflicting scopes")


def _check_scope_selector(out: FieldErrorList, selector: Tree, scopes: list[str], standard: list[str]) -> None:
    path = "spec.scopeSelector.matchExpressions"
    found = set()
    for each in selector.get("matchExpressions") or ():
        scope, operator, values = each.get("scopeName", ""), each.get("operator", ""), each.get("values") or []
        if scope not in _SCOPES:
            out.invalid(f"{path}.scopeName", scope, "unsupported scope")
        for name in standard:
            if not _scope_fits(scope, name):
                out.invalid(path, selector, "unsupported scope applied to resource")
        if scope in _SCOPES and scope not in ("PriorityClass", "VolumeAttributesClass") and operator != "Exists":
            known = "Terminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, "
            known += "ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"
            rule = f"must be 'Exists' when scope is any of ResourceQuotaScope{known}"
            out.invalid(f"{path}.operator", operator, rule)
        if operator in ("In", "NotIn"):
            if not values:
                rule = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                out.required(f"{path}.values", rule)
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                rule = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
                out.invalid(f"{path}.values", values, rule)
        else:
            out.invalid(f"{path}.operator", operator, "not a valid selector operator")
        found.add(scope)
    _check_conflicting(out, found, scopes, path)


def check_quota_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    _check_quota_spec(out, item["spec"])
    new, before = item["spec"].get("scopes"), old["spec"].get("scopes")
    if set(new or ()) != set(before or ()):
        out.invalid("spec.scopes", new, "field is immutable")


def check_limit_range(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    seen: set[str] = set()
    for index, limit in enumerate(item["spec"].get("limits") or ()):
        path, kind = f"spec.limits[{index}]", limit.get("type", "")
        if problems := label_key(kind):
            out.each_invalid(f"{path}.type", kind, problems)
        elif "/" not in kind and kind not in ("Pod", "Container", "PersistentVolumeClaim"):
            out.invalid(f"{path}.type", kind, "must be a standard limit type or fully qualified")
        if kind in seen:
            out.duplicate(f"{path}.type", kind)
        seen.add(kind)
        _check_limit(out, limit, kind, path)


def _check_limit(out: FieldErrorList, limit: Tree, kind: str, path: str) -> None:
    rule = container_resource_name if kind in ("Pod", "Container") else resource_name
    names: dict[str, None] = {}
    for field in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio"):
        if kind == "Pod" and field in ("default", "defaultRequest"):
            if limit.get(field):
                out.forbidden(f"{path}.{field}", "may not be specified when `type` is 'Pod'")
            continue
        for name in limit.get(field) or ():
            out.each_invalid(f"{path}.{field}[{name}]", name, rule(name))
            names[name] = None
    if kind == "PersistentVolumeClaim" and not any("storage" in (limit.get(f) or {}) for f in ("min", "max")):
        detail = "either minimum or maximum storage value is required, but neither was provided"
        out.required(f"{path}.limits", detail)
    for name in names:
        _check_limit_of(out, limit, name, path)


def _check_limit_of(out: FieldErrorList, limit: Tree, name: str, path: str) -> None:
    fields = ("min", "max", "default", "defaultRequest", "maxLimitRequestRatio")
    least, most, default, default_request, ratio = (
        parse_quantity(limit[field][name]) if name in (limit.get(field) or {}) else None for field in fields
    )

    def compare(first: Any, second: Any, field: str, shown: Any, words: tuple[str, str]) -> None:
        if first is not None and second is not None and first.compare(second) > 0:
            detail = f"{words[0]} value {first} is greater than {words[1]} value {second}"
            out.invalid(f"{path}.{field}[{name}]", str(shown), detail)

    compare(least, most, "min", least, ("min", "max"))
    compare(least, default_request, "defaultRequest", default_request, ("min", "default request"))
    compare(default_request, most, "defaultRequest", default_request, ("default request", "max"))
    compare(default_request, default, "defaultRequest", default_request, ("default request", "default limit"))
    compare(least, default, "default", least, ("min", "default"))
    compare(default, most, "default", most, ("default", "max"))
    where = f"{path}.maxLimitRequestRatio[{name}]"
    if ratio is not None and ratio.milli_value() < 1000:
        out.invalid(where, str(ratio), f"ratio {ratio} is less than 1")
    if ratio is not None and least is not None and most is not None and not least.is_zero():
        bound = most.milli_value() / least.milli_value()
        if ratio.milli_value() / 1000 > bound:
            out.invalid(where, str(ratio), f"ratio {ratio} is greater than max/min = {bound:f}")
    if (
        not overcommit_allowed(name)
        and default is not None
        and default_request is not None
        and default.compare(default_request)
    ):
        detail = f"default value {default} must equal to defaultRequest value {default_request} in {name}"
        out.invalid(f"{path}.defaultRequest[{name}]", str(default_request), detail)


def check_limit_range_update(out: FieldErrorList, item: Tree, old: Tree) -> None:  # noqa: ARG001
    check_limit_range(out, item)


# Templates, priorities, leases, runtime classes


def check_pod_template(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    check_template(out, item.get("template") or {}, "template")


def check_pod_template_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    check_template(out, item.get("template") or {}, "template")


def check_priority_class(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=False)
    name, value = item["metadata"].get("name", ""), item.get("value", 0)
    if name.startswith("system-"):
        _check_system_class(out, item, name, value)
    elif value > LARGEST_USER_PRIORITY:
        rule = f"maximum allowed value of a user defined priority is {LARGEST_USER_PRIORITY}"
        out.forbidden("value", rule)
    policy = item.get("preemptionPolicy")
    if policy is not None and policy not in ("PreemptLowerPriority", "Never"):
        out.unsupported("preemptionPolicy", policy, ("PreemptLowerPriority", "Never"))


def _check_system_class(out: FieldErrorList, item: Tree, name: str, value: int) -> None:
    known = _SYSTEM_CLASSES.get(name)
    if known is None:
        problem = f"{name} is not a known system priority class"
    elif known != value:
        problem = f"value of {name} PriorityClass must be {known}"
    elif item.get("globalDefault"):
        problem = f"globalDefault of {name} PriorityClass must be false"
    else:
        return
    rule = "priority class names with 'system-' prefix are reserved for system use only"
    out.forbidden("metadata.name", f"{rule}. error: {problem}")


def check_priority_class_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    if item.get("value", 0) != old.get("value", 0):
        out.forbidden("value", "may not be changed in an update.")
    check_immutable(out, item.get("preemptionPolicy"), old.get("preemptionPolicy"), "preemptionPolicy")


def check_lease(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True, kube=False)
    _check_lease_spec(out, item["spec"])


def _check_lease_spec(out: FieldErrorList, spec: Tree) -> None:
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        out.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")
    if transitions is not None and transitions < 0:
        out.invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0")
    strategy = spec.get("strategy")
    if strategy is not None and "/" not in strategy and strategy != "OldestEmulationVersion":
        out.unsupported("spec.strategy.strategy", strategy, ("OldestEmulationVersion",))
    if spec.get("preferredHolder") and not strategy:
        out.forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined")


def check_lease_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    _check_lease_spec(out, item["spec"])


def check_runtime_class(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=False, kube=False)
    handler = item.get("handler", "")
    if not handler:
        out.required("handler")
    else:
        out.each_invalid("handler", handler, dns_label(handler))
    if (overhead := item.get("overhead")) is not None:
        check_requirements(out, {"limits": overhead.get("podFixed")}, frozenset(), "overhead")
    if scheduling := item.get("scheduling"):
        check_labels(out, scheduling.get("nodeSelector") or {}, "scheduling.nodeSelector")
        tolerations = scheduling.get("tolerations") or []
        check_tolerations(out, tolerations, "scheduling.tolerations")
        keys = [{**each, "tolerationSeconds": None} for each in tolerations]
        for index, each in enumerate(keys):
            if each in keys[:index]:
                shown = {
                    "Key": each.get("key", ""),
                    "Operator": each.get("operator", ""),
                    "Value": each.get("value", ""),
                    "Effect": each.get("effect", ""),
                    "TolerationSeconds": tolerations[index].get("tolerationSeconds"),
                }
                out.duplicate(f"scheduling.tolerations[{index}]", shown)


def check_runtime_class_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_runtime_class(out, item)
    check_metadata_update(out, item["metadata"], old["metadata"])
    check_immutable(out, item.get("handler", ""), old.get("handler", ""), "handler")
