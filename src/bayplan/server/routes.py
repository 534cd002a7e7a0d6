"""Routes of the HTTPS server, built from views that the composition root provides.

Every view is a function that is called at each request. No view accesses the engine directly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayplan.clock import Clock
from bayplan.codec.go_text import json_text
from bayplan.objects.core import Pod
from bayplan.server.health import Check, Handler, HealthRecords, health_routes
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.responses import JSON, NOSNIFF, HttpServerResponse, compressed, text
from bayplan.server.http.why import ExplainFunction
from bayplan.server.web.page_streams import PageStreams
from bayplan.server.zpages import ComponentInfo, flagz, statusz
from bayplan.telemetry.metrics import CONTENT_TYPE, Gauge, MetricsRegistry
from bayplan.telemetry.pod_resources import render_pod_resources

Routes = Mapping[str, Handler]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerViews:
    """The views that the server can serve. A missing view has no path."""

    metrics: MetricsRegistry
    healthz: Sequence[Check] = ()
    livez: Sequence[Check] = ()
    readyz: Sequence[Check] = ()
    started_at: float = 0.0
    """Start time of the process in seconds since 1970."""
    pods: Callable[[], Collection[Pod]] | None = None
    """The pods for `/metrics/resources`; none while another instance leads."""
    configuration: Callable[[], Mapping[str, Any]] | None = None
    """The effective configuration, in the form of its file."""
    flags: Callable[[], Mapping[str, str]] | None = None
    about: ComponentInfo | None = None
    set_verbosity: Callable[[int], None] | None = None
    why: ExplainFunction | None = None
    """The explanation of a pod, served below `/why/`."""
    page: PageStreams | None = None
    """The streams of the page, which is served below `/page/`."""


def build_routes(views: ServerViews, clock: Clock) -> dict[str, Handler]:
    slis = MetricsRegistry(disabled=("registered_metrics_total", "disabled_metrics_total", "hidden_metrics_total"))
    records = HealthRecords(slis)
    start = Gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
    start.set(views.started_at)
    slis.add(start)
    routes: dict[str, Handler] = {}
    for kind, checks in (("healthz", views.healthz), ("livez", views.livez), ("readyz", views.readyz)):
        routes |= health_routes(kind, checks, records)
    routes["/metrics"] = _metrics(views.metrics.render, views.metrics.reset, views.started_at)
    routes["/metrics/slis"] = _metrics(slis.render, lambda: None, views.started_at)
    if (pods := views.pods) is not None:
        routes["/metrics/resources"] = _metrics(lambda: render_pod_resources(pods()), lambda: None, views.started_at)
    if (configuration := views.configuration) is not None:
        routes["/configz"] = lambda _: _configuration(configuration())
    if views.flags is not None:
        routes["/flagz"] = flagz(views.about.component if views.about else "kube-scheduler", views.flags)
    if views.about is not None:
        routes["/statusz"] = statusz(views.about, list(routes), clock)
    if (set_verbosity := views.set_verbosity) is not None:
        routes["/debug/flags/v"] = lambda request: _verbosity(request, set_verbosity)
    return routes


def _metrics(render: Callable[[], Iterable[bytes]], reset: Callable[[], None], started_at: float) -> Handler:
    def handler(request: HttpRequest) -> HttpServerResponse:
        if request.method == "DELETE":
            reset()
            return text("metrics reset\n")
        pieces, headers = compressed(request, render())
        return HttpServerResponse(
            200, pieces, CONTENT_TYPE, (("Process-Start-Time-Unix", str(int(started_at))), *headers)
        )

    return handler


def _configuration(tree: Mapping[str, Any]) -> HttpServerResponse:
    return HttpServerResponse(200, json_text({"componentconfig": tree}).encode(), JSON, (NOSNIFF,))


def _verbosity(request: HttpRequest, set_verbosity: Callable[[int], None]) -> HttpServerResponse:
    if request.method != "PUT":
        return text("unsupported http method", 406, content_type="text/plain")
    word = request.body.decode("utf-8", "replace")
    if not (word.isascii() and word.isdecimal() and len(word) < 10):
        message = f'strconv.ParseUint: parsing "{word}": invalid syntax'
        return text(message, 400, content_type="text/plain")
    set_verbosity(int(word))
    done = f"successfully set klog.logging.verbosity to {word}\n"
    return HttpServerResponse(200, done.encode(), "text/plain", (NOSNIFF,))
