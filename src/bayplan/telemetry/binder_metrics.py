"""Metrics of the binder: requests by phase, attempts, plugin calls and failed rollbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bayplan.telemetry.metrics import Counter, Gauge, Histogram, MetricsRegistry, Stability, exponential_buckets

_PREFIX = "kai_binder_"
_NONE = Stability.NONE
_SECONDS = exponential_buckets(0.001, 2, 18)


class BinderMetrics:
    """Implements `binder.observer.BinderObserver`."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self.requests = Gauge(f"{_PREFIX}bind_requests", "Bind requests by phase.", ("phase",), stability=_NONE)
        self.attempts = Counter(
            f"{_PREFIX}bind_attempts_total", "Attempts to bind a pod, by result.", ("result",), stability=_NONE
        )
        self.seconds = Histogram(
            f"{_PREFIX}bind_attempt_seconds", "Duration of attempts.", ("result",), buckets=_SECONDS, stability=_NONE
        )
        self.waits = Histogram(
            f"{_PREFIX}bind_request_wait_seconds",
            "Time from the creation of a bind request, in whole seconds, to the binding of its pod.",
            buckets=_SECONDS,
            stability=_NONE,
        )
        self.plugins = Histogram(
            f"{_PREFIX}plugin_seconds",
            "Duration of plugin calls.",
            ("plugin", "stage"),
            buckets=_SECONDS,
            stability=_NONE,
        )
        self.plugin_failures = Counter(
            f"{_PREFIX}plugin_failures_total", "Failed plugin calls.", ("plugin", "stage"), stability=_NONE
        )
        self.rollbacks = Counter(f"{_PREFIX}rollback_failures_total", "Failed rollbacks.", ("plugin",), stability=_NONE)
        registry.add(self.requests, self.attempts, self.seconds, self.waits)
        registry.add(self.plugins, self.plugin_failures, self.rollbacks)
        self._registry = registry

    def set_phases(self, phases: Callable[[], Mapping[str, int]]) -> None:
        """Read the number of requests by phase from `phases` at every scrape."""

        def gather() -> None:
            self.requests.reset()
            for phase, count in phases().items():
                self.requests.labels(phase).set(count)

        self._registry.collect(gather)

    def observe_attempt(self, result: str, seconds: float) -> None:
        self.attempts.labels(result).inc()
        self.seconds.labels(result).observe(seconds)

    def observe_plugin(self, plugin: str, stage: str, seconds: float, *, failed: bool) -> None:
        self.plugins.labels(plugin, stage).observe(seconds)
        if failed:
            self.plugin_failures.labels(plugin, stage).inc()

    def observe_rollback_failure(self, plugin: str) -> None:
        self.rollbacks.labels(plugin).inc()

    def observe_wait(self, seconds: float) -> None:
        self.waits.observe(seconds)


def register_stale_requests(registry: MetricsRegistry, count: Callable[[], int]) -> None:
    """Register the gauge of an engine's stale requests; `count` is called at every scrape."""
    gauge = Gauge("kai_bindrequests_stale", "Bind requests that no binder accepts or retries.", stability=_NONE)
    registry.add(gauge)
    registry.collect(lambda: gauge.set(count()))
