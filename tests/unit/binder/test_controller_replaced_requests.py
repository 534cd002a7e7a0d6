"""Binder controller: terminating, reset and replaced requests, and bugs in an attempt."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.binder.cancellable_waits import CancellableWaits
from bayplan.binder.controller import BinderController
from bayplan.binder.informer_cache import InformerCache, RequestKey
from bayplan.clock import ManualClock
from bayplan.errors import BayplanError
from bayplan.objects.kai.bind_request import BindRequest, BindRequestSpec, BindRequestStatus
from bayplan.objects.meta import ObjectMeta
from support.harness.reconciler import PODS, REQUESTS, ReconcilerHarness, RecordingPlugin, run_with_reconciler

KEY: RequestKey = ("default", "web")
HELD = {"finalizers": ["example.com/held"]}


def request_of(uid: str = "u", version: int = 1) -> BindRequest:
    meta: dict[str, Any] = {"resource_version": str(version), "generation": version}
    return BindRequest(
        metadata=ObjectMeta(name="web", namespace="default", uid=uid, **meta),
        spec=BindRequestSpec(pod_name="web", selected_node="n1", selected_gpu_groups=("g-1", "g-2")),
    )


def test_a_terminating_request_is_ignored(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        await harness.patch(REQUESTS, "web", {"metadata": HELD})
        await harness.client.delete(REQUESTS, name="web", namespace="default")
        assert await harness.sync() is None
        assert await harness.status() == {}
        assert await harness.node_of() == ""

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == []


def test_a_bug_fails_one_attempt_and_not_the_process(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        def broken() -> None:
            raise KeyError("unexpected")

        harness.steps.at["prepared"] = broken
        await harness.request(await harness.pod())
        assert await harness.sync() is not None
        status = await harness.status()
        assert (status["phase"], status["failedAttempts"]) == ("Failed", 1)
        assert status["reason"] == "KeyError: 'unexpected'"
        del harness.steps.at["prepared"]
        assert await harness.sync() is None
        assert await harness.node_of() == "n1"

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls[:2] == ["noting pre_bind", "noting rollback 1"]


def test_a_pod_that_is_deleted_during_pre_bind_is_not_retried(tmp_path: Path) -> None:
    class Deleting(RecordingPlugin):
        harness: ReconcilerHarness

        async def pre_bind(self, *args: Any) -> None:
            await self.harness.client.delete(PODS, name="web", namespace="default", grace_s=0)
            await super().pre_bind(*args)

    plugin = Deleting("noting", BayplanError("not now"))

    async def test(harness: ReconcilerHarness) -> None:
        plugin.harness = harness
        await harness.request(await harness.pod(**HELD))
        assert await harness.sync() is None
        assert await harness.status() == {"phase": "Failed", "reason": "the pod is gone", "failedAttempts": 3}
        assert harness.reasons == []

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting pre_bind", "noting rollback 1"]


@pytest.mark.parametrize("status", [{"phase": "Pending"}, {"phase": "Failed", "failedAttempts": 1}])
def test_a_reset_success_is_reconciled_again(tmp_path: Path, status: dict[str, Any]) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder():
            await harness.request(await harness.pod())
            await harness.until_phase("Succeeded")
            await harness.patch(REQUESTS, "web", {"status": status}, sub="status")
            await harness.until_phase("Succeeded")
        assert await harness.node_of() == "n1"

    run_with_reconciler(tmp_path, test)


def test_a_cancelled_attempt_is_not_counted(tmp_path: Path) -> None:
    """A starting binder has counted it before the attempt."""

    class Changing(RecordingPlugin):
        harness: ReconcilerHarness

        async def pre_bind(self, *args: Any) -> None:
            assert (await self.harness.status())["failedAttempts"] == 1
            await self.harness.patch(REQUESTS, "web", {"spec": {"backoffLimit": 5}})
            await self.harness.deliver_event(BindRequest, "web")
            await super().pre_bind(*args)

    plugin = Changing()

    async def test(harness: ReconcilerHarness) -> None:
        plugin.harness = harness
        await harness.request(await harness.pod())
        await harness.deliver_event(BindRequest, "web")
        assert await harness.reconciler.reconcile(KEY, existed_at_start=True) is None
        assert await harness.status() == {"phase": "", "reason": "", "failedAttempts": 0}
        assert await harness.node_of() == ""

    run_with_reconciler(tmp_path, test, plugin)


# watch events


def test_groups_of_a_deleted_request_are_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    unused: Any = None
    view, groups = InformerCache(unused), list[str]()
    live = BinderController(
        view, unused, unused, waits=CancellableWaits(view.is_current), clock=ManualClock(), chance=random.Random(0)
    )
    monkeypatch.setattr(live.groups, "add", groups.append)
    request = request_of()
    live.handle_event(None, request)
    live.handle_event(request, replace(request, status=BindRequestStatus("Succeeded")))
    assert groups == []
    live.handle_event(request, None)
    assert groups == ["g-1", "g-2"]


def test_a_replaced_request_did_not_exist_at_the_start(tmp_path: Path) -> None:
    """A list after a broken watch shows only the new uid, without a deletion of the first request."""
    calls: asyncio.Queue[tuple[RequestKey, bool]] = asyncio.Queue()

    class RecordingReconciler:
        async def reconcile(self, key: RequestKey, *, existed_at_start: bool) -> float:
            calls.put_nowait((key, existed_at_start))
            return 3600.0

    async def test(harness: ReconcilerHarness) -> None:
        reconciler: Any = RecordingReconciler()
        live = BinderController(
            harness.view,
            reconciler,
            harness.reservations,
            waits=harness.waits,
            clock=harness.client.clock,
            chance=random.Random(0),
        )
        first, second = request_of("u"), request_of("v", 2)
        live.handle_event(None, first)
        working = asyncio.ensure_future(live.run())
        async with asyncio.timeout(60):
            assert await calls.get() == (KEY, True)
            live.handle_event(first, second)
            assert await calls.get() == (KEY, False)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    run_with_reconciler(tmp_path, test)
