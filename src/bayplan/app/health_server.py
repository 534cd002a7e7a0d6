"""Where do probes ask? On an address of its own over plain HTTP, as Volcano's managers serve their health."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from bayplan.clock import LoopClock
from bayplan.server import Check, ServerViews, build_routes
from bayplan.server.http.insecure_server import InsecureHandler, InsecureServer
from bayplan.telemetry.metrics import MetricsRegistry


@asynccontextmanager
async def insecure_server(address: str, routes: Mapping[str, InsecureHandler], clock: LoopClock) -> AsyncIterator[None]:
    """A plain server within the block."""
    server = InsecureServer(address, routes, clock=clock)
    await server.start()
    try:
        yield
    finally:
        await server.close()


@asynccontextmanager
async def health_server(address: str, checks: Sequence[Check], clock: LoopClock) -> AsyncIterator[None]:
    """`/healthz` and its sisters within the block; nothing where there is no address."""
    if not address:
        yield
        return
    found = build_routes(
        ServerViews(metrics=MetricsRegistry(), healthz=checks, started_at=clock.now().timestamp()), clock
    )
    routes = {path: handler for path, handler in found.items() if not path.startswith("/metrics")}
    async with insecure_server(address, routes, clock):
        yield
