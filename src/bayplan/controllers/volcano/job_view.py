"""Read-only view of a Volcano Job: its spec with defaults, and the counts of its pods.

The job controller makes it in every sync. Pure. An object that passed no webhook gets the same defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from bayplan.admission.volcano_defaults import MAX_RETRY, min_available, replicas, with_job_defaults
from bayplan.controllers.core.api_types import PodFields, Tree, UntypedObject
from bayplan.controllers.volcano.resources import object_to_dict
from bayplan.objects.volcano.constants import JOB_VERSION, OUT_OF_SYNC, PARTITION_ID, PENDING, TASK_SPEC, pod_name


@dataclass(frozen=True)
class JobView:
    """A job with defaults."""

    item: UntypedObject
    scheduler: str = "volcano"

    @cached_property
    def tree(self) -> Tree:
        return with_job_defaults(object_to_dict(self.item), scheduler=self.scheduler)

    @property
    def name(self) -> str:
        return self.item.name

    @property
    def namespace(self) -> str:
        return self.item.namespace

    @property
    def uid(self) -> str:
        return self.item.uid

    @property
    def spec(self) -> Tree:
        spec: Tree = self.tree["spec"]
        return spec

    @property
    def tasks(self) -> list[Tree]:
        tasks: list[Tree] = self.spec.get("tasks") or []
        return tasks

    def task(self, name: str) -> Tree | None:
        return next((task for task in self.tasks if task["name"] == name), None)

    @property
    def queue(self) -> str:
        return str(self.spec["queue"])

    @property
    def min_available(self) -> int:
        return int(self.spec["minAvailable"])

    @property
    def min_success(self) -> int | None:
        min_success = self.spec.get("minSuccess")
        return None if min_success is None else int(min_success)

    @property
    def max_retry(self) -> int:
        return int(self.spec.get("maxRetry") or MAX_RETRY)

    @property
    def replicas(self) -> int:
        return sum(replicas(task) for task in self.tasks)

    @property
    def tasks_min_available(self) -> int:
        return sum(min_available(task) for task in self.tasks)

    @property
    def plugins(self) -> dict[str, list[str]]:
        return {name: list(arguments or ()) for name, arguments in (self.spec.get("plugins") or {}).items()}

    @property
    def group_name(self) -> str:
        return f"{self.name}-{self.uid}"

    @property
    def phase(self) -> str:
        """Current phase; Pending for a job without status."""
        return str((self.item.status.get("state") or {}).get("phase") or PENDING)

    @property
    def initiated(self) -> bool:
        phase = (self.item.status.get("state") or {}).get("phase") or ""
        return phase not in ("", PENDING)

    @property
    def version(self) -> int:
        return int(self.item.status.get("version") or 0)

    @property
    def retries(self) -> int:
        return int(self.item.status.get("retryCount") or 0)

    def hosts(self, task: Tree) -> list[str]:
        """Host names of the pods of a task."""
        pod = (task.get("template") or {}).get("spec") or {}
        domain = pod.get("subdomain") or self.name
        if pod.get("hostname"):
            return [f"{pod['hostname']}.{domain}"] if replicas(task) else []
        return [f"{pod_name(self.name, task['name'], index)}.{domain}" for index in range(replicas(task))]


def task_of(pod: PodFields) -> str:
    return pod.metadata.annotations.get(TASK_SPEC, "")


def partition_of(pod: PodFields) -> str:
    return pod.metadata.labels.get(PARTITION_ID, "")


def version_of(pod: PodFields) -> int:
    text = pod.metadata.annotations.get(JOB_VERSION, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def is_out_of_sync(pod: PodFields) -> bool:
    """Whether the controller has marked the pod for deletion; its later events are ignored."""
    return OUT_OF_SYNC in pod.metadata.annotations


@dataclass(slots=True)
class PodPhaseCounts:
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    unknown: int = 0
    terminating: int = 0
    tasks: dict[str, dict[str, int]] = field(default_factory=dict)

    @staticmethod
    def of(pods: Iterable[PodFields], *, leaving: frozenset[str] = frozenset()) -> PodPhaseCounts:
        """`leaving`: uids of deleted pods that the watch may still show."""
        counts = PodPhaseCounts()
        for pod in pods:
            if pod.terminating or pod.uid in leaving:
                counts.terminating += 1
                continue
            phase = pod.status.phase or "Pending"
            name = phase.lower() if phase in ("Pending", "Running", "Succeeded", "Failed") else "unknown"
            setattr(counts, name, getattr(counts, name) + 1)
            of_task = counts.tasks.setdefault(task_of(pod), {})
            of_task[phase] = of_task.get(phase, 0) + 1
        return counts

    @property
    def alive(self) -> int:
        return self.pending + self.running + self.terminating + self.unknown

    def as_status(self) -> Tree:
        """Counts as fields of a job's status, without zeros."""
        fields = {
            "pending": self.pending,
            "running": self.running,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "unknown": self.unknown,
            "terminating": self.terminating,
        }
        found: Tree = {key: value for key, value in fields.items() if value}
        if self.tasks:
            found["taskStatusCount"] = {name: {"phase": phases} for name, phases in sorted(self.tasks.items())}
        return found
