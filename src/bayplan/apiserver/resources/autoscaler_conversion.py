"""How does an autoscaler look in its first version, and how in the second, which is the one that is kept?

The first version knows the load of processors alone; all other metrics, the behaviour and the conditions go into
annotations there, so that nothing is lost on the way through it. Asked for every read and write of `autoscaling/v1`.
Cost: some ten microseconds.
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
    """The first version of an autoscaler that is given in the second."""
    spec, status, metadata = (dict(tree.get(part) or {}) for part in ("spec", "status", "metadata"))
    metrics, behavior = spec.pop("metrics", None) or [], spec.pop("behavior", None)
    others = []
    for metric in metrics:
        if (share := _cpu_utilization(metric, "target")) is not None:
            spec[_CPU] = share
        else:
            others.append(_metric_to_v1(metric))
    for metric in status.pop("currentMetrics", None) or ():
        if (share := _cpu_utilization(metric, "current")) is not None:
            status[_CURRENT_CPU] = share
    kept = {_METRICS: others, _BEHAVIOR: behavior, _CONDITIONS: status.pop("conditions", None)}
    annotations = {
        **(metadata.get("annotations") or {}),
        **{key: json_text(each) for key, each in kept.items() if each},
    }
    if annotations:
        metadata["annotations"] = annotations
    status.setdefault("currentReplicas", 0)
    status.setdefault("desiredReplicas", 0)
    return {**tree, "apiVersion": AUTOSCALING_V1, "metadata": metadata, "spec": spec, "status": status}


def to_v2(tree: Tree) -> Tree:
    """The second version of an autoscaler that is given in the first."""
    spec, status, metadata = (dict(tree.get(part) or {}) for part in ("spec", "status", "metadata"))
    annotations = dict(metadata.get("annotations") or {})
    others, behavior, conditions = (
        _decode_annotation(annotations.pop(key, "")) for key in (_METRICS, _BEHAVIOR, _CONDITIONS)
    )
    metrics = [_metric_to_v2(each) for each in others] if isinstance(others, list) else []
    if (share := spec.pop(_CPU, None)) is not None:
        metrics.append(_cpu_metric("target", {"type": "Utilization", "averageUtilization": share}))
    if metrics:
        spec["metrics"] = metrics
    if isinstance(behavior, dict):
        spec["behavior"] = behavior
    share = status.pop(_CURRENT_CPU, None)
    status["currentMetrics"] = [_cpu_metric("current", {"averageUtilization": share})] if share is not None else None
    if isinstance(conditions, list):
        status["conditions"] = conditions
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations
    return {**tree, "apiVersion": "autoscaling/v2", "metadata": metadata, "spec": spec, "status": status}


def _decode_annotation(text: str) -> Any:
    """What an annotation holds; one that cannot be read holds nothing, so that nobody can break an object with it."""
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
        target, named = source.get("target") or {}, source.get("metric") or {}
        name, selector, average = named.get("name", ""), named.get("selector"), target.get("averageValue")
        share = target.get("averageUtilization")
        match kind:
            case "object":
                old = _without_none(
                    target=source.get("describedObject"),
                    metricName=name,
                    targetValue=target.get("value", "0"),
                    selector=selector,
                    averageValue=average,
                )
            case "pods":
                old = _without_none(metricName=name, targetAverageValue=average or "0", selector=selector)
            case "external":
                value = target.get("value")
                old = _without_none(
                    metricName=name, metricSelector=selector, targetValue=value, targetAverageValue=average
                )
            case _:
                old = _without_none(
                    name=source.get("name"),
                    targetAverageUtilization=share,
                    targetAverageValue=average,
                    container=source.get("container"),
                )
        found[kind] = old
    return found


def _metric_to_v2(metric: Any) -> Tree:
    found: Tree = {"type": metric.get("type", "")} if isinstance(metric, dict) else {}
    for kind, source in metric.items() if found else ():
        if not isinstance(source, dict):
            continue
        name = source.get("metricName", "")
        selector = source.get("metricSelector" if kind == "external" else "selector")
        average, value = source.get("targetAverageValue", source.get("averageValue")), source.get("targetValue")
        share = source.get("targetAverageUtilization")
        match kind:
            case "object":
                value = value if average is None or value not in (None, "0") else None
                target = _without_none(
                    type="Value" if average is None else "AverageValue", value=value, averageValue=average
                )
                made = {
                    "describedObject": source.get("target") or {},
                    "metric": _without_none(name=name, selector=selector),
                }
                found[kind] = {**made, "target": target}
            case "pods":
                target = {"type": "AverageValue", "averageValue": average}
                found[kind] = {"metric": _without_none(name=name, selector=selector), "target": target}
            case "external":
                target = _without_none(
                    type="AverageValue" if value is None else "Value", value=value, averageValue=average
                )
                found[kind] = {"metric": _without_none(name=name, selector=selector), "target": target}
            case "resource" | "containerResource":
                of = "AverageValue" if share is None else "Utilization"
                target = _without_none(type=of, averageValue=average, averageUtilization=share)
                found[kind] = _without_none(name=source.get("name"), target=target, container=source.get("container"))
    return found
