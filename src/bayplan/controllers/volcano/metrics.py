"""Metrics of Volcano's controllers, under the names that Volcano's dashboards use. Counted from the shared informers.

They cause no request: groups are counted at each scrape, phases and pods when the watch delivers them. Objects that
existed before the process started are not counted; the previous process has counted them.
"""

from __future__ import annotations

from collections import Counter as CollectionsCounter
from typing import Any

from bayplan.controllers.core.api_types import PODS, PodFields, UntypedObject
from bayplan.controllers.core.shared_informers import SharedInformerFactory
from bayplan.controllers.volcano.resources import JOB_FLOWS, POD_GROUPS, QUEUES, VC_JOBS
from bayplan.objects.volcano.types import DEFAULT_QUEUE
from bayplan.telemetry.metrics import Counter, Gauge, Histogram, MetricsRegistry, Stability, exponential_range

_PREFIX = "volcano_"
_PHASES = ("Inqueue", "Pending", "Running", "Unknown", "Completed")
_CREATION = exponential_range(50, 60_000, 30)


class VolcanoControllerMetrics:
    """Volcano's controller metrics, under Volcano's names."""

    def __init__(self, informers: SharedInformerFactory, registry: MetricsRegistry) -> None:
        self._started_at = informers.clock.now().replace(microsecond=0)  # creationTimestamp has whole seconds
        self._groups = informers.informer(POD_GROUPS, UntypedObject)
        self._queues = informers.informer(QUEUES, UntypedObject)
        self._jobs = informers.informer(VC_JOBS, UntypedObject)
        self._in_phase = {
            phase: Gauge(
                f"{_PREFIX}queue_pod_group_{phase.lower()}_count",
                f"Groups of a queue that are {phase}.",
                ("queue_name",),
                stability=Stability.NONE,
            )
            for phase in _PHASES
        }
        self._finished_jobs = {
            phase: _counter(f"job_{phase.lower()}_phase_count", f"Jobs that became {phase}.", "job_name", "queue_name")
            for phase in ("Completed", "Failed")
        }
        self._flows = {
            phase: _counter(f"jobflow_{phase.lower()}_phase_count", f"Flows that became {phase}.", "jobflow_namespace")
            for phase in ("Succeed", "Failed")
        }
        self._creation = Histogram(
            f"{_PREFIX}controller_job_to_pod_creation_latency_milliseconds",
            "How long after its job a pod was created.",
            buckets=_CREATION,
            stability=Stability.NONE,
        )
        registry.add(*self._in_phase.values(), *self._finished_jobs.values(), *self._flows.values(), self._creation)
        registry.collect(self._count_groups)
        self._jobs.add_handler(self._on_job)
        informers.informer(JOB_FLOWS, UntypedObject).add_handler(self._on_flow)
        informers.informer(PODS, PodFields).add_handler(self._on_pod)

    def _count_groups(self) -> None:
        """Count groups per queue. Every existing queue gets a value, deleted queues get none."""
        found = CollectionsCounter((_queue(each), each.status.get("phase") or "Pending") for each in self._groups.all())
        queues = {each.name for each in self._queues.all()}
        for phase, gauge in self._in_phase.items():
            gauge.reset()
            for queue in sorted(queues):
                gauge.labels(queue).set(found[queue, phase])

    def _on_job(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        if new is None and old is not None:
            for counter in self._finished_jobs.values():
                counter.forget(*_labels(old))
        elif (
            old is not None
            and new is not None
            and (phase := _phase(new)) != _phase(old)
            and phase in self._finished_jobs
        ):
            self._finished_jobs[phase].labels(*_labels(new)).inc()

    def _on_flow(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        if old is not None and new is not None and (phase := _phase(new)) != _phase(old) and phase in self._flows:
            self._flows[phase].labels(new.namespace).inc()

    def _on_pod(self, old: PodFields | None, new: PodFields | None) -> None:
        if old is not None or new is None or (created := new.metadata.creation_timestamp) is None:
            return
        owner = new.metadata.controller
        job = self._jobs.get(new.namespace, owner.name) if owner is not None and owner.kind == "Job" else None
        if owner is None or job is None or job.uid != owner.uid or created < self._started_at:
            return
        if (job_created := job.metadata.creation_timestamp) is not None:
            self._creation.observe(max(0.0, 1e3 * (created - job_created).total_seconds()))


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"{_PREFIX}{name}", text, labels, stability=Stability.NONE)


def _phase(item: UntypedObject) -> str:
    state: dict[str, Any] = item.status.get("state") or {}
    return str(state.get("phase") or "")


def _queue(item: UntypedObject) -> str:
    return str(item.spec.get("queue") or DEFAULT_QUEUE)


def _labels(job: UntypedObject) -> tuple[str, str]:
    return f"{job.namespace}/{job.name}", _queue(job)
