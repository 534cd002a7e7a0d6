"""What does a process show to everybody? Health on one address, metrics and profiles on another, as vc-scheduler does.

Asked for by flags, and without TLS: whoever reaches the address may read it, and change nothing. A process that has a
port with TLS besides shows the same health and the same numbers there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from bayplan.app.health_server import insecure_server
from bayplan.clock import LoopClock
from bayplan.server import ServerViews, build_routes
from bayplan.server.health import Handler
from bayplan.server.http.insecure_server import InsecureHandler
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.responses import HttpServerResponse, text
from bayplan.server.profiling import profiling_routes

_PROBE_PATHS = ("/healthz", "/livez", "/readyz")


@dataclass(frozen=True, slots=True, kw_only=True)
class InsecureServingOptions:
    """What is shown, and where."""

    health: bool = False
    health_address: str = ":11251"
    metrics: bool = False
    profiling: bool = False
    listen_address: str = ":8080"
    """Of metrics and profiles."""


@asynccontextmanager
async def serve_insecure(views: ServerViews, pages: InsecureServingOptions, clock: LoopClock) -> AsyncIterator[None]:
    """The servers that were asked for, before anything in the cluster is."""
    routes = build_routes(views, clock)
    health: dict[str, InsecureHandler] = {}
    if pages.health:
        health |= {path: handler for path, handler in routes.items() if path.startswith(_PROBE_PATHS)}
    numbers: dict[str, InsecureHandler] = {}
    if pages.metrics:
        numbers["/metrics"] = _read_only(routes["/metrics"])
    if pages.profiling:
        numbers |= profiling_routes(clock)
    async with AsyncExitStack() as stack:
        for address, shown in ((pages.health_address, health), (pages.listen_address, numbers)):
            if shown:
                await stack.enter_async_context(insecure_server(address, shown, clock))
        yield


def _read_only(handler: Handler) -> InsecureHandler:
    """DELETE would set all counters back, which is for those alone who are let in by the port with TLS."""

    def read(request: HttpRequest) -> HttpServerResponse:
        if request.method not in ("GET", "HEAD"):
            return text("metrics can only be read here", 405)
        return handler(request)

    return read
