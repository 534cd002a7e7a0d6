"""Pods of Volcano jobs: the task's template with the job's labels, annotations and volumes. Pure functions."""

from __future__ import annotations

import copy
import hashlib

from bayplan.controllers.core.api_types import Tree
from bayplan.controllers.volcano.job_plugins import add_plugins
from bayplan.controllers.volcano.job_view import JobView
from bayplan.objects.volcano.constants import (
    COOLDOWN_TIME,
    GROUP_NAME,
    JDB_MAX_UNAVAILABLE,
    JDB_MIN_AVAILABLE,
    JOB_NAME,
    JOB_NAMESPACE,
    JOB_RETRY_COUNT,
    JOB_VERSION,
    NUMA_POLICY,
    PARTITION_ID,
    PREEMPTABLE,
    QUEUE_NAME,
    REVOCABLE_ZONE,
    TASK_INDEX,
    TASK_SPEC,
    TEMPLATE_UID,
    pod_name,
)


def job_pod(job: JobView, task: Tree, index: int, owner: Tree) -> Tree:
    template = copy.deepcopy(task.get("template") or {})
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    name = pod_name(job.name, task["name"], index)
    if not spec.get("schedulerName"):
        spec["schedulerName"] = job.spec["schedulerName"]
    if not spec.get("priorityClassName") and job.spec.get("priorityClassName"):
        spec["priorityClassName"] = job.spec["priorityClassName"]
    _mount_volumes(job, spec)
    pod: Tree = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {**(meta.get("labels") or {}), **_labels(job, task, index)},
            "annotations": {**(meta.get("annotations") or {}), **_annotations(job, task, index)},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }
    add_plugins(job, task, index, pod)
    return pod


def _annotations(job: JobView, task: Tree, index: int) -> dict[str, str]:
    found = {
        TASK_INDEX: str(index),
        TASK_SPEC: task["name"],
        GROUP_NAME: job.group_name,
        JOB_NAME: job.name,
        QUEUE_NAME: job.queue,
        JOB_VERSION: str(job.version),
        TEMPLATE_UID: f"{job.name}-{task['name']}",
        JOB_RETRY_COUNT: str(job.retries),
    }
    if task.get("topologyPolicy"):
        found[NUMA_POLICY] = task["topologyPolicy"]
    job_annotations = job.item.metadata.annotations
    found |= {
        key: job_annotations[key] for key in (PREEMPTABLE, COOLDOWN_TIME, REVOCABLE_ZONE) if key in job_annotations
    }
    for key in (JDB_MIN_AVAILABLE, JDB_MAX_UNAVAILABLE):
        if key in job_annotations:
            found[key] = job_annotations[key]
            break
    return found


def _labels(job: JobView, task: Tree, index: int) -> dict[str, str]:
    found = {
        TASK_INDEX: str(index),
        JOB_NAME: job.name,
        TASK_SPEC: task["name"],
        JOB_NAMESPACE: job.namespace,
        QUEUE_NAME: job.queue,
    }
    job_annotations = job.item.metadata.labels
    found |= {key: job_annotations[key] for key in (PREEMPTABLE, COOLDOWN_TIME) if key in job_annotations}
    if task.get("partitionPolicy"):
        size = int(task["partitionPolicy"].get("partitionSize") or 0)
        found[PARTITION_ID] = str(index // size if size > 0 else 0)
    return found


def claim_name(job: JobView, index: int) -> str:
    """Name of the claim of an unnamed volume. It is the same at every try, so that no claim is created twice."""
    return f"{job.name}-pvc-{_stable_hash(job, f'claim {index}')}"


def claims_of(job: JobView) -> list[str]:
    volumes = job.spec.get("volumes") or ()
    return [volume.get("volumeClaimName") or claim_name(job, index) for index, volume in enumerate(volumes)]


def _mount_volumes(job: JobView, spec: Tree) -> None:
    seen: set[str] = set()
    for volume, claim in zip(job.spec.get("volumes") or (), claims_of(job), strict=True):
        if claim in seen:
            continue
        seen.add(claim)
        name = f"{job.name}-{_stable_hash(job, f'volume {claim}')}"
        spec.setdefault("volumes", []).append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
        for container in spec.get("containers") or ():
            container.setdefault("volumeMounts", []).append({"name": name, "mountPath": volume["mountPath"]})


def _stable_hash(job: JobView, purpose: str) -> str:
    return hashlib.sha256(f"{job.uid} {purpose}".encode()).hexdigest()[:12]
