"""Validation of a Job of batch.volcano.sh, with Volcano's messages in Volcano's order.

The webhooks and the embedded API server call it for every new or changed job, the job controller before it starts one.
The pod template is validated by the schema, and again by the API server when the pod is created.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.admission.volcano_defaults import min_available, replicas
from bayplan.codec.field_errors import invalid
from bayplan.codec.quantity import QuantityError, parse_quantity
from bayplan.objects.name_validation import dns_subdomain_problems, label_key_problems
from bayplan.objects.volcano.constants import (
    ANY_EVENT,
    JOB_PLUGINS,
    OPEN,
    POLICY_ACTIONS,
    POLICY_EVENTS,
    Tree,
    pod_name,
)
from bayplan.objects.volcano.types import ROOT_QUEUE

_CONFLICTING_TIERS = "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously"
_CONFLICTING_CLAIM = (
    "conflict: If you want to use an existing PVC, just specify VolumeClaimName."
    "If you want to create a new PVC, you do not need to specify VolumeClaimName"
)


def job_errors(job: Tree) -> str:
    """Why a new job is invalid; empty if it is valid."""
    spec, name = job.get("spec") or {}, _name(job)
    tasks: list[Tree] = spec.get("tasks") or []
    if not tasks:
        return "No task specified in job spec"
    plugins: Mapping[str, Any] = spec.get("plugins") or {}
    if "mpi" in plugins and argument_value(plugins["mpi"], "master", "master") not in {
        task.get("name") for task in tasks
    }:
        return "The specified mpi master task was not found"
    message = topology_error(spec.get("networkTopology"))
    message += _task_errors(tasks, name)
    if problems := label_key_problems(name):
        message += f"create job with name {name} validate failed [{' '.join(problems)}]"
    if sum(replicas(task) for task in tasks) < int(spec.get("minAvailable") or 0):
        message += " job 'minAvailable' should not be greater than total replicas in tasks;"
    message += _policies_error(spec.get("policies") or [], "spec.policies")
    message += "".join(f" unable to find job plugin: {each};" for each in plugins if each not in JOB_PLUGINS)
    message += _volume_error(spec.get("volumes") or [])
    if any(task.get("dependsOn") for task in tasks) and not _is_acyclic(tasks):
        message += " job has dependencies between tasks, but doesn't form a directed acyclic graph(DAG);"
    return message


def job_queue_error(job: Tree, queues: Mapping[str, Tree]) -> str:
    """Why a new job cannot be submitted to its queue; empty if it can."""
    name = (job.get("spec") or {}).get("queue") or ""
    queue = queues.get(name)
    if queue is None:
        return f' unable to find job queue: queue.scheduling.volcano.sh "{name}" not found;'
    state = (queue.get("status") or {}).get("state") or ""
    message = ""
    if state != OPEN:
        message = f" can only submit job to queue with state `Open`, queue `{name}` status is `{state}`;"
    if name == ROOT_QUEUE:
        return message + " can not submit job to root queue;"
    children = sum((each.get("spec") or {}).get("parent") == name for each in queues.values())
    if children:
        message += f" can only submit job to leaf queue, queue `{name}` has {children} child queues;"
    return message


def job_update_error(old: Tree, new: Tree) -> str:
    """Why an update of a job is refused; empty if it is allowed."""
    spec = new.get("spec") or {}
    tasks: list[Tree] = spec.get("tasks") or []
    for task in tasks:
        if replicas(task) < 0:
            return f"'replicas' must be >= 0 in task: {task.get('name')}"
        if (least := task.get("minAvailable")) is not None:
            if least < 0:
                return f"'minAvailable' must be >= 0 in task: {task.get('name')}"
            if least > replicas(task):
                return f"'minAvailable' must be <= 'replicas' in task: {task.get('name')}"
        if message := _partition_error(task, _name(new)):
            return message
    least = int(spec.get("minAvailable") or 0)
    if least > sum(replicas(task) for task in tasks):
        return "job 'minAvailable' must not be greater than total replicas"
    if least < 0:
        return "job 'minAvailable' must be >= 0"
    if message := topology_error(spec.get("networkTopology")):
        return message
    before = (old.get("spec") or {}).get("tasks") or []
    if len(before) != len(tasks):
        return "job updates may not add or remove tasks"
    if _immutable_part(old) != _immutable_part(new):
        return (
            "job updates may not change fields other than `minAvailable`, `tasks[*].replicas under spec` "
            "and `PriorityClassName`"
        )
    return ""


def _immutable_part(job: Tree) -> Tree:
    """The immutable fields of a job. The claim name of a volume may change: the controller sets it."""
    spec = {key: value for key, value in (job.get("spec") or {}).items() if value not in (None, [], {}, "", 0)}
    for key in ("minAvailable", "priorityClassName"):
        spec.pop(key, None)
    changing = ("replicas", "minAvailable")
    spec["tasks"] = [{k: v for k, v in task.items() if k not in changing} for task in spec.get("tasks") or []]
    spec["volumes"] = [
        {k: v for k, v in volume.items() if k != "volumeClaimName" or not volume.get("volumeClaim")}
        for volume in spec.get("volumes") or []
    ]
    return spec


def _task_errors(tasks: list[Tree], job: str) -> str:
    message, seen = "", set()
    for index, task in enumerate(tasks):
        name = task.get("name") or ""
        if task.get("minAvailable") is not None and min_available(task) > replicas(task):
            message += f" 'minAvailable' is greater than 'replicas' in task: {name}, job: {job};"
        if name in seen:
            return message + f" duplicated task name {name};"
        seen.add(name)
        message += _policies_error(task.get("policies") or [], "spec.tasks.policies")
        pod = pod_name(job, name, index)
        if problems := label_key_problems(pod):
            message += f"create pod with name {pod} validate failed [{' '.join(problems)}];"
        message += _numa_error(task, index)
        message += _partition_error(task, job)
    return message


def _policies_error(policies: list[Tree], path: str) -> str:
    errors = list(_policy_errors(policies, path))
    if not errors:
        return ""
    count = "1 error occurred" if len(errors) == 1 else f"{len(errors)} errors occurred"
    listed = "".join(f"\t* {error}\n" for error in errors)
    events, actions = " ".join(POLICY_EVENTS), " ".join(POLICY_ACTIONS)
    return f"{count}:\n{listed}\n valid events are [{events}], valid actions are [{actions}];"


def _policy_errors(policies: list[Tree], path: str) -> Iterable[str]:
    events: set[str] = set()
    codes: set[int] = set()
    for policy in policies:
        error = _policy_error(policy, path, events, codes)
        if error:
            yield error
            break
    if ANY_EVENT in events and len(events) > 1:
        yield "if there's * here, no other policy should be here"


def _policy_error(policy: Tree, path: str, events: set[str], codes: set[int]) -> str:
    """Why one policy is invalid. Adds its events and exit codes to the given sets."""
    named, code = policy_events(policy), policy.get("exitCode")
    if named and code is not None:
        return "must not specify event and exitCode simultaneously"
    if not named and code is None:
        return "either event and exitCode should be specified"
    for event in named:
        if event not in POLICY_EVENTS:
            return str(invalid(path, event, "invalid policy event"))
        if policy.get("action") not in POLICY_ACTIONS:
            return str(invalid(path, policy.get("action") or "", "invalid policy action"))
        if event in events:
            return f"duplicate event {event}  across different policy"
        events.add(event)
    if named:
        return ""
    if code == 0:
        return "0 is not a valid error code"
    if code in codes:
        return f"duplicate exitCode {code}"
    codes.add(int(code or 0))
    return ""


def policy_events(policy: Tree) -> list[str]:
    """The events of a policy, each once."""
    named = [*(policy.get("events") or ()), *([policy["event"]] if policy.get("event") else ())]
    return list(dict.fromkeys(named))


def _partition_error(task: Tree, job: str) -> str:
    policy = task.get("partitionPolicy")
    if not policy:
        return ""
    total, size, least = (int(policy.get(key) or 0) for key in ("totalPartitions", "partitionSize", "minPartitions"))
    where, message = f"in task: {task.get('name')}, job: {job}", ""
    if total <= 0:
        message = f"'TotalPartitions' must be greater than 0 {where}"
    elif size <= 0:
        message = f"'PartitionSize' must be greater than 0 {where}"
    elif replicas(task) != total * size:
        message = f"'Replicas' are not equal to TotalPartitions*PartitionSize {where}"
    elif task.get("minAvailable") is not None and least > 0 and least * size != task["minAvailable"]:
        message = f"'MinAvailable' is not equal to MinPartitions*PartitionSize {where}"
    return message + topology_error(policy.get("networkTopology"))


def topology_error(topology: Tree | None) -> str:
    both = topology and topology.get("highestTierAllowed") is not None and topology.get("highestTierName")
    return _CONFLICTING_TIERS if both else ""


def _numa_error(task: Tree, index: int) -> str:
    if task.get("topologyPolicy") in (None, "", "none"):
        return ""
    spec = (task.get("template") or {}).get("spec") or {}
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    for number, container in enumerate(containers):
        resources = container.get("resources") or {}
        cpu = (resources.get("requests") or resources.get("limits") or {}).get("cpu", 0)
        try:
            quantity = parse_quantity(cpu)
        except QuantityError:
            continue  # the schema refuses it
        if quantity.value() * 1000 != quantity.milli_value() or not quantity.value():
            return f"the cpu request isn't  an integer in spec.task[{index}] container[{number}]."
    return ""


def _volume_error(volumes: list[Tree]) -> str:
    paths: set[str] = set()
    for volume in volumes:
        path, name, claim = volume.get("mountPath"), volume.get("volumeClaimName"), volume.get("volumeClaim")
        if not path:
            return " mountPath is required;"
        if path in paths:
            return f" duplicated mountPath: {path};"
        if claim is None and not name:
            return " either VolumeClaim or VolumeClaimName must be specified;"
        if name and claim is not None:
            return _CONFLICTING_CLAIM
        if name and (problems := dns_subdomain_problems(name)):
            return f"invalid VolumeClaimName {name} : [{' '.join(problems)}]"
        paths.add(path)
    return ""


def _is_acyclic(tasks: list[Tree]) -> bool:
    """Whether the dependencies of the tasks form a DAG: removes tasks without open dependencies until none is left."""
    remaining = {task["name"]: set((task.get("dependsOn") or {}).get("name") or ()) for task in tasks}
    while free := [name for name, needs in remaining.items() if not needs & remaining.keys()]:
        for name in free:
            del remaining[name]
    unknown = {need for task in tasks for need in (task.get("dependsOn") or {}).get("name") or ()}
    return not remaining and unknown <= {task["name"] for task in tasks}


def argument_value(arguments: object, name: str, default: str) -> str:
    """The value of a flag in a plugin's arguments, in Go's syntax: `--port=22` or `-port 22`."""
    given = [str(each) for each in arguments] if isinstance(arguments, list) else []
    for index, argument in enumerate(given):
        key, equals, value = argument.partition("=")
        if argument.startswith("-") and key.lstrip("-") == name:
            if equals:
                return value
            following = given[index + 1] if index + 1 < len(given) else ""
            return following if following and not following.startswith("-") else "true"
    return default


def _name(item: Tree) -> str:
    return str((item.get("metadata") or {}).get("name") or "")
