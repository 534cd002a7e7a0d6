"""Table rows of nodes, namespaces, configuration, RBAC, devices and admission kinds."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.tables.ages import age_cell, format_age
from bayplan.apiserver.tables.cell_text import NONE, UNSET
from bayplan.apiserver.tables.object_parts import name_of, object_age_cell, spec_and_status

_ROLE = "node-role.kubernetes.io/"


def node(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    ready = next((each for each in status.get("conditions") or () if each.get("type") == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    words += ["SchedulingDisabled"] if spec.get("unschedulable") else []
    info = status.get("nodeInfo") or {}
    start = [name_of(item), ",".join(words), _roles(item), object_age_cell(item, now), info.get("kubeletVersion", "")]
    kernel = info.get("kernelVersion") or "<unknown>"
    kernel += f" ({info['architecture']})" if info.get("architecture") else ""
    system = [info.get("osImage") or "<unknown>", kernel, info.get("containerRuntimeVersion") or "<unknown>"]
    return [*start, _address(status, "InternalIP"), _address(status, "ExternalIP"), *system]


def _roles(item: Tree) -> str:
    labels = item["metadata"].get("labels") or {}
    roles = {key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE)}
    roles.add(labels.get("kubernetes.io/role", ""))
    return ",".join(sorted(roles - {""})) or NONE


def _address(status: Tree, kind: str) -> str:
    found = (each.get("address", "") for each in status.get("addresses") or () if each.get("type") == kind)
    return next(found, NONE)


def namespace(item: Tree, now: datetime) -> list[Any]:
    return [name_of(item), (item.get("status") or {}).get("phase", ""), object_age_cell(item, now)]


def secret(item: Tree, now: datetime) -> list[Any]:
    return [name_of(item), item.get("type", ""), len(item.get("data") or ()), object_age_cell(item, now)]


def config_map(item: Tree, now: datetime) -> list[Any]:
    return [name_of(item), len(item.get("data") or ()) + len(item.get("binaryData") or ()), object_age_cell(item, now)]


def event(item: Tree, now: datetime) -> list[Any]:
    def get(name: str, new: str) -> Any:
        return item.get(name) or item.get(new)

    involved_object: Tree = get("involvedObject", "regarding") or {}
    source: Tree = get("source", "deprecatedSource") or {}
    first_time = get("firstTimestamp", "deprecatedFirstTimestamp")
    first = age_cell(now, first_time or item.get("eventTime"))
    last_time = get("lastTimestamp", "deprecatedLastTimestamp")
    last, count = age_cell(now, last_time) if last_time else first, get("count", "deprecatedCount") or 1
    if (series := item.get("series")) is not None:
        last, count = age_cell(now, series.get("lastObservedTime")), series.get("count", 0)
    target = involved_object.get("kind", "").lower()
    target += f"/{involved_object['name']}" if involved_object.get("name") else ""
    component = source.get("component") or get("reportingComponent", "reportingController") or ""
    instance = source.get("host") or item.get("reportingInstance") or ""
    sender = f"{component}, {instance}" if instance else component
    message = (get("message", "note") or "").strip()
    start = [last, item.get("type", ""), item.get("reason", ""), target]
    return [*start, involved_object.get("fieldPath", ""), sender, message, first, count, name_of(item)]


def resource_quota(item: Tree, now: datetime) -> list[Any]:
    _, status = spec_and_status(item)
    hard, used = status.get("hard") or {}, status.get("used") or {}
    texts = {name: f"{name}: {used.get(name, '0')}/{hard[name]}" for name in sorted(hard)}
    requests = ", ".join(text for name, text in texts.items() if not name.startswith("limits."))
    limits = ", ".join(text for name, text in texts.items() if name.startswith("limits."))
    return [name_of(item), requests, limits, object_age_cell(item, now)]


def priority_class(item: Tree, now: datetime) -> list[Any]:
    start = [name_of(item), item.get("value", 0), item.get("globalDefault", False)]
    return [*start, object_age_cell(item, now), item.get("preemptionPolicy", "")]


def lease(item: Tree, now: datetime) -> list[Any]:
    return [name_of(item), (item.get("spec") or {}).get("holderIdentity", ""), object_age_cell(item, now)]


def runtime_class(item: Tree, now: datetime) -> list[Any]:
    return [name_of(item), item.get("handler", ""), object_age_cell(item, now)]


def resource_claim(item: Tree, now: datetime) -> list[Any]:
    _, status = spec_and_status(item)
    ending = bool(item["metadata"].get("deletionTimestamp"))
    states = ["deleted"] if ending else []
    if status.get("allocation") is None:
        states += [] if ending else ["pending"]
    else:
        states += ["allocated", "reserved"] if status.get("reservedFor") else ["allocated"]
    return [name_of(item), ",".join(states), object_age_cell(item, now)]


def resource_slice(item: Tree, now: datetime) -> list[Any]:
    spec, _ = spec_and_status(item)
    names = [spec.get("nodeName") or "", spec.get("driver", ""), (spec.get("pool") or {}).get("name", "")]
    return [name_of(item), *names, object_age_cell(item, now)]


def role_binding(item: Tree, now: datetime) -> list[Any]:
    reference = item.get("roleRef") or {}
    found: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for each in item.get("subjects") or ():
        name = each.get("name", "")
        shown = f"{each.get('namespace', '')}/{name}" if each.get("kind") == "ServiceAccount" else name
        found.setdefault(each.get("kind", ""), []).append(shown)
    role = f"{reference.get('kind', '')}/{reference.get('name', '')}"
    subjects = [", ".join(found[kind]) for kind in ("User", "Group", "ServiceAccount")]
    return [name_of(item), role, object_age_cell(item, now), *subjects]


def webhooks(item: Tree, now: datetime) -> list[Any]:
    return [name_of(item), len(item.get("webhooks") or ()), object_age_cell(item, now)]


def admission_policy(item: Tree, now: datetime) -> list[Any]:
    spec, _ = spec_and_status(item)
    kind = spec.get("paramKind")
    shown = UNSET if kind is None else f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}"
    rules = spec.get("validations") or spec.get("mutations") or ()
    return [name_of(item), len(rules), shown, object_age_cell(item, now)]


def admission_policy_binding(item: Tree, now: datetime) -> list[Any]:
    spec, _ = spec_and_status(item)
    reference = spec.get("paramRef") or {}
    shown = f"{reference.get('namespace') or '*'}/{reference['name']}" if reference.get("name") else UNSET
    return [name_of(item), spec.get("policyName", ""), shown, object_age_cell(item, now)]


def flow_schema(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    dangling = next(
        (each.get("status") for each in status.get("conditions") or () if each.get("type") == "Dangling"), "?"
    )
    method = (spec.get("distinguisherMethod") or {}).get("type") or NONE
    level = (spec.get("priorityLevelConfiguration") or {}).get("name", "")
    return [name_of(item), level, spec.get("matchingPrecedence", 0), method, object_age_cell(item, now), dangling]


def priority_level(item: Tree, now: datetime) -> list[Any]:
    spec, _ = spec_and_status(item)
    limited = spec.get("limited") or {}
    queuing = (limited.get("limitResponse") or {}).get("queuing") or {}
    numbers = [queuing.get(name, NONE) for name in ("queues", "handSize", "queueLengthLimit")]
    shares = limited.get("nominalConcurrencyShares", NONE)
    return [name_of(item), spec.get("type", ""), shares, *numbers, object_age_cell(item, now)]


def certificate_signing_request(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    types = [each.get("type") for each in status.get("conditions") or ()]
    words = ["Denied" if "Denied" in types else "Approved" if "Approved" in types else "Pending"]
    words += ["Failed"] if "Failed" in types else []
    words += ["Issued"] if status.get("certificate") else []
    seconds = spec.get("expirationSeconds")
    requested_duration = NONE if seconds is None else format_age(timedelta(seconds=seconds))
    return [
        name_of(item),
        object_age_cell(item, now),
        spec.get("signerName") or NONE,
        spec.get("username", ""),
        requested_duration,
        ",".join(words),
    ]


def api_service(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    target = spec.get("service")
    service_name = "Local" if target is None else f"{target.get('namespace', '')}/{target.get('name', '')}"
    shown = "Unknown"
    for each in status.get("conditions") or ():
        if each.get("type") == "Available":
            shown = each.get("status", "")
            shown += f" ({each.get('reason', '')})" if shown != "True" else ""
    return [name_of(item), service_name, shown, object_age_cell(item, now)]


def scale(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    return [name_of(item), spec.get("replicas", 0), status.get("replicas", 0), object_age_cell(item, now)]


def pod_group(item: Tree, now: datetime) -> list[Any]:
    spec, status = spec_and_status(item)
    policy = "Gang" if (spec.get("schedulingPolicy") or {}).get("gang") is not None else "Basic"
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    shown = "Pending"
    if (scheduled := conditions.get("PodGroupScheduled")) is not None:
        shown = "Scheduled" if scheduled.get("status") == "True" else "Unschedulable"
    if (target := conditions.get("DisruptionTarget")) is not None:
        shown = target.get("reason", "")
    reference = spec.get("podGroupTemplateRef")
    workload = NONE if reference is None else (reference.get("workload") or {}).get("workloadName", "")
    return [name_of(item), policy, workload, shown, object_age_cell(item, now)]
