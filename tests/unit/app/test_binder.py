"""The leader metric of a binder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bayplan.app.binder import BinderMonitor, BinderSettings, binder_lease, binder_process
from bayplan.client import ConnectionConfig
from bayplan.clock import SystemClock
from bayplan.objects.kai.bind_request_definition import bind_request_definition
from bayplan.telemetry.metrics import MetricsRegistry
from bayplan.telemetry.process_metrics import LeaderMetrics
from support.harness.async_tests import async_test
from support.harness.embedded_cluster import run_embedded_cluster
from support.harness.reconciler import DEFINITIONS

STATUS = "leader_election_master_status"


def leader_lines(registry: MetricsRegistry) -> list[str]:
    text = b"".join(registry.render()).decode()
    return [line for line in text.splitlines() if line.startswith(STATUS)]


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[ConnectionConfig]:
    """An API server with the BindRequest CRD."""
    async with run_embedded_cluster(folder) as serving, serving.client() as client:
        await client.create(DEFINITIONS, bind_request_definition())
        yield serving.target()


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside engines"])
def test_the_metric_shows_whether_the_binder_holds_its_lease(tmp_path: Path, beside: bool) -> None:
    @async_test
    async def run() -> None:
        registry, clock = MetricsRegistry(), SystemClock()
        leader = LeaderMetrics(registry) if beside else None
        monitor = BinderMonitor(clock, registry, leader=leader)
        settings = BinderSettings(lease=binder_lease(leader_elect=True, namespace="default"))
        assert leader_lines(registry) == []
        async with (
            cluster(tmp_path) as target,
            binder_process(settings, target, monitor=monitor, clock=clock) as process,
        ):
            assert leader_lines(registry) == [f'{STATUS}{{name="bayplan-binder"}} 0']
            run_task = asyncio.ensure_future(process.run())
            await process.ready.wait()
            assert leader_lines(registry) == [f'{STATUS}{{name="bayplan-binder"}} 1']
            run_task.cancel()
            await asyncio.wait([run_task])

    run()


@async_test
async def test_a_binder_without_a_lease_has_no_leader_metric(tmp_path: Path) -> None:
    monitor = BinderMonitor(SystemClock())
    settings = BinderSettings(lease=binder_lease(leader_elect=False))
    async with cluster(tmp_path) as target, binder_process(settings, target, monitor=monitor):
        assert leader_lines(monitor.registry) == []
