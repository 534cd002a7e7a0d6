"""Metrics of the binder, as scraped: each metric after the events that it counts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.errors import BayplanError
from bayplan.telemetry.binder_metrics import register_stale_requests
from bayplan.telemetry.metrics import MetricsRegistry
from support.harness.reconciler import REQUESTS, FailingPlugin, ReconcilerHarness, RecordingPlugin, run_with_reconciler


def test_attempts_are_counted_by_result(tmp_path: Path) -> None:
    plugin = RecordingPlugin("moody", BayplanError("not now"), BayplanError("not now"), BayplanError("not now"))

    async def test(harness: ReconcilerHarness) -> None:
        for name in ("web", "api"):
            await harness.request(await harness.pod(name), name=name, backoffLimit=2)
        assert await harness.sync() is not None
        await harness.sync()
        assert await harness.sync("api") is not None
        assert harness.scraped("kai_binder_bind_request_wait_seconds_count") == {"": 0.0}
        await harness.sync("api")
        counts = {'result="bound"': 1.0, 'result="given_up"': 1.0, 'result="retried"': 2.0}
        assert harness.scraped("kai_binder_bind_attempts_total") == counts
        assert harness.scraped("kai_binder_bind_attempt_seconds_count") == counts
        assert harness.scraped("kai_binder_bind_request_wait_seconds_count") == {"": 1.0}

    run_with_reconciler(tmp_path, test, plugin)


class Stuck(FailingPlugin):
    """Also fails in rollback."""

    async def rollback(self, *_: Any) -> None:
        raise BayplanError("it is stuck")


def test_plugins_are_timed_and_their_failures_and_rollback_failures_counted(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), backoffLimit=1)
        await harness.sync()
        good, stuck = 'plugin="good",stage=', 'plugin="failing",stage='
        assert harness.scraped("kai_binder_plugin_seconds_count") == {
            f'{good}"pre_bind"': 1.0,
            f'{stuck}"pre_bind"': 1.0,
            f'{stuck}"rollback"': 1.0,
            f'{good}"rollback"': 1.0,
        }
        assert harness.scraped("kai_binder_plugin_failures_total") == {
            f'{stuck}"pre_bind"': 1.0,
            f'{stuck}"rollback"': 1.0,
        }
        assert harness.scraped("kai_binder_rollback_failures_total") == {'plugin="failing"': 1.0}

    run_with_reconciler(tmp_path, test, RecordingPlugin("good"), Stuck())


def test_failed_releases_of_devices_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def release(*_: Any) -> None:
        raise BayplanError("no response")

    async def test(harness: ReconcilerHarness) -> None:
        part = {"receivedResourceType": "Fraction", "selectedGPUGroups": ["g"]}
        await harness.request(None, **part)  # for a pod that does not exist
        monkeypatch.setattr(harness.reservations, "release", release)
        assert await harness.sync() is None
        assert harness.scraped("kai_binder_rollback_failures_total") == {'plugin="reservations"': 1.0}

    run_with_reconciler(tmp_path, test)


def test_requests_are_counted_by_phase_at_the_scrape(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder() as live:
            harness.metrics.set_phases(live.phases)
            await harness.request(await harness.pod())
            await harness.until_phase("Succeeded")
            await harness.request(None, name="gone")
            await harness.until_phase("Failed", "gone")
            garbled = {"resourceClaimAllocations": [{"name": "gpu", "allocation": {"devices": 3}}]}
            await harness.request(None, name="garbled", **garbled)
            await harness.until_phase("Failed", "garbled")
            counts = {'phase="Pending"': 0.0, 'phase="Succeeded"': 1.0, 'phase="Failed"': 2.0}
            assert harness.scraped("kai_binder_bind_requests") == counts
            await harness.client.delete(REQUESTS, name="gone", namespace="default")
            while ("default", "gone") in harness.view.requests:
                await asyncio.sleep(0.02)
            assert harness.scraped("kai_binder_bind_requests") == {**counts, 'phase="Failed"': 1.0}

    run_with_reconciler(tmp_path, test)


def test_stale_requests_are_counted_at_the_scrape() -> None:
    registry, stale = MetricsRegistry(), {"a"}
    register_stale_requests(registry, lambda: len(stale))

    def shown() -> list[str]:
        lines = b"".join(registry.render()).decode().splitlines()
        return [line for line in lines if line.startswith("kai_bindrequests_stale")]

    assert shown() == ["kai_bindrequests_stale 1"]
    stale.clear()
    assert shown() == ["kai_bindrequests_stale 0"]
