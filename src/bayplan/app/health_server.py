"""Health endpoints for probes on an address of their own over plain HTTP, as Volcano's managers have them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from bayplan.clock import LoopClock
from bayplan.server import Check, ServerViews, build_routes
from bayplan.server.http.insecure_server import InsecureHandler, InsecureServer
from bayplan.telemetry.metrics import MetricsRegistry


@asynccontextmanager
async def insecure_server(address: str, routes: Mapping[str, InsecureHandler], clock: LoopClock) -> AsyncIterator[None]:
    """Run a plain HTTP server within the block."""
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
