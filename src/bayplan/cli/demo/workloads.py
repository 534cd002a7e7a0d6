"""Nodes and workloads of the demo, as manifests.

Used by `bayplan demo`, in the order of this file. No function here waits or prints.
"""

from __future__ import annotations

from typing import Any

from bayplan.controllers import RUNS_FOR

Tree = dict[str, Any]

POOLS = ("web=30:cpu=8,memory=32Gi", "batch=16:cpu=16,memory=64Gi", "gpu=4:cpu=32,memory=256Gi,nvidia.com/gpu=8")
ZONES = 3
POOL = "bayplan.dev/pool"
ZONE = "topology.kubernetes.io/zone"
GPU = "nvidia.com/gpu"

WEB_PODS = 24
JOBS = 5
PODS_PER_JOB = 8
TRAINING_PODS = 4
SWEEP_PODS, SWEEP_MIN_MEMBER = 4, 2
SECOND_SWEEP_PODS = 2
RELEASE_PODS = 2
QUEUES = ("research", "product")

SCHEDULER_CONF = """
actions: enqueue, allocate, reclaim, backfill
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: predicates}, {name: proportion}, {name: nodeorder}]
"""
"""Gangs, and queues that share by weight and reclaim their share."""


def web() -> list[Tree]:
    """Replicas that run in one pool and spread over the zones."""
    spread = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    pod = _spec({"cpu": "1", "memory": "2Gi"}, nodeSelector={POOL: "web"}, topologySpreadConstraints=[spread])
    return [_deployment("web", WEB_PODS, pod)]


def jobs() -> list[Tree]:
    """Jobs that complete after a second or two."""
    return [_job(number) for number in range(1, JOBS + 1)]


def queues() -> list[Tree]:
    """Two queues of equal weight: each deserves half of the GPUs, and may use all while the other needs none."""
    kind = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    return [{**kind, "metadata": {"name": name}, "spec": {"weight": 1, "reclaimable": True}} for name in QUEUES]


def sweep() -> Tree:
    """A gang that takes all GPUs and can continue with half of them."""
    return _gang("sweep", QUEUES[0], SWEEP_PODS, SWEEP_MIN_MEMBER)


def second_sweep() -> Tree:
    """A second gang of the same queue, for which no GPU is left."""
    return _gang("later", QUEUES[0], SECOND_SWEEP_PODS, SECOND_SWEEP_PODS)


def release() -> Tree:
    """A gang of the other queue, within its deserved share."""
    return _gang("release", QUEUES[1], RELEASE_PODS, RELEASE_PODS)


def training() -> list[Tree]:
    """Pods that take whole nodes and can be preempted."""
    return [_priority("patient", -10), _priority("urgent", 1000), _training()]


def urgent() -> Tree:
    """A pod that preempts one of them."""
    return _pod("urgent", _spec({"cpu": "4", GPU: "8"}, priorityClassName="urgent"))


def oversized_pod() -> Tree:
    return _pod("giant", _spec({"cpu": "4", GPU: "16"}, nodeSelector={ZONE: "zone-1"}))


def _job(number: int) -> Tree:
    pod = _spec({"cpu": "2", "memory": "4Gi"}, nodeSelector={POOL: "batch"}, restartPolicy="Never")
    template = {"metadata": {"annotations": {RUNS_FOR: f"{1 + number % 2}s"}}, "spec": pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"render-{number}"},
        "spec": {"completions": PODS_PER_JOB, "parallelism": PODS_PER_JOB, "template": template},
    }


def _gang(name: str, queue: str, pods: int, min_member: int) -> Tree:
    pod = _spec({"cpu": "4", GPU: "8"}, restartPolicy="OnFailure", terminationGracePeriodSeconds=1)
    task = {"name": "worker", "replicas": pods, "template": {"metadata": {}, "spec": pod}}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"schedulerName": "volcano", "queue": queue, "minAvailable": min_member, "tasks": [task]},
    }


def _training() -> Tree:
    pod = _spec({"cpu": "8", GPU: "8"}, priorityClassName="patient", terminationGracePeriodSeconds=1)
    return _deployment("train", TRAINING_PODS, pod)


def _priority(name: str, value: int) -> Tree:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    return {**kind, "metadata": {"name": name}, "value": value}


def _deployment(name: str, replicas: int, pod: Tree) -> Tree:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _pod(name: str, spec: Tree) -> Tree:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _spec(amounts: Tree, **more: Any) -> Tree:
    limits = {key: value for key, value in amounts.items() if key == GPU}
    container = {"name": "main", "image": "example.com/main:1", "resources": {"requests": amounts, "limits": limits}}
    return {"containers": [container], **more}
