"""Volcano's metrics, with its names, labels and buckets, for dashboards made for Volcano; and some additional ones.

The live batch engine calls the methods below. Metrics of a job are removed with the job; Volcano never removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

from bayplan.objects.core import Pod
from bayplan.objects.volcano.constants import GROUP_NAME
from bayplan.telemetry.metrics import (
    Counter,
    Gauge,
    Histogram,
    MetricsRegistry,
    Stability,
    exponential_buckets,
    exponential_range,
)

_PREFIX = "volcano_"
_NONE = Stability.NONE
_CYCLE = exponential_buckets(5, 2, 10)
_TASK = exponential_buckets(5, 2, 15)
_JOB = exponential_range(100, 120_000, 30)
_EVICTING_ACTIONS = ("preempt", "reclaim", "gangpreempt", "gangreclaim")
_AMOUNTS = ("allocated", "request", "deserved", "capacity", "real_capacity")
_UNITS = ("milli_cpu", "memory_bytes")
_NUMBERS = ("share", "weight", "overused")


class SessionOutcome(Protocol):
    """The results of a session that metrics and the page show; `batch.session.outcome.SessionResult` implements it."""

    @property
    def binds(self) -> Mapping[str, str]: ...
    @property
    def evicts(self) -> Mapping[str, str]: ...
    @property
    def groups(self) -> Mapping[str, Any]: ...
    @property
    def started(self) -> Iterable[str]: ...
    @property
    def shares(self) -> Mapping[str, float]: ...
    @property
    def messages(self) -> Mapping[str, Any]: ...
    @property
    def final_gauges(self) -> Mapping[str, Mapping[str, float]]: ...
    @property
    def action_s(self) -> Mapping[str, float]: ...
    @property
    def plugin_s(self) -> Mapping[tuple[str, str], float]: ...
    @property
    def faults(self) -> list[str]: ...


class BatchMetrics:
    """Every `volcano_*` metric. `now`: the wall clock."""

    def __init__(self, registry: MetricsRegistry, now: Callable[[], datetime]) -> None:
        self._now = now
        self._sessions(registry)
        self._pods(registry)
        self._jobs(registry)
        self._queue_gauges(registry)

    def _sessions(self, registry: MetricsRegistry) -> None:
        def histogram(name: str, text: str, labels: tuple[str, ...] = ()) -> Histogram:
            return Histogram(f"{_PREFIX}{name}", text, labels, buckets=_CYCLE, stability=_NONE)

        self.e2e = histogram("e2e_scheduling_latency_milliseconds", "Latency of one session.")
        self.opened = histogram("open_session_duration_milliseconds", "Time to open a session.")
        self.plugins = histogram(
            "plugin_scheduling_latency_milliseconds", "Latency of a plugin.", ("plugin", "OnSession")
        )
        self.actions = histogram("action_scheduling_latency_milliseconds", "Latency of an action.", ("action",))
        self.faults = Gauge(
            f"{_PREFIX}faults", "Misconfigurations that a user has to fix; the log names them.", stability=_NONE
        )
        registry.add(self.e2e, self.opened, self.plugins, self.actions, self.faults)

    def _pods(self, registry: MetricsRegistry) -> None:
        self.tasks = Histogram(
            f"{_PREFIX}task_scheduling_latency_milliseconds",
            "Time from the creation of a pod to this stage.",
            ("stage",),
            buckets=_TASK,
            stability=_NONE,
        )
        self.stages = Histogram(
            f"{_PREFIX}scheduling_stage_duration_milliseconds",
            "Duration of a stage.",
            ("stage",),
            buckets=_CYCLE,
            stability=_NONE,
        )
        self.attempts = Counter(
            f"{_PREFIX}schedule_attempts_total", "Attempts to schedule pods, by result.", ("result",), stability=_NONE
        )
        self.victims = Gauge(
            f"{_PREFIX}pod_preemption_victims", "Victims of the last session that selected victims.", stability=_NONE
        )
        self.preemptions = Counter(
            f"{_PREFIX}total_preemption_attempts", "Sessions that selected victims.", stability=_NONE
        )
        self.bound_total = Counter(f"{_PREFIX}pods_bound_total", "Pods bound.", stability=_NONE)
        self.evictions = Counter(
            f"{_PREFIX}evictions_total", "Pods that sessions evicted, by reason.", ("reason",), stability=_NONE
        )
        registry.add(self.tasks, self.stages, self.attempts, self.victims)
        registry.add(self.preemptions, self.bound_total, self.evictions)

    def _jobs(self, registry: MetricsRegistry) -> None:
        self.waiting_tasks = Gauge(
            f"{_PREFIX}unschedule_task_count", "Tasks that could not be scheduled.", ("job_id",), stability=_NONE
        )
        self.waiting_jobs = Gauge(
            f"{_PREFIX}unschedule_job_count", "Jobs that could not be scheduled.", stability=_NONE
        )
        registry.add(self.waiting_tasks, self.waiting_jobs)
        labels = ("job_name", "queue", "job_namespace")
        self.job_latency = Histogram(
            f"{_PREFIX}e2e_job_scheduling_latency_milliseconds",
            "Time from the creation of a job's PodGroup until its last pod had a node.",
            buckets=_JOB,
            stability=_NONE,
        )
        self.job_times = {
            name: Gauge(f"{_PREFIX}e2e_job_scheduling_{name}", text, labels, stability=_NONE)
            for name, text in (
                ("duration", "Scheduling latency of the job, in milliseconds."),
                ("start_time", "First time that the scheduler saw the job, in seconds since 1970."),
                ("last_time", "Time when the last pod of the job had a node, in seconds since 1970."),
            )
        }
        self.job_share = Gauge(
            f"{_PREFIX}job_share", "The dominant share of a job.", ("job_ns", "job_id"), stability=_NONE
        )
        self.job_retries = Counter(
            f"{_PREFIX}job_retry_counts", "Failed bindings of a job, which are retried.", ("job_id",), stability=_NONE
        )
        registry.add(self.job_latency, *self.job_times.values(), self.job_share, self.job_retries)
        self._job_labels: dict[str, tuple[str, str, str]] = {}  # label values by uid

    def _queue_gauges(self, registry: MetricsRegistry) -> None:
        names = [*(f"{amount}_{unit}" for amount in _AMOUNTS for unit in _UNITS), *_NUMBERS]
        self._queues = {
            name: Gauge(
                f"{_PREFIX}queue_{name}", f"{name.replace('_', ' ')} of a queue.", ("queue_name",), stability=_NONE
            )
            for name in names
        }
        self._scalars = {
            amount: Gauge(
                f"{_PREFIX}queue_{amount}_scalar_resources",
                f"{amount.replace('_', ' ')} of a queue, other resources.",
                ("queue_name", "resource"),
                stability=_NONE,
            )
            for amount in _AMOUNTS
        }
        registry.add(*self._queues.values(), *self._scalars.values())

    # Methods that the engine calls.

    def task_stage(self, stage: str, pod: Pod) -> None:
        created = pod.metadata.creation_timestamp
        if created is not None:
            self.tasks.labels(stage).observe(max(0.0, (self._now() - created).total_seconds() * 1e3))

    def stage(self, stage: str, seconds: float) -> None:
        self.stages.labels(stage).observe(seconds * 1e3)

    def observe_bound(self, pod: Pod) -> None:
        self.attempts.labels("scheduled").inc()
        self.bound_total.inc()
        self.task_stage("Bound", pod)

    def observe_failed(self, pod: Pod) -> None:
        self.attempts.labels("error").inc()
        group = pod.metadata.annotations.get(GROUP_NAME)
        if group:
            self.job_retries.labels(f"{pod.namespace}/{group}").inc()

    def observe_evicted(self, reason: str) -> None:
        self.evictions.labels(reason).inc()

    def observe_session(self, outcome: SessionOutcome, seconds: float, open_s: float) -> None:
        self.e2e.observe(seconds * 1e3)
        self.opened.observe(open_s * 1e3)
        for action, took_s in outcome.action_s.items():
            self.actions.labels(action).observe(took_s * 1e3)
        for (plugin, when), took_s in outcome.plugin_s.items():
            self.plugins.labels(plugin, when).observe(took_s * 1e3)
        self.faults.set(len(outcome.faults))
        if outcome.messages:
            self.attempts.labels("unschedulable").inc(len(outcome.messages))
        victims = sum(reason in _EVICTING_ACTIONS for reason in outcome.evicts.values())
        if victims:
            self.victims.set(victims)
            self.preemptions.inc()
        self._time_jobs(outcome)
        self._count_waiting(outcome)
        self._set_queue_gauges(outcome.final_gauges)

    def _set_queue_gauges(self, gauges: Mapping[str, Mapping[str, float]]) -> None:
        """Set the gauges of all queues. Deleted queues lose theirs."""
        for family in (*self._queues.values(), *self._scalars.values()):
            family.reset()
        for queue, numbers in gauges.items():
            for name, value in numbers.items():
                if name in self._queues:
                    self._queues[name].labels(queue).set(value)
                    continue
                amount, _, resource = name.partition("_scalar_resources/")
                if resource and amount in self._scalars:
                    self._scalars[amount].labels(queue, resource).set(value)

    def _count_waiting(self, outcome: SessionOutcome) -> None:
        waiting = 0
        for uid, group in outcome.groups.items():
            if group.status.phase in ("Pending", "Inqueue", "Unknown"):
                waiting += 1
                self.waiting_tasks.labels(uid).set(group.waiting)
            else:
                self.waiting_tasks.forget(uid)
        self.waiting_jobs.set(waiting)

    def _time_jobs(self, outcome: SessionOutcome) -> None:
        now = self._now()
        for uid, group in outcome.groups.items():
            known = self._job_labels.get(uid)
            if known is None or known[1] != group.queue:
                self.forget([uid])  # the queue may have changed
                namespace, _, name = uid.partition("/")
                self._job_labels[uid] = labels = (name, group.queue, namespace)
                self.job_times["start_time"].labels(*labels).set(now.timestamp())
        for uid, share in outcome.shares.items():
            namespace, _, name = uid.partition("/")
            self.job_share.labels(namespace, name).set(share)
        for uid in outcome.started:
            known, group = self._job_labels.get(uid), outcome.groups.get(uid)
            if known is None or group is None:
                continue
            self.job_times["last_time"].labels(*known).set(now.timestamp())
            if group.created is not None:
                took_ms = max(0.0, (now - group.created).total_seconds() * 1e3)
                self.job_latency.observe(took_ms)
                self.job_times["duration"].labels(*known).set(took_ms)

    def forget(self, jobs: Iterable[str]) -> None:
        for uid in jobs:
            self.waiting_tasks.forget(uid)
            self.job_retries.forget(uid)
            labels = self._job_labels.pop(uid, None)
            if labels is not None:
                name, _, namespace = labels
                self.job_share.forget(namespace, name)
                for family in self.job_times.values():
                    family.forget(*labels)
