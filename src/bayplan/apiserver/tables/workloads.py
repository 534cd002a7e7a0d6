"""Table rows of workloads, disruption budgets and autoscalers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bayplan.apiserver.resources.autoscaler_conversion import to_v2
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.tables.ages import age_cell, format_age, parse_timestamp
from bayplan.apiserver.tables.cell_text import NONE, UNSET, containers_cells, labels_text, selector_cell, selector_text
from bayplan.apiserver.tables.object_parts import name_of, object_age_cell, spec_and_status


def deployment(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    counts = [status.get("updatedReplicas", 0), status.get("availableReplicas", 0)]
    wide = [*containers_cells(spec.get("template")), selector_text(spec.get("selector"))]
    return [name_of(item), ready, *counts, object_age_cell(item, now), *wide]


def replica_set(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    counts = [spec.get("replicas", 0), status.get("replicas", 0), status.get("readyReplicas", 0)]
    wide = [*containers_cells(spec.get("template")), selector_cell(spec.get("selector"))]
    return [name_of(item), *counts, object_age_cell(item, now), *wide]


def replication_controller(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    counts = [spec.get("replicas", 0), status.get("replicas", 0), status.get("readyReplicas", 0)]
    wide = [*containers_cells(spec.get("template")), labels_text(spec.get("selector"))]
    return [name_of(item), *counts, object_age_cell(item, now), *wide]


def stateful_set(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    return [name_of(item), ready, object_age_cell(item, now), *containers_cells(spec.get("template"))]


def daemon_set(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    names = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady")
    counts = [status.get(name, 0) for name in (*names, "updatedNumberScheduled", "numberAvailable")]
    template = spec.get("template") or {}
    selector = labels_text((template.get("spec") or {}).get("nodeSelector"))
    wide = [*containers_cells(template), selector_cell(spec.get("selector"))]
    return [name_of(item), *counts, selector, object_age_cell(item, now), *wide]


def job(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    done, wanted, parallel = status.get("succeeded", 0), spec.get("completions"), spec.get("parallelism", 0)
    completions = f"{done}/{wanted}" if wanted is not None else f"{done}/1"
    if wanted is None and parallel > 1:
        completions = f"{done}/1 of {parallel}"
    wide = [*containers_cells(spec.get("template")), selector_cell(spec.get("selector"))]
    return [
        name_of(item),
        _job_status(item),
        completions,
        _job_duration(status, now),
        object_age_cell(item, now),
        *wide,
    ]


def _job_status(item: Tree) -> str:
    true_conditions = [
        each.get("type") for each in (item.get("status") or {}).get("conditions") or () if each.get("status") == "True"
    ]
    for kind in ("Complete", "Failed"):
        if kind in true_conditions:
            return kind
    if item["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return next(
        (kind for kind in ("Suspended", "FailureTarget", "SuccessCriteriaMet") if kind in true_conditions), "Running"
    )


def _job_duration(status: Tree, now: datetime) -> str:
    start, end = status.get("startTime"), status.get("completionTime")
    if not start:
        return ""
    return format_age((parse_timestamp(end) if end else now) - parse_timestamp(start))


def cron_job(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    suspended = spec.get("suspend")
    inner = (spec.get("jobTemplate") or {}).get("spec") or {}
    last = age_cell(now, status["lastScheduleTime"]) if status.get("lastScheduleTime") else NONE
    shown = UNSET if suspended is None else str(bool(suspended))
    wide = [*containers_cells(inner.get("template")), selector_cell(inner.get("selector"))]
    start = [name_of(item), spec.get("schedule", ""), spec.get("timeZone") or NONE, shown]
    return [*start, len(status.get("active") or ()), last, object_age_cell(item, now), *wide]


def pod_template(item: Tree, now: datetime) -> list[Any]:  # noqa: ARG001
    template = item.get("template") or {}
    labels = labels_text((template.get("metadata") or {}).get("labels"))
    return [name_of(item), *containers_cells(template), labels]


def controller_revision(item: Tree, now: datetime) -> list[Any]:
    owners = item["metadata"].get("ownerReferences") or ()
    owner = next((each for each in owners if each.get("controller")), None)
    controller = NONE
    if owner is not None:
        group = owner.get("apiVersion", "").rpartition("/")[0]
        kind = f"{owner.get('kind', '')}.{group}" if group else owner.get("kind", "")
        controller = f"{kind.lower()}/{owner.get('name', '')}"
    return [name_of(item), controller, item.get("revision", 0), object_age_cell(item, now)]


def budget(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    bounds = [str(spec[name]) if spec.get(name) is not None else "N/A" for name in ("minAvailable", "maxUnavailable")]
    return [name_of(item), *bounds, status.get("disruptionsAllowed", 0), object_age_cell(item, now)]


def autoscaler(item: Tree, now: datetime) -> list[Any]:
    if item.get("apiVersion") == "autoscaling/v1":
        item = to_v2(item)
    spec, status = spec_and_status(item)
    target = spec.get("scaleTargetRef") or {}
    metrics = _metrics(spec.get("metrics") or (), status.get("currentMetrics") or [])
    min_replicas = str(spec["minReplicas"]) if spec.get("minReplicas") is not None else UNSET
    counts = [min_replicas, spec.get("maxReplicas", 0), status.get("currentReplicas", 0)]
    return [
        name_of(item),
        f"{target.get('kind', '')}/{target.get('name', '')}",
        metrics,
        *counts,
        object_age_cell(item, now),
    ]


def _metrics(specs: Any, statuses: list[Tree]) -> str:
    if not specs:
        return NONE
    shown = [_metric(each, statuses[index] if index < len(statuses) else {}) for index, each in enumerate(specs)]
    text = ", ".join(shown[:2])
    return f"{text} + {len(shown) - 2} more..." if len(shown) > 2 else text


def _metric(metric: Tree, status: Tree) -> str:
    kind = metric.get("type", "")
    field = kind[:1].lower() + kind[1:]
    source = metric.get(field)
    if source is None:
        return "<unknown type>"
    target, current = source.get("target") or {}, (status.get(field) or {}).get("current") or {}
    average = target.get("averageValue")
    if kind in ("Resource", "ContainerResource"):
        wanted = average if average is not None else _percent(target.get("averageUtilization"), "<auto>")
        found = current.get("averageValue") if average is not None else _percent(current.get("averageUtilization"))
        return f"{source.get('name', '')}: {found or '<unknown>'}/{wanted}"
    if kind == "Pods":
        return f"{current.get('averageValue') or '<unknown>'}/{average}"
    if average is not None:
        return f"{current.get('averageValue') or '<unknown>'}/{average} (avg)"
    return f"{current.get('value') or '<unknown>'}/{target.get('value')}"


def _percent(number: int | None, fallback: str = "") -> str:
    return fallback if number is None else f"{number}%"
