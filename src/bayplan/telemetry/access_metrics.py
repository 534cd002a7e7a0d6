"""Metrics of authentication and authorization of a server that delegates both to the API server.

Updated once a request. User names are mapped to a few label values, so that invented names cannot fill the memory.
"""

from __future__ import annotations

from collections.abc import Callable

from bayplan.telemetry.metrics import Counter, Histogram, MetricsRegistry, exponential_buckets

_SECONDS = exponential_buckets(0.001, 2, 15)
_KNOWN_USERS = ("admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default")

ALLOWED, NO_OPINION, ERROR = "allowed", "no-opinion", "error"


class AccessMetrics:
    """`authentication_*`, `authenticated_*` and `authorization_*`. `now_s`: a clock for durations."""

    def __init__(self, registry: MetricsRegistry, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self._users = Counter(
            "authenticated_user_requests", "Counter of authenticated requests broken out by username.", ("username",)
        )
        self._attempts = Counter("authentication_attempts", "Counter of authenticated attempts.", ("result",))
        self._seconds = Histogram(
            "authentication_duration_seconds",
            "Authentication duration in seconds broken out by result.",
            ("result",),
            buckets=_SECONDS,
        )
        self._authorizations = Counter(
            "authorization_attempts_total",
            "Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', "
            "'no-opinion' or 'error'.",
            ("result",),
        )
        self._authorization_seconds = Histogram(
            "authorization_duration_seconds",
            "Authorization duration in seconds broken out by result.",
            ("result",),
            buckets=_SECONDS,
        )
        registry.add(self._users, self._attempts, self._seconds, self._authorizations, self._authorization_seconds)

    def observe_authentication(self, name: str | None, since_s: float) -> None:
        """Count one authentication: of the user `name`, or a failed one (None). It started at `since_s`."""
        result = "failure" if name is None else "success"
        if name is not None:
            self._users.labels(_user_label(name)).inc()
        self._attempts.labels(result).inc()
        self._seconds.labels(result).observe(self.now_s() - since_s)

    def observe_authorization(self, result: str, since_s: float) -> None:
        self._authorizations.labels(result).inc()
        self._authorization_seconds.labels(result).observe(self.now_s() - since_s)


def _user_label(name: str) -> str:
    if name in _KNOWN_USERS:
        return name
    return "email_id" if "@" in name else "other"
