"""How busy is the binder, and how well does it go? Requests by phase, attempts, plugins, what could not be undone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bayplan.telemetry.metrics import Counter, Gauge, Histogram, MetricsRegistry, Stability, exponential_buckets

_PREFIX = "kai_binder_"
_NONE = Stability.NONE
_SECONDS = exponential_buckets(0.001, 2, 18)


class BinderMetrics:
    """Fits `binder.observing.BinderObserver`."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self.requests = Gauge(f"{_PREFIX}bind_requests", "Bind requests by phase.", ("phase",), stability=_NONE)
        self.attempts = Counter(
            f"{_PREFIX}bind_attempts_total",
            "Attempts to bind a pod, by what came of them.",
            ("result",),
            stability=_NONE,
        )
        self.seconds = Histogram(
            f"{_PREFIX}bind_attempt_seconds", "How long attempts took.", ("result",), buckets=_SECONDS, stability=_NONE
        )
        self.waits = Histogram(
            f"{_PREFIX}bind_request_wait_seconds",
            "From the making of a bind request, in whole seconds, to its pod's binding.",
            buckets=_SECONDS,
            stability=_NONE,
        )
        self.plugins = Histogram(
            f"{_PREFIX}plugin_seconds", "How long plugins took.", ("plugin", "stage"), buckets=_SECONDS, stability=_NONE
        )
        self.plugin_failures = Counter(
            f"{_PREFIX}plugin_failures_total", "Plugins that failed.", ("plugin", "stage"), stability=_NONE
        )
        self.rollbacks = Counter(
            f"{_PREFIX}rollback_failures_total", "What could not be taken back.", ("plugin",), stability=_NONE
        )
        registry.add(self.requests, self.attempts, self.seconds, self.waits)
        registry.add(self.plugins, self.plugin_failures, self.rollbacks)
        self._registry = registry

    def set_phases(self, phases: Callable[[], Mapping[str, int]]) -> None:
        """Count requests so, whenever somebody scrapes."""

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
    """How many requests of an engine are stale, whenever somebody scrapes."""
    gauge = Gauge("kai_bindrequests_stale", "Bind requests that no binder takes up, or tries again.", stability=_NONE)
    registry.add(gauge)
    registry.collect(lambda: gauge.set(count()))
