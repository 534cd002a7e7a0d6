"""What the binder counts, as whoever scrapes it reads it: each metric by what has really happened."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.errors import BayplanError
from bayplan.telemetry.binder_metrics import register_stale_requests
from bayplan.telemetry.metrics import MetricsRegistry
from support.harness.reconciler import (
    REQUESTS,
    FailingPlugin,
    ReconcilerHarness,
    RecordingPlugin,
    run_with_reconciler,
)


def test_attempts_are_counted_by_what_came_of_them(tmp_path: Path) -> None:
    plugin = RecordingPlugin("moody", BayplanError("not now"), BayplanError("not now"), BayplanError("not now"))

    async def test(rig: ReconcilerHarness) -> None:
        for name in ("web", "api"):
            await rig.request(await rig.pod(name), name=name, backoffLimit=2)
        assert await rig.sync() is not None
        await rig.sync()
        assert await rig.sync("api") is not None
        assert rig.scraped("kai_binder_bind_request_wait_seconds_count") == {"": 0.0}
        await rig.sync("api")
        counts = {'result="bound"': 1.0, 'result="given_up"': 1.0, 'result="retried"': 2.0}
        assert rig.scraped("kai_binder_bind_attempts_total") == counts
        assert rig.scraped("kai_binder_bind_attempt_seconds_count") == counts
        assert rig.scraped("kai_binder_bind_request_wait_seconds_count") == {"": 1.0}

    run_with_reconciler(tmp_path, test, plugin)


class Stuck(FailingPlugin):
    """Takes nothing back, either."""

    async def rollback(self, *_: Any) -> None:
        raise BayplanError("it is stuck")


def test_plugins_are_timed_and_their_failures_counted_those_to_take_things_back_once_more(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), backoffLimit=1)
        await rig.sync()
        good, stuck = 'plugin="good",stage=', 'plugin="failing",stage='
        assert rig.scraped("kai_binder_plugin_seconds_count") == {
            f'{good}"pre_bind"': 1.0,
            f'{stuck}"pre_bind"': 1.0,
            f'{stuck}"rollback"': 1.0,
            f'{good}"rollback"': 1.0,
        }
        assert rig.scraped("kai_binder_plugin_failures_total") == {f'{stuck}"pre_bind"': 1.0, f'{stuck}"rollback"': 1.0}
        assert rig.scraped("kai_binder_rollback_failures_total") == {'plugin="failing"': 1.0}

    run_with_reconciler(tmp_path, test, RecordingPlugin("good"), Stuck())


def test_devices_that_could_not_be_given_back_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def release(*_: Any) -> None:
        raise BayplanError("nobody answers")

    async def test(rig: ReconcilerHarness) -> None:
        part = {"receivedResourceType": "Fraction", "selectedGPUGroups": ["g"]}
        await rig.request(None, **part)  # for a pod that is not there
        monkeypatch.setattr(rig.reservations, "release", release)
        assert await rig.sync() is None
        assert rig.scraped("kai_binder_rollback_failures_total") == {'plugin="reservations"': 1.0}

    run_with_reconciler(tmp_path, test)


def test_requests_are_counted_by_phase_as_they_are_when_somebody_asks(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        async with rig.run_binder() as live:
            rig.metrics.set_phases(live.phases)
            await rig.request(await rig.pod())
            await rig.until_phase("Succeeded")
            await rig.request(None, name="gone")
            await rig.until_phase("Failed", "gone")
            garbled = {"resourceClaimAllocations": [{"name": "gpu", "allocation": {"devices": 3}}]}
            await rig.request(None, name="garbled", **garbled)
            await rig.until_phase("Failed", "garbled")
            counts = {'phase="Pending"': 0.0, 'phase="Succeeded"': 1.0, 'phase="Failed"': 2.0}
            assert rig.scraped("kai_binder_bind_requests") == counts
            await rig.client.delete(REQUESTS, name="gone", namespace="default")
            while ("default", "gone") in rig.view.requests:
                await asyncio.sleep(0.02)
            assert rig.scraped("kai_binder_bind_requests") == {**counts, 'phase="Failed"': 1.0}

    run_with_reconciler(tmp_path, test)


def test_stale_requests_are_counted_as_they_are_when_somebody_asks() -> None:
    registry, stale = MetricsRegistry(), {"a"}
    register_stale_requests(registry, lambda: len(stale))

    def shown() -> list[str]:
        lines = b"".join(registry.render()).decode().splitlines()
        return [line for line in lines if line.startswith("kai_bindrequests_stale")]

    assert shown() == ["kai_bindrequests_stale 1"]
    stale.clear()
    assert shown() == ["kai_bindrequests_stale 0"]
