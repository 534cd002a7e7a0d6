"""Conversion of HorizontalPodAutoscalers between autoscaling/v1 and autoscaling/v2, which is stored.

v1 has a field for CPU utilization only; other metrics, the behavior and the conditions go into annotations, so the
conversion loses nothing. Called for every read and write of `autoscaling/v1`. Cost: some ten microseconds.
"""

from __future__ import annotations

import json
from typing import Any

from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.codec.go_text import json_text

AUTOSCALERS = "horizontalpodautoscalers"
AUTOSCALING_V1 = "autoscaling/v1"
_PREFIX = "autoscaling.alpha.kubernetes.io/"
_METRICS, _BEHAVIOR, _CONDITIONS = (f"{_PREFIX}{name}" for name in ("metrics", "behavior", "conditions"))
_CPU = "targetCPUUtilizationPercentage"
_CURRENT_CPU = "currentCPUUtilizationPercentage"


def is_v1_autoscaler(resource: ServedResource) -> bool:
    return resource.version == "v1" and resource.group == "autoscaling"


def to_v1(tree: Tree) -> Tree:
    spec, status, metadata = (dict(tree.get(part) or {}) for part in ("spec", "status", "metadata"))
    metrics, behavior = spec.pop("metrics", None) or [], spec.pop("behavior", None)
    other_metrics = []
    for metric in metrics:
        if (utilization := _cpu_utilization(metric, "target")) is not None:
            spec[_CPU] = utilization
        else:
            other_metrics.append(_metric_to_v1(metric))
    for metric in status.pop("currentMetrics", None) or ():
        if (utilization := _cpu_utilization(metric, "current")) is not None:
            status[_CURRENT_CPU] = utilization
    annotated = {_METRICS: other_metrics, _BEHAVIOR: behavior, _CONDITIONS: status.pop("conditions", None)}
    annotations = {
        **(metadata.get("annotations") or {}),
        **{key: json_text(each) for key, each in annotated.items() if each},
    }
    if annotations:
        metadata["annotations"] = annotations
    status.setdefault("currentReplicas", 0)
    status.setdefault("desiredReplicas", 0)
    return {**tree, "apiVersion": AUTOSCALING_V1, "metadata": metadata, "spec": spec, "status": status}


def to_v2(tree: Tree) -> Tree:
    spec, status, metadata = (dict(tree.get(part) or {}) for part in ("spec", "status", "metadata"))
    annotations = dict(metadata.get("annotations") or {})
    other_metrics, behavior, conditions = (
        _decode_annotation(annotations.pop(key, "")) for key in (_METRICS, _BEHAVIOR, _CONDITIONS)
    )
    metrics = [_metric_to_v2(each) for each in other_metrics] if isinstance(other_metrics, list) else []
    if (utilization := spec.pop(_CPU, None)) is not None:
        metrics.append(_cpu_metric("target", {"type": "Utilization", "averageUtilization": utilization}))
    if metrics:
        spec["metrics"] = metrics
    if isinstance(behavior, dict):
        spec["behavior"] = behavior
    utilization = status.pop(_CURRENT_CPU, None)
    status["currentMetrics"] = (
        [_cpu_metric("current", {"averageUtilization": utilization})] if utilization is not None else None
    )
    if isinstance(conditions, list):
        status["conditions"] = conditions
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations
    return {**tree, "apiVersion": "autoscaling/v2", "metadata": metadata, "spec": spec, "status": status}


def _decode_annotation(text: str) -> Any:
    """The value of an annotation. An invalid one counts as empty, so it cannot make the object unreadable."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None


def _cpu_metric(part: str, value: Tree) -> Tree:
    return {"type": "Resource", "resource": {"name": "cpu", part: value}}


def _cpu_utilization(metric: Tree, part: str) -> Any:
    resource = metric.get("resource") or {}
    if metric.get("type") != "Resource" or resource.get("name") != "cpu":
        return None
    return (resource.get(part) or {}).get("averageUtilization")


def _without_none(**fields: Any) -> Tree:
    return {key: value for key, value in fields.items() if value is not None}


def _metric_to_v1(metric: Tree) -> Tree:
    found: Tree = {"type": metric.get("type", "")}
    for kind in ("object", "pods", "resource", "containerResource", "external"):
        source = metric.get(kind)
        if source is None:
            continue
        target, metric_identifier = source.get("target") or {}, source.get("metric") or {}
        name, selector, average = (
            metric_identifier.get("name", ""),
            metric_identifier.get("selector"),
            target.get("averageValue"),
        )
        utilization = target.get("averageUtilization")
        match kind:
            case "object":
                v1_source = _without_none(
                    target=source.get("describedObject"),
                    metricName=name,
                    targetValue=target.get("value", "0"),
                    selector=selector,
                    averageValue=average,
                )
            case "pods":
                v1_source = _without_none(metricName=name, targetAverageValue=average or "0", selector=selector)
            case "external":
                value = target.get("value")
                v1_source = _without_none(
                    metricName=name, metricSelector=selector, targetValue=value, targetAverageValue=average
                )
            case _:
                v1_source = _without_none(
                    name=source.get("name"),
                    targetAverageUtilization=utilization,
                    targetAverageValue=average,
                    container=source.get("container"),
                )
        found[kind] = v1_source
    return found


def _metric_to_v2(metric: Any) -> Tree:
    found: Tree = {"type": metric.get("type", "")} if isinstance(metric, dict) else {}
    for kind, source in metric.items() if found else ():
        if not isinstance(source, dict):
            continue
        name = source.get("metricName", "")
        selector = source.get("metricSelector" if kind == "external" else "selector")
        average, value = source.get("targetAverageValue", source.get("averageValue")), source.get("targetValue")
        utilization = source.get("targetAverageUtilization")
        match kind:
            case "object":
                value = value if average is None or value not in (None, "0") else None
                target = _without_none(
                    type="Value" if average is None else "AverageValue", value=value, averageValue=average
                )
                described = {
                    "describedObject": source.get("target") or {},
                    "metric": _without_none(name=name, selector=selector),
                }
                found[kind] = {**described, "target": target}
            case "pods":
                target = {"type": "AverageValue", "averageValue": average}
                found[kind] = {"metric": _without_none(name=name, selector=selector), "target": target}
            case "external":
                target = _without_none(
                    type="AverageValue" if value is None else "Value", value=value, averageValue=average
                )
                found[kind] = {"metric": _without_none(name=name, selector=selector), "target": target}
            case "resource" | "containerResource":
                target_type = "AverageValue" if utilization is None else "Utilization"
                target = _without_none(type=target_type, averageValue=average, averageUtilization=utilization)
                found[kind] = _without_none(name=source.get("name"), target=target, container=source.get("container"))
    return found
