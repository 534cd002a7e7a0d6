"""What is wrong with a PodGroup, a JobFlow, a CronJob, a HyperNode, or the annotations of a pod? Volcano's sentences.

Asked by the webhooks and the embedded cluster, and by the controllers for objects that passed neither. Jobs and queues
have files of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bayplan.admission.job_validation import topology_error
from bayplan.codec.cron import schedule_error
from bayplan.objects.name_validation import label_key_problems
from bayplan.objects.selectors.label_selectors import invalid
from bayplan.objects.volcano.constants import (
    JDB_MAX_UNAVAILABLE,
    JDB_MIN_AVAILABLE,
    OPEN,
    Tree,
)

MAX_CRON_NAME = 52
"""A job's name has 63 characters, and eleven of them are the time."""
_ZONE_PART = re.compile(r"[A-Za-z.\-_0-9+]{1,14}")
_INT = re.compile(r"[+-]?\d+")


def pod_group_error(group: Tree, queues: Mapping[str, Tree]) -> str:
    """Why a new pod group may not be."""
    spec = group.get("spec") or {}
    said, name = "", spec.get("queue") or ""
    if name and name not in queues:
        said = f'unable to find queue: queue.scheduling.volcano.sh "{name}" not found'
    elif name and (state := (queues[name].get("status") or {}).get("state") or "") != OPEN:
        said = f"can only submit PodGroup to queue with state `Open`, queue `{name}` status is `{state}`. "
    faults = [f"{fault}." for fault in [topology_error(spec.get("networkTopology"))] if fault]
    for policy in spec.get("subGroupPolicy") or ():
        if fault := topology_error(policy.get("networkTopology")):
            faults.append(f"in subGroupPolicy '{policy.get('name')}': {fault}.")
            break
    return said + " ".join(faults)


def pod_error(pod: Tree, schedulers: tuple[str, ...]) -> str:
    """What is wrong with the annotations of a pod that one of these schedulers places."""
    if (pod.get("spec") or {}).get("schedulerName") not in schedulers:
        return ""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    keys = (JDB_MIN_AVAILABLE, JDB_MAX_UNAVAILABLE)
    for key in keys:
        if key in annotations and (fault := _budget_error(key, annotations[key])):
            return fault
    if all(key in annotations for key in keys):
        return f"not allow configure multiple annotations <[{' '.join(keys)}]> at same time"
    return ""


def _budget_error(key: str, value: str) -> str:
    if _INT.fullmatch(value):
        if int(value) > 0:
            return ""
        return f'invalid value <"{value}"> for {key}, it must be a positive integer'
    number = value.replace("%", "")
    if not _INT.fullmatch(number):
        return f'invalid value strconv.Atoi: parsing "{number}": invalid syntax for {key}'
    if not 0 < int(number) < 100:
        return f'invalid value <"{value}"> for {key}, it must be a valid percentage which between 1% ~ 99%'
    return ""


def job_flow_error(flow: Tree) -> str:
    """Why the steps of a flow cannot follow one another."""
    flows = (flow.get("spec") or {}).get("flows") or []
    needs = {each.get("name"): list((each.get("dependsOn") or {}).get("targets") or ()) for each in flows}
    not_dag = "jobflow Flow is not DAG"
    for targets in needs.values():
        for target in targets:
            if target not in needs:
                return f"{not_dag}: vertex is not defined: {target}"
    waiting = {name: set(targets) for name, targets in needs.items()}
    while free := [name for name, targets in waiting.items() if not targets & waiting.keys()]:
        for name in free:
            del waiting[name]
    return not_dag if waiting else ""


def cron_job_error(cron: Tree) -> str:
    """What is wrong with the schedule, the zone or the name of a CronJob of batch.volcano.sh."""
    spec, name = cron.get("spec") or {}, str((cron.get("metadata") or {}).get("name") or "")
    said = _schedule_error(spec.get("schedule") or "")
    if spec.get("timeZone") is not None:
        said += time_zone_error(spec["timeZone"])
    if len(name) > MAX_CRON_NAME:
        return (
            f"{said}cronJob name must be no more than {MAX_CRON_NAME} characters to accommodate job name suffix "
            "(max 63 total)"
        )
    if problems := label_key_problems(name):
        said += f'invalid cronJob name "{name}": {"; ".join(problems)}'
    return said


def _schedule_error(schedule: str) -> str:
    if not schedule:
        return " schedule is required, but got empty"
    if "TZ" in schedule:
        return " schedule should not contain TZ or CRON_TZ, TZ should only be set in the timeZone field"
    return "schedule is not a valid cron expression" if schedule_error(schedule) else ""


def time_zone_error(zone: str) -> str:
    """Why a time zone is none."""
    if not zone:
        return " timeZone must be nil or non-empty string, got empty string"
    said = ""
    for part in zone.split("/"):
        if part in (".", "..") or part.startswith("-") or not _ZONE_PART.fullmatch(part):
            said += " unknown timeZone"
    if zone.lower() == "local":
        return said + " timeZone can't be Local, and must be defined in https://www.iana.org/time-zones"
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        said += " invalid timeZone"
    return said


def hyper_node_error(node: Tree) -> str:
    """What is wrong with the members of a HyperNode."""
    members = (node.get("spec") or {}).get("members") or []
    if not members:
        return "spec.members: Invalid value: []: member must have at least one member"
    faults = []
    for member in members:
        pattern = ((member.get("selector") or {}).get("regexMatch") or {}).get("pattern") or ""
        try:
            re.compile(pattern)
        except re.error as fault:
            why = f"member regexMatch pattern is invalid: {fault}"
            faults.append(invalid("spec.members.selector.regexMatch.pattern", pattern, why))
    return faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]" if faults else ""
