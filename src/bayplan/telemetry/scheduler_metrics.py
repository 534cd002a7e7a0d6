"""kube-scheduler's metrics, with its names, labels, buckets, help texts and stability levels.

The pod engine calls the methods below; each is a lookup and an addition. Timings of plugins and extension points are
read from the framework's `PluginTimings` at each scrape. A decision makes some twenty additions: about 5 µs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bayplan.telemetry.metrics import (
    AnyFamily,
    Counter,
    Gauge,
    GaugeValue,
    Histogram,
    MetricsRegistry,
    Stability,
    exponential_buckets,
)
from bayplan.telemetry.plugin_timings import (
    CLASS_LOOKUP_BUCKETS,
    PLUGIN_BUCKETS,
    POINT_BUCKETS,
    PluginTimings,
    PointTimings,
)

_BETA, _STABLE = Stability.BETA, Stability.STABLE
_ATTEMPT = exponential_buckets(0.001, 2, 15)
_LONG = exponential_buckets(0.01, 2, 20)

SCHEDULED, UNSCHEDULABLE, ERROR = "scheduled", "unschedulable", "error"
"""The results of an attempt."""

_ATTEMPTS_BUCKETS = 15
_EVALUATED = ("PreFilter", "Filter", "PreScore", "Score")
_HIDDEN_POINTS = ("depends_on",)  # not an extension point of upstream
_METRIC_NAMES = {"signature": "Sign"}
_PREEMPTION = ("DefaultPreemption", "PostFilter")


class SchedulerMetrics:
    """Every `scheduler_*` metric. `gates`: the enabled feature gates; some metrics exist only with their gate."""

    def __init__(self, registry: MetricsRegistry, timings: PluginTimings, *, gates: Collection[str] = ()) -> None:
        self._timings = timings
        self._attempts()
        self._pods()
        self._queue()
        self._framework()
        self._preemption()
        self._volumes_and_devices()
        self._batches_and_groups()
        self._calls()
        for family, gate in self._families():
            if not gate or gate in gates:
                registry.add(family)
        registry.collect(self._gather, reset=timings.reset)

    def _families(self) -> Iterable[tuple[AnyFamily, str]]:
        """All families, each with its feature gate or an empty string."""
        gated: dict[AnyFamily, str] = {
            self.hint_seconds: "SchedulerQueueingHints",
            self.inflight_events: "SchedulerQueueingHints",
            self.preemption_run_seconds: "SchedulerAsyncPreemption",
            self.preemption_runs: "SchedulerAsyncPreemption",
            self.api_calls: "SchedulerAsyncAPICalls",
            self.api_call_seconds: "SchedulerAsyncAPICalls",
            self.pending_api_calls: "SchedulerAsyncAPICalls",
            self.claims_created: "DRAExtendedResource",
            self.group_attempts: "GenericWorkload",
            self.group_attempt_seconds: "GenericWorkload",
            self.group_algorithm_seconds: "GenericWorkload",
            self.condition_allocations: "DRADeviceBindingConditions",
            self.condition_seconds: "DRADeviceBindingConditions",
        }
        families = (value for value in vars(self).values() if isinstance(value, AnyFamily))
        return ((family, gated.get(family, "")) for family in families)

    # Families. Their help texts say what they count.

    def _attempts(self) -> None:
        self.attempts = Counter(
            "scheduler_schedule_attempts_total",
            "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, "
            "while 'error' means an internal scheduler problem.",
            ("result", "profile"),
            stability=_STABLE,
        )
        self.attempt_seconds = Histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
            ("result", "profile"),
            buckets=_ATTEMPT,
            stability=_STABLE,
        )
        self.algorithm_seconds = Histogram(
            "scheduler_scheduling_algorithm_duration_seconds",
            "Scheduling algorithm latency in seconds",
            buckets=_ATTEMPT,
        )

    def _pods(self) -> None:
        self.sli_seconds = Histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might "
            "involve multiple scheduling attempts.",
            ("attempts",),
            buckets=_LONG,
            stability=_BETA,
        )
        self.pod_attempts = Histogram(
            "scheduler_pod_scheduling_attempts",
            "Number of attempts to successfully schedule a pod.",
            buckets=exponential_buckets(1, 2, 5),
            stability=_STABLE,
        )
        self.after_flush = Counter(
            "scheduler_pod_scheduled_after_flush_total",
            "Number of pods that were successfully scheduled after being flushed from unschedulablePods due to "
            "timeout. This metric helps detect potential queueing hint misconfigurations or event handling issues.",
        )
        self.unschedulable = Gauge(
            "scheduler_unschedulable_pods",
            "The number of unschedulable pods broken down by plugin name. A pod will increment the gauge for all "
            "plugins that caused it to not schedule and so this metric have meaning only when broken down by plugin.",
            ("plugin", "profile"),
            stability=_BETA,
        )

    def _queue(self) -> None:
        self.pending_pods = Gauge(
            "scheduler_pending_pods",
            "Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means "
            "number of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler "
            "attempted to schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never "
            "attempted to schedule because they are gated.",
            ("queue",),
            stability=_STABLE,
        )
        self.incoming_pods = Counter(
            "scheduler_queue_incoming_pods_total",
            "Number of pods added to scheduling queues by event and queue type.",
            ("queue", "event"),
            stability=_STABLE,
        )
        self.inflight_events = Gauge(
            "scheduler_inflight_events", "Number of events currently tracked in the scheduling queue.", ("event",)
        )
        self.event_seconds = Histogram(
            "scheduler_event_handling_duration_seconds",
            "Event handling latency in seconds.",
            ("event",),
            buckets=POINT_BUCKETS,
        )
        self.hint_seconds = Histogram(
            "scheduler_queueing_hint_execution_duration_seconds",
            "Duration for running a queueing hint function of a plugin.",
            ("plugin", "event", "hint"),
            buckets=PLUGIN_BUCKETS,
        )
        self.cached = Gauge(
            "scheduler_cache_size", "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.", ("type",)
        )

    def _framework(self) -> None:
        self.point_seconds = Histogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Latency for running all plugins of a specific extension point.",
            ("extension_point", "status", "profile"),
            buckets=POINT_BUCKETS,
            stability=_STABLE,
        )
        self.plugin_seconds = Histogram(
            "scheduler_plugin_execution_duration_seconds",
            "Duration for running a plugin at a specific extension point.",
            ("plugin", "extension_point", "status"),
            buckets=PLUGIN_BUCKETS,
        )
        self.evaluations = Counter(
            "scheduler_plugin_evaluation_total",
            "Number of attempts to schedule pods by each plugin and the extension point (available only in PreFilter, "
            "Filter, PreScore, and Score).",
            ("plugin", "extension_point", "profile"),
            stability=_BETA,
        )
        self.permit_seconds = Histogram(
            "scheduler_permit_wait_duration_seconds",
            "Duration of waiting on permit.",
            ("result",),
            buckets=_ATTEMPT,
            stability=_BETA,
        )
        self.goroutines = Gauge(
            "scheduler_goroutines",
            "Number of running goroutines split by the work they do such as binding.",
            ("operation",),
            stability=_BETA,
        )

    def _preemption(self) -> None:
        self.victims = Histogram(
            "scheduler_preemption_victims",
            "Number of selected preemption victims",
            buckets=exponential_buckets(1, 2, 7),
            stability=_STABLE,
        )
        self.preemptions = Counter(
            "scheduler_preemption_attempts_total",
            "Total preemption attempts in the cluster till now",
            stability=_STABLE,
        )
        self.preemption_run_seconds = Histogram(
            "scheduler_preemption_goroutines_duration_seconds",
            "Duration in seconds for running goroutines for the preemption.",
            ("result",),
            buckets=_LONG,
        )
        self.preemption_runs = Counter(
            "scheduler_preemption_goroutines_execution_total", "Number of preemption goroutines executed.", ("result",)
        )

    def _volumes_and_devices(self) -> None:
        self.binder_cache_requests = Counter(
            "scheduler_volume_binder_cache_requests_total",
            "Total number for request volume binding cache",
            ("operation",),
        )
        self.volume_errors = Counter(
            "scheduler_volume_scheduling_stage_error_total", "Volume scheduling stage error count", ("operation",)
        )
        self.claims_created = Counter(
            "scheduler_resourceclaim_creates_total",
            "Number of ResourceClaims creation requests within scheduler",
            ("status",),
        )
        self.condition_allocations = Counter(
            "scheduler_dra_bindingconditions_allocations_total",
            "Number of allocations using devices with BindingConditions, counted per driver per scheduling attempt",
            ("profile", "driver", "status"),
        )
        self.condition_seconds = Histogram(
            "scheduler_dra_bindingconditions_wait_duration_seconds",
            "Time in seconds spent waiting for BindingConditions to be satisfied during PreBind.",
            ("profile", "driver", "status"),
            buckets=exponential_buckets(0.1, 2, 14),
        )

    def _batches_and_groups(self) -> None:
        self.batches = Counter(
            "scheduler_batch_attempts_total",
            "Counts of results when we attempt to use batching.",
            ("profile", "result"),
        )
        self.batch_flushes = Counter(
            "scheduler_batch_cache_flushed_total", "Counts of cache flushes by reason.", ("profile", "reason")
        )
        self.node_hint_seconds = Histogram(
            "scheduler_get_node_hint_duration_seconds",
            "Latency for getting a node hint.",
            ("hinted", "profile"),
            buckets=CLASS_LOOKUP_BUCKETS,
        )
        self.store_results_seconds = Histogram(
            "scheduler_store_schedule_results_duration_seconds",
            "Latency for getting a no.",
            ("profile",),
            buckets=CLASS_LOOKUP_BUCKETS,
        )
        self.group_attempts = Counter(
            "scheduler_podgroup_schedule_attempts_total",
            "Number of attempts to schedule pod group, by the result. 'unschedulable' means a pod group could not be "
            "scheduled, while 'error' means an internal scheduler problem.",
            ("result", "profile"),
        )
        self.group_attempt_seconds = Histogram(
            "scheduler_podgroup_scheduling_attempt_duration_seconds",
            "Pod group scheduling attempt latency in seconds (scheduling algorithm + binding)",
            ("result", "profile"),
            buckets=_ATTEMPT,
        )
        self.group_algorithm_seconds = Histogram(
            "scheduler_podgroup_scheduling_algorithm_duration_seconds",
            "Pod group scheduling algorithm latency in seconds",
            buckets=_ATTEMPT,
        )

    def _calls(self) -> None:
        self.api_calls = Counter(
            "scheduler_async_api_call_execution_total",
            "Total number of API calls executed by the async dispatcher.",
            ("call_type", "result"),
        )
        self.api_call_seconds = Histogram(
            "scheduler_async_api_call_execution_duration_seconds",
            "Duration in seconds for executing API call in the async dispatcher.",
            ("call_type", "result"),
            buckets=_ATTEMPT,
        )
        self.pending_api_calls = Gauge(
            "scheduler_pending_async_api_calls",
            "Number of API calls currently pending in the async queue.",
            ("call_type",),
        )

    # Methods that the pod engine calls.

    def observe_decision(self, seconds: float) -> None:
        """Record the duration of a scheduling algorithm run, with or without a node as its result."""
        self.algorithm_seconds.observe(seconds)

    def observe_attempt(self, result: str, profile: str, seconds: float) -> None:
        """Record a finished attempt: after its binding, or when it failed."""
        self.attempts.labels(result, profile).value += 1
        self.attempt_seconds.labels(result, profile).observe(seconds)

    def observe_scheduled(self, attempts: int, since_first_s: float | None, *, after_flush: bool = False) -> None:
        """Record a bound pod: its number of attempts and the time since it was first ready to be scheduled."""
        self.pod_attempts.observe(attempts)
        if since_first_s is not None:
            label = str(attempts) if attempts < _ATTEMPTS_BUCKETS else f"{_ATTEMPTS_BUCKETS}+"
            self.sli_seconds.labels(label).observe(since_first_s)
        if after_flush:
            self.after_flush.inc()

    def hint(self, plugin: str, event: str, answer: str, seconds: float) -> None:
        """Record the duration of a queueing hint; `answer` is Queue, QueueSkip or Error."""
        self.hint_seconds.labels(plugin, event, answer).observe(seconds)

    def incoming(self, queue: str, event: str, pods: int = 1) -> None:
        """Count pods that entered the active, backoff or unschedulable queue."""
        self.incoming_pods.labels(queue, event).value += pods

    def add_rejected(self, plugin: str, profile: str, by: int) -> None:
        """Change the number of pods that are unschedulable because of this plugin."""
        self.unschedulable.labels(plugin, profile).value += by

    def in_flight(self, event: str, by: int) -> None:
        """Change the number of events that are recorded for in-flight pods."""
        self.inflight_events.labels(event).value += by

    def pending(self, *, active: int, backoff: int, unschedulable: int, gated: int) -> None:
        """Set the lengths of the queues; called before a scrape."""
        for queue, pods in zip(
            ("active", "backoff", "unschedulable", "gated"), (active, backoff, unschedulable, gated), strict=True
        ):
            self.pending_pods.labels(queue).value = pods

    def cache_size(self, *, assumed_pods: int, pods: int, nodes: int) -> None:
        """Set the sizes of the cache; called before a scrape."""
        for kind, count in zip(("assumed_pods", "pods", "nodes"), (assumed_pods, pods, nodes), strict=True):
            self.cached.labels(kind).value = count

    def observe_event(self, event: str, seconds: float) -> None:
        """Record the handling of a watch event by cache and queue."""
        self.event_seconds.labels(event).observe(seconds)

    def goroutine_gauge(self, operation: str) -> GaugeValue:
        """The number of running asyncio tasks of an operation, where upstream counts goroutines. The caller increments
        it."""
        return self.goroutines.labels(operation)

    def observe_permit_wait(self, result: str, seconds: float) -> None:
        self.permit_seconds.labels(result).observe(seconds)

    def observe_victims(self, victims: int) -> None:
        self.victims.observe(victims)

    def observe_preemption(self, result: str, seconds: float) -> None:
        """Record the deletion of the victims, or its failure."""
        self.preemption_runs.labels(result).value += 1
        self.preemption_run_seconds.labels(result).observe(seconds)

    def observe_group_decision(self, seconds: float) -> None:
        self.group_algorithm_seconds.observe(seconds)

    def observe_group_attempt(self, result: str, profile: str, seconds: float) -> None:
        self.group_attempts.labels(result, profile).value += 1
        self.group_attempt_seconds.labels(result, profile).observe(seconds)

    def observe_volume_failure(self, stage: str) -> None:
        self.volume_errors.labels(stage).value += 1

    def observe_claim_created(self, result: str) -> None:
        self.claims_created.labels(result).value += 1

    def api_call(self, kind: str, result: str, seconds: float) -> None:
        self.api_calls.labels(kind, result).value += 1
        self.api_call_seconds.labels(kind, result).observe(seconds)

    def observe_device_wait(self, profile: str, driver: str, status: str, seconds: float) -> None:
        self.condition_allocations.labels(profile, driver, status).value += 1
        self.condition_seconds.labels(profile, driver, status).observe(seconds)

    # Collection at a scrape.

    def _gather(self) -> None:
        """Copy the counters of `PluginTimings` to the metrics: they are recorded under other names than upstream
        shows."""
        for plugin, point, status, spread in self._timings.spreads():
            if point not in _HIDDEN_POINTS:
                label = _METRIC_NAMES.get(point) or f"{point[0].upper()}{point[1:]}"
                self.plugin_seconds.labels(plugin, label, status).set_from(spread)
        preempted = 0
        for profile, points in self._timings.profiles():
            self._gather_profile(profile, points)
            preempted += points.call_counts.get(_PREEMPTION, 0)
        self.preemptions.labels().value = preempted

    def _gather_profile(self, profile: str, points: PointTimings) -> None:
        for point, status, spread in points.spreads():
            self.point_seconds.labels(point, status, profile).set_from(spread)
        for (plugin, point), times in points.call_counts.items():
            if point in _EVALUATED:
                self.evaluations.labels(plugin, point, profile).value = times
        for found, label, result in ((True, "hint", "hint_used"), (False, "no_hint", "no_hint")):
            spread = points.class_lookups(found=found)
            if spread.count:
                self.node_hint_seconds.labels(label, profile).set_from(spread)
                self.batches.labels(profile, result).value = spread.count
