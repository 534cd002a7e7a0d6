"""Validation of HorizontalPodAutoscalers on create and update."""

from __future__ import annotations

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.metadata import check_metadata, check_metadata_update
from bayplan.apiserver.validation.names import dns_label, dns_subdomain, path_segment
from bayplan.apiserver.validation.resource_quantities import container_resource_name
from bayplan.codec.field_errors import FieldErrorList
from bayplan.codec.quantity import parse_quantity

_SOURCES = {
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
    "External": "external",
    "ContainerResource": "containerResource",
}


def check_autoscaler(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    check_autoscaler_spec(out, item["spec"])


def check_autoscaler_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    check_autoscaler_spec(out, item["spec"])


def check_autoscaler_spec(out: FieldErrorList, spec: Tree) -> None:
    least, most = spec.get("minReplicas"), spec.get("maxReplicas", 0)
    if least is not None and least < 1:
        out.invalid("spec.minReplicas", least, "must be greater than or equal to 1")
    if most == 0:
        out.required("spec.maxReplicas", "must be set and greater than 0")
    elif most < 0:
        out.invalid("spec.maxReplicas", most, "must be greater than or equal to 1")
    if least is not None and most < least:
        out.invalid("spec.maxReplicas", most, "must be greater than or equal to `minReplicas`")
    _check_reference(out, spec.get("scaleTargetRef") or {}, "spec.scaleTargetRef")
    metrics = spec.get("metrics") or ()
    for index, metric in enumerate(metrics):
        _check_metric(out, metric, f"spec.metrics[{index}]")
    if least == 0 and not any(metric.get("type") in ("Object", "External") for metric in metrics):
        rule = "must specify at least one Object or External metric to support scaling to zero replicas"
        out.forbidden("spec.metrics", rule)
    for name in ("scaleUp", "scaleDown"):
        if (rules := (spec.get("behavior") or {}).get(name)) is not None:
            _check_scaling_rules(out, rules, f"spec.behavior.{name}")


def _check_reference(out: FieldErrorList, reference: Tree, path: str) -> None:
    for name in ("kind", "name"):
        if not reference.get(name):
            out.required(f"{path}.{name}")
        else:
            out.each_invalid(f"{path}.{name}", reference[name], path_segment(reference[name]))
    version = reference.get("apiVersion", "")
    if version.count("/") > 1:
        out.invalid(f"{path}.apiVersion", version, f"unexpected GroupVersion string: {version}")
    elif "/" not in version and version != "v1" and not _core_kind(reference):
        out.invalid(f"{path}.apiVersion", version, "apiVersion must specify API group")


def _core_kind(reference: Tree) -> bool:
    return reference.get("kind") == "ReplicationController"


def _check_scaling_rules(out: FieldErrorList, rules: Tree, path: str) -> None:
    window = rules.get("stabilizationWindowSeconds")
    if window is not None and window < 0:
        out.invalid(f"{path}.stabilizationWindowSeconds", window, "must be greater than or equal to zero")
    if window is not None and window > 3600:
        out.invalid(f"{path}.stabilizationWindowSeconds", window, "must be less than or equal to 3600")
    chosen = rules.get("selectPolicy")
    if chosen is not None and chosen not in ("Disabled", "Max", "Min"):
        out.unsupported(f"{path}.selectPolicy", chosen, ("Disabled", "Max", "Min"))
    if not rules.get("policies"):
        out.required(f"{path}.policies", "must specify at least one Policy")
    for index, policy in enumerate(rules.get("policies") or ()):
        where, period = f"{path}.policies[{index}]", policy.get("periodSeconds", 0)
        if policy.get("type") not in ("Percent", "Pods"):
            out.unsupported(f"{where}.type", policy.get("type", ""), ("Percent", "Pods"))
        if policy.get("value", 0) <= 0:
            out.invalid(f"{where}.value", policy.get("value", 0), "must be greater than zero")
        if period <= 0:
            out.invalid(f"{where}.periodSeconds", period, "must be greater than zero")
        if period > 1800:
            out.invalid(f"{where}.periodSeconds", period, "must be less than or equal to 1800")


def _check_metric(out: FieldErrorList, metric: Tree, path: str) -> None:
    kind, known = metric.get("type", ""), sorted(_SOURCES)
    if not kind:
        out.required(f"{path}.type", "must specify a metric source type")
    if kind not in _SOURCES:
        out.unsupported(f"{path}.type", kind, known)
    given = [name for name in ("object", "external", "pods", "resource", "containerResource") if metric.get(name)]
    if given:
        _check_metric_source(out, given[0], metric[given[0]], f"{path}.{given[0]}")
    expected = _SOURCES.get(kind)
    if expected is None:
        out.unsupported(f"{path}.type", kind, known)
    elif expected not in given:
        out.required(f"{path}.{expected}", "must populate information for the given metric source")
    if len(given) != 1:
        for name in given:
            if name != expected:
                out.forbidden(f"{path}.{name}", "must populate the given metric source only")


def _check_metric_source(out: FieldErrorList, kind: str, source: Tree, path: str) -> None:
    target, where = source.get("target") or {}, f"{path}.target"
    if kind in ("resource", "containerResource"):
        _check_resource_metric(out, kind, source, path)
    else:
        if kind == "object":
            _check_reference(out, source.get("describedObject") or {}, f"{path}.describedObject")
        name = (source.get("metric") or {}).get("name", "")
        if not name:
            out.required(f"{path}.metric.name", "must specify a metric name")
        else:
            out.each_invalid(f"{path}.metric.name", name, path_segment(name))
    _check_target(out, target, where)
    value, average, share = (target.get(name) for name in ("value", "averageValue", "averageUtilization"))
    if kind == "pods" and average is None:
        out.required(f"{where}.averageValue", "must specify a positive target averageValue")
    elif kind == "object" and value is None and average is None:
        out.required(f"{where}.averageValue", "must set either a target value or averageValue")
    elif kind == "external" and value is None and average is None:
        rule = "must set either a target value for metric or a per-pod target"
        out.required(f"{where}.averageValue", rule)
    elif kind == "external" and value is not None and average is not None:
        rule = "may not set both a target value for metric and a per-pod target"
        out.forbidden(f"{where}.value", rule)
    elif kind in ("resource", "containerResource") and share is None and average is None:
        rule = "must set either a target raw value or a target utilization"
        out.required(f"{where}.averageUtilization", rule)
    elif kind in ("resource", "containerResource") and share is not None and average is not None:
        out.forbidden(f"{where}.averageValue", "may not set both a target raw value and a target utilization")


def _check_resource_metric(out: FieldErrorList, kind: str, source: Tree, path: str) -> None:
    name = source.get("name", "")
    if not name:
        out.required(f"{path}.name", "must specify a resource name")
    elif kind == "containerResource":
        out.each_invalid(f"{path}.name", name, container_resource_name(name))
    if kind == "containerResource":
        container = source.get("container", "")
        if not container:
            out.required(f"{path}.container", "must specify a container")
        else:
            out.each_invalid(f"{path}.container", container, dns_label(container))


def _check_target(out: FieldErrorList, target: Tree, path: str) -> None:
    kind = target.get("type", "")
    if not kind:
        out.required(f"{path}.type", "must specify a metric target type")
    if kind not in ("Utilization", "Value", "AverageValue"):
        out.invalid(f"{path}.type", kind, "must be either Utilization, Value, or AverageValue")
    for name in ("value", "averageValue"):
        if target.get(name) is not None and (quantity := parse_quantity(target[name])).sign() != 1:
            out.invalid(f"{path}.{name}", str(quantity), "must be positive")
    share = target.get("averageUtilization")
    if share is not None and share < 1:
        out.invalid(f"{path}.averageUtilization", share, "must be greater than 0")
