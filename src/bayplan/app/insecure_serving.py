"""Serving without TLS: health on one address, metrics and profiles on another, as Volcano's components do.

Enabled by flags. Any client that reaches the address may read, and can change nothing. A process that also has a port
with TLS serves the same health and metrics there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from bayplan.clock import LoopClock
from bayplan.server import Check, ServerViews, build_routes
from bayplan.server.health import Handler
from bayplan.server.http.insecure_server import InsecureHandler, InsecureServer
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.responses import HttpServerResponse, text
from bayplan.server.profiling import profiling_routes
from bayplan.telemetry.metrics import MetricsRegistry

_PROBE_PATHS = ("/healthz", "/livez", "/readyz")


@dataclass(frozen=True, slots=True, kw_only=True)
class InsecureServingOptions:
    health: bool = False
    health_address: str = ":11251"
    metrics: bool = False
    profiling: bool = False
    listen_address: str = ":8080"
    """The address of metrics and profiles."""


@asynccontextmanager
async def serve_insecure(views: ServerViews, pages: InsecureServingOptions, clock: LoopClock) -> AsyncIterator[None]:
    """Run the enabled servers. They start before the process connects to the cluster."""
    routes = build_routes(views, clock)
    health: dict[str, InsecureHandler] = {}
    if pages.health:
        health |= {path: handler for path, handler in routes.items() if path.startswith(_PROBE_PATHS)}
    metrics: dict[str, InsecureHandler] = {}
    if pages.metrics:
        metrics["/metrics"] = _read_only(routes["/metrics"])
    if pages.profiling:
        metrics |= profiling_routes(clock)
    async with AsyncExitStack() as stack:
        for address, handlers in ((pages.health_address, health), (pages.listen_address, metrics)):
            if handlers:
                await stack.enter_async_context(insecure_server(address, handlers, clock))
        yield


@asynccontextmanager
async def insecure_server(address: str, routes: Mapping[str, InsecureHandler], clock: LoopClock) -> AsyncIterator[None]:
    server = InsecureServer(address, routes, clock=clock)
    await server.start()
    try:
        yield
    finally:
        await server.close()


@asynccontextmanager
async def health_server(address: str, checks: Sequence[Check], clock: LoopClock) -> AsyncIterator[None]:
    """Serve `/healthz`, `/livez` and `/readyz` within the block; no server without an address."""
    if not address:
        yield
        return
    found = build_routes(
        ServerViews(metrics=MetricsRegistry(), healthz=checks, started_at=clock.now().timestamp()), clock
    )
    routes = {path: handler for path, handler in found.items() if not path.startswith("/metrics")}
    async with insecure_server(address, routes, clock):
        yield


def _read_only(handler: Handler) -> InsecureHandler:
    """Refuse DELETE, which would reset all counters: that needs authorization on the port with TLS."""

    def read(request: HttpRequest) -> HttpServerResponse:
        if request.method not in ("GET", "HEAD"):
            return text("metrics are read-only on this port; use the port with TLS", 405)
        return handler(request)

    return read
