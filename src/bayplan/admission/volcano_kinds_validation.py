"""Validation of PodGroups, JobFlows, CronJobs, HyperNodes and pod annotations, with Volcano's messages.

The webhooks and the embedded API server call it, and the controllers for objects that passed neither. Jobs and queues
have their own modules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bayplan.admission.job_validation import topology_error
from bayplan.codec.cron import schedule_error
from bayplan.codec.field_errors import aggregate, invalid
from bayplan.objects.name_validation import label_key_problems
from bayplan.objects.volcano.constants import JDB_MAX_UNAVAILABLE, JDB_MIN_AVAILABLE, OPEN, Tree

MAX_CRON_NAME = 52
"""A job's name has at most 63 characters; the scheduled time takes eleven of them."""
_ZONE_PART = re.compile(r"[A-Za-z.\-_0-9+]{1,14}")
_INT = re.compile(r"[+-]?\d+")


def pod_group_error(group: Tree, queues: Mapping[str, Tree]) -> str:
    """Why a new pod group is refused; empty if it is valid."""
    spec = group.get("spec") or {}
    message, name = "", spec.get("queue") or ""
    if name and name not in queues:
        message = f'unable to find queue: queue.scheduling.volcano.sh "{name}" not found'
    elif name and (state := (queues[name].get("status") or {}).get("state") or "") != OPEN:
        message = f"can only submit PodGroup to queue with state `Open`, queue `{name}` status is `{state}`. "
    errors = [f"{error}." for error in [topology_error(spec.get("networkTopology"))] if error]
    for policy in spec.get("subGroupPolicy") or ():
        if error := topology_error(policy.get("networkTopology")):
            errors.append(f"in subGroupPolicy '{policy.get('name')}': {error}.")
            break
    return message + " ".join(errors)


def pod_error(pod: Tree, schedulers: tuple[str, ...]) -> str:
    """Why the annotations of a pod of these schedulers are invalid; empty if they are valid."""
    if (pod.get("spec") or {}).get("schedulerName") not in schedulers:
        return ""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    keys = (JDB_MIN_AVAILABLE, JDB_MAX_UNAVAILABLE)
    for key in keys:
        if key in annotations and (error := _budget_error(key, annotations[key])):
            return error
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
    """Why the dependencies of a flow are invalid; empty if they form a DAG."""
    flows = (flow.get("spec") or {}).get("flows") or []
    needs = {each.get("name"): list((each.get("dependsOn") or {}).get("targets") or ()) for each in flows}
    not_dag = "jobflow Flow is not DAG"
    for targets in needs.values():
        for target in targets:
            if target not in needs:
                return f"{not_dag}: vertex is not defined: {target}"
    remaining = {name: set(targets) for name, targets in needs.items()}
    while free := [name for name, targets in remaining.items() if not targets & remaining.keys()]:
        for name in free:
            del remaining[name]
    return not_dag if remaining else ""


def cron_job_error(cron: Tree) -> str:
    """Why the schedule, the time zone or the name of a CronJob of batch.volcano.sh is invalid."""
    spec, name = cron.get("spec") or {}, str((cron.get("metadata") or {}).get("name") or "")
    message = _schedule_error(spec.get("schedule") or "")
    if spec.get("timeZone") is not None:
        message += time_zone_error(spec["timeZone"])
    if len(name) > MAX_CRON_NAME:
        return (
            f"{message}cronJob name must be no more than {MAX_CRON_NAME} characters to accommodate job name suffix "
            "(max 63 total)"
        )
    if problems := label_key_problems(name):
        message += f'invalid cronJob name "{name}": {"; ".join(problems)}'
    return message


def _schedule_error(schedule: str) -> str:
    if not schedule:
        return " schedule is required, but got empty"
    if "TZ" in schedule:
        return " schedule should not contain TZ or CRON_TZ, TZ should only be set in the timeZone field"
    return "schedule is not a valid cron expression" if schedule_error(schedule) else ""


def time_zone_error(zone: str) -> str:
    """Why a time zone is invalid; empty if it is valid."""
    if not zone:
        return " timeZone must be nil or non-empty string, got empty string"
    message = ""
    for part in zone.split("/"):
        if part in (".", "..") or part.startswith("-") or not _ZONE_PART.fullmatch(part):
            message += " unknown timeZone"
    if zone.lower() == "local":
        return message + " timeZone can't be Local, and must be defined in https://www.iana.org/time-zones"
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        message += " invalid timeZone"
    return message


def hyper_node_error(node: Tree) -> str:
    """Why the members of a HyperNode are invalid; empty if they are valid."""
    members = (node.get("spec") or {}).get("members") or []
    if not members:
        return "spec.members: Invalid value: []: member must have at least one member"
    errors = []
    for member in members:
        pattern = ((member.get("selector") or {}).get("regexMatch") or {}).get("pattern") or ""
        try:
            re.compile(pattern)
        except re.error as error:
            why = f"member regexMatch pattern is invalid: {error}"
            errors.append(invalid("spec.members.selector.regexMatch.pattern", pattern, why))
    return aggregate(errors) if errors else ""
