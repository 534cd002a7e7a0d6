"""Volcano jobs, tasks and queues as trees."""

from __future__ import annotations

from typing import Any

Tree = dict[str, Any]


def container(cpu: str = "100m", **more: Any) -> Tree:
    return {"name": "main", "image": "busybox:1.36", "resources": {"requests": {"cpu": cpu}}, **more}


def task(name: str = "worker", replicas: int = 1, *, annotations: Tree | None = None, **more: Any) -> Tree:
    metadata: Tree = {"annotations": annotations} if annotations else {}
    spec = {"restartPolicy": "Never", "containers": [container()]}
    return {"name": name, "replicas": replicas, "template": {"metadata": metadata, "spec": spec}, **more}


def job(name: str = "train", *tasks: Tree, **spec: Any) -> Tree:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"tasks": list(tasks) or [task()], **spec},
    }


def queue(name: str, *, state: str = "Open", annotations: Tree | None = None, **spec: Any) -> Tree:
    metadata: Tree = {"name": name, **({"annotations": annotations} if annotations else {})}
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": metadata,
        "spec": spec,
        "status": {"state": state} if state else {},
    }
