"""Health checks with upstream's texts: `/healthz`, `/livez`, `/readyz` and their metrics.

Kubelets and load balancers request them every few seconds, without credentials. So the error of a check is shown only
on the path of that check, which needs permission. A check is a function that returns an error or an empty string.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bayplan.codec.go_text import quote
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.responses import NOSNIFF, TEXT, HttpServerResponse, text
from bayplan.telemetry.metrics import Counter, Gauge, MetricsRegistry, Stability

log = logging.getLogger(__name__)

Handler = Callable[[HttpRequest], HttpServerResponse]


@dataclass(frozen=True, slots=True)
class Check:
    """A name and a function that returns the error, empty if healthy."""

    name: str
    error: Callable[[], str]

    def run(self) -> str:
        """The error of the check. An exception in the check is an error too, and does not stop the server."""
        try:
            return self.error()
        except Exception as fault:
            return f"{type(fault).__name__}: {fault}"


PING = Check("ping", lambda: "")


def shutdown_check(stopping: Callable[[], bool]) -> Check:
    return Check("shutdown", lambda: "process is shutting down" if stopping() else "")


def handlers_check(synchronized: Callable[[], bool]) -> Check:
    return Check("sched-handler-sync", lambda: "" if synchronized() else "handlers are not fully synchronized")


def election_check(lease: str, overdue_s: Callable[[], float], *, tolerated_s: float = 20.0) -> Check:
    """`overdue_s`: the time since the end of a lease that this process still holds."""
    problem = f"failed election to renew leadership on lease {lease}"
    return Check("leaderElection", lambda: problem if overdue_s() > tolerated_s else "")


class HealthRecords:
    """Metrics of check results: `/metrics/slis`."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self._last = Gauge(
            "kubernetes_healthcheck",
            "This metric records the result of a single healthcheck.",
            ("name", "type"),
            stability=Stability.STABLE,
        )
        self._all = Counter(
            "kubernetes_healthchecks_total",
            "This metric records the results of all healthcheck.",
            ("name", "type", "status"),
            stability=Stability.STABLE,
        )
        registry.add(self._last, self._all)

    def record(self, check: str, kind: str, *, well: bool) -> None:
        self._last.labels(check, kind).set(int(well))
        self._all.labels(check, kind, "success" if well else "error").inc()


def health_routes(kind: str, checks: Sequence[Check], records: HealthRecords) -> dict[str, Handler]:
    """The handlers of `/healthz`, `/livez` or `/readyz`, by path."""
    checks = checks or (PING,)
    routes: dict[str, Handler] = {f"/{kind}": lambda request: _all_checks(kind, checks, records, request)}
    for check in checks:
        routes[f"/{kind}/{check.name}"] = _single_check(check)
    return routes


def _single_check(check: Check) -> Handler:
    def handler(_: HttpRequest) -> HttpServerResponse:
        problem = check.run()
        return text(f"internal server error: {problem}", 500) if problem else text("ok")

    return handler


def _all_checks(kind: str, checks: Sequence[Check], records: HealthRecords, request: HttpRequest) -> HttpServerResponse:
    excluded = set(request.query.get("exclude", ()))
    lines, failed = [], []
    for check in checks:
        if check.name in excluded:
            lines.append(f"[+]{check.name} excluded: ok")
            continue
        problem = check.run()
        records.record(check.name, kind, well=not problem)
        lines.append(f"[-]{check.name} failed: reason withheld" if problem else f"[+]{check.name} ok")
        failed += [f"[-]{check.name} failed: {problem}"] if problem else []
    if unknown := sorted(excluded - {check.name for check in checks}):
        names = ",".join(map(quote, unknown))
        lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
    if failed:
        log.info("%s check failed: %s", kind, "; ".join(failed))
        return text("\n".join([*lines, f"{kind} check failed"]), 500)
    body = "\n".join([*lines, f"{kind} check passed", ""]) if "verbose" in request.query else "ok"
    return HttpServerResponse(200, body.encode(), TEXT, (NOSNIFF,))
