"""Endpoints without TLS: only the enabled ones, each on its address, and read-only."""

from __future__ import annotations

import asyncio

import pytest

from bayplan.app.insecure_serving import InsecureServingOptions, serve_insecure
from bayplan.clock import ManualClock
from bayplan.server import ServerViews
from bayplan.telemetry.metrics import Counter, MetricsRegistry
from cluster.run import free_ports
from support.harness.async_tests import async_test

HEALTH, METRICS, PROFILES = "/livez", "/metrics", "/debug/pprof/"


async def status(port: int, path: str, method: str = "GET") -> int:
    """The status of a response; 0 if no server listens."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return 0
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


@pytest.mark.parametrize(
    ("options", "health", "numbers"),
    [
        pytest.param({}, {}, {}, id="nothing"),
        pytest.param({"health": True}, {HEALTH: 200, METRICS: 404}, {}, id="health"),
        pytest.param({"metrics": True}, {}, {METRICS: 200, PROFILES: 404, HEALTH: 404}, id="metrics"),
        pytest.param({"profiling": True}, {}, {METRICS: 404, PROFILES: 200}, id="profiles"),
        pytest.param({"metrics": True, "profiling": True}, {}, {METRICS: 200, PROFILES: 200}, id="numbers"),
    ],
)
@async_test
async def test_only_enabled_endpoints_are_served(
    options: dict[str, bool], health: dict[str, int], numbers: dict[str, int]
) -> None:
    first, second = free_ports(2)
    pages = InsecureServingOptions(health_address=f"127.0.0.1:{first}", listen_address=f"127.0.0.1:{second}", **options)
    async with serve_insecure(ServerViews(metrics=MetricsRegistry()), pages, ManualClock()):
        for port, expected in ((first, health), (second, numbers)):
            assert {path: await status(port, path) for path in expected or (HEALTH,)} == (expected or {HEALTH: 0})


@async_test
async def test_counters_cannot_be_reset_without_authorization() -> None:
    counter = Counter("things_total", "Things.")
    registry = MetricsRegistry()
    registry.add(counter)
    counter.inc()
    (port,) = free_ports(1)
    pages = InsecureServingOptions(metrics=True, listen_address=f"127.0.0.1:{port}")
    async with serve_insecure(ServerViews(metrics=registry), pages, ManualClock()):
        assert await status(port, METRICS, "DELETE") == 405
    assert b"things_total 1" in b"".join(registry.render())
