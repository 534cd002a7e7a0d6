"""Volcano's defaults for jobs, queues and pod groups.

The webhooks and the embedded API server call these functions, and the controllers for objects that passed neither. Each
function returns a new object. Fields of a wrong type are left for the schema to refuse.
"""

from __future__ import annotations

import copy
from typing import Any

from bayplan.objects.volcano.constants import HIERARCHY, HIERARCHY_WEIGHTS, SCHEDULER, Tree
from bayplan.objects.volcano.types import DEFAULT_QUEUE, ROOT_QUEUE

MAX_RETRY = 3
_PLUGINS_NEEDING_SVC = ("mpi", "pytorch", "ray", "tensorflow")


def with_job_defaults(job: Tree, *, scheduler: str = SCHEDULER) -> Tree:
    job = copy.deepcopy(job)
    spec = job.setdefault("spec", {})
    if not isinstance(spec, dict):
        return job
    for key, value in (("queue", DEFAULT_QUEUE), ("schedulerName", scheduler), ("maxRetry", MAX_RETRY)):
        if not spec.get(key):
            spec[key] = value
    tasks = [each for each in _as_list(spec.get("tasks")) if isinstance(each, dict)]
    for index, task in enumerate(tasks):
        _fill_task(task, index)
    if not spec.get("minAvailable"):
        spec["minAvailable"] = sum(min_available(task) for task in tasks)
    plugins = spec.get("plugins")
    if isinstance(plugins, dict):
        if any(name in plugins for name in _PLUGINS_NEEDING_SVC):
            plugins.setdefault("svc", [])
        if "mpi" in plugins:
            plugins.setdefault("ssh", [])
    return job


def _fill_task(task: Tree, index: int) -> None:
    if not task.get("name"):
        task["name"] = f"default{index}"
    pod = (task.get("template") or {}).get("spec")
    if isinstance(pod, dict) and pod.get("hostNetwork") and not pod.get("dnsPolicy"):
        pod["dnsPolicy"] = "ClusterFirstWithHostNet"
    if task.get("minAvailable") is None:
        partition = task.get("partitionPolicy") or {}
        partitioned = (partition.get("minPartitions") or 0) * (partition.get("partitionSize") or 0)
        task["minAvailable"] = partitioned if (partition.get("minPartitions") or 0) > 0 else replicas(task)
    if not task.get("maxRetry"):
        task["maxRetry"] = MAX_RETRY


def replicas(task: Tree) -> int:
    return int(task.get("replicas") or 0)


def min_available(task: Tree) -> int:
    """How many pods of a task must run; all of them by default."""
    given = task.get("minAvailable")
    return replicas(task) if given is None else int(given)


def with_queue_defaults(queue: Tree) -> Tree:
    queue = copy.deepcopy(queue)
    annotations = queue.setdefault("metadata", {}).get("annotations") or {}
    hierarchy, weights = annotations.get(HIERARCHY), annotations.get(HIERARCHY_WEIGHTS)
    if hierarchy and weights and not hierarchy.startswith(ROOT_QUEUE):
        annotations[HIERARCHY], annotations[HIERARCHY_WEIGHTS] = f"{ROOT_QUEUE}/{hierarchy}", f"1/{weights}"
    spec = queue.setdefault("spec", {})
    if isinstance(spec, dict):
        if spec.get("reclaimable") is None:
            spec["reclaimable"] = True
        if not spec.get("weight"):
            spec["weight"] = 1
    return queue


def with_pod_group_defaults(group: Tree, namespace_queue: str = "") -> Tree:
    """A PodGroup as Volcano stores it. `namespace_queue`: the queue in the annotation of its namespace."""
    group = copy.deepcopy(group)
    spec = group.setdefault("spec", {})
    if isinstance(spec, dict) and spec.get("queue") == DEFAULT_QUEUE and namespace_queue:
        spec["queue"] = namespace_queue
    return group


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
