"""Rules of the loop that only a detour shows: requests that are going, set back or replaced, and faults of our own."""

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
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.errors import BayplanError
from bayplan.objects.kai.bind_request import BindRequest, BindRequestSpec, BindRequestStatus
from bayplan.objects.meta import ObjectMeta
from support.harness.reconciler import (
    PODS,
    REQUESTS,
    ReconcilerHarness,
    RecordingPlugin,
    run_with_reconciler,
)

KEY: RequestKey = ("default", "web")
HELD = {"finalizers": ["example.com/held"]}


def request_of(uid: str = "u", version: int = 1) -> BindRequest:
    told: dict[str, Any] = {"resource_version": str(version), "generation": version}
    return BindRequest(
        metadata=ObjectMeta(name="web", namespace="default", uid=uid, **told),
        spec=BindRequestSpec(pod_name="web", selected_node="n1", selected_gpu_groups=("g-1", "g-2")),
    )


def test_a_request_that_is_being_deleted_is_done(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        await rig.patch(REQUESTS, "web", {"metadata": HELD})
        await rig.client.delete(REQUESTS, name="web", namespace="default")
        assert await rig.sync() is None
        assert await rig.status() == {}
        assert await rig.node_of() == ""

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == []


def test_a_fault_of_our_own_costs_one_attempt_and_not_the_process(tmp_path: Path) -> None:
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        def broken() -> None:
            raise KeyError("nobody thought of that")

        rig.steps.at["prepared"] = broken
        await rig.request(await rig.pod())
        assert await rig.sync() is not None
        status = await rig.status()
        assert (status["phase"], status["failedAttempts"]) == ("Failed", 1)
        assert status["reason"] == "KeyError: 'nobody thought of that'"
        del rig.steps.at["prepared"]
        assert await rig.sync() is None
        assert await rig.node_of() == "n1"

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls[:2] == ["noting pre_bind", "noting rollback 1"]


def test_a_pod_that_is_told_to_go_while_it_is_prepared_is_not_tried_again(tmp_path: Path) -> None:
    class Deleting(RecordingPlugin):
        rig: ReconcilerHarness

        async def pre_bind(self, *args: Any) -> None:
            await self.rig.client.delete(PODS, name="web", namespace="default", grace_s=0)
            await super().pre_bind(*args)

    plugin = Deleting("noting", BayplanError("not now"))

    async def test(rig: ReconcilerHarness) -> None:
        plugin.rig = rig
        await rig.request(await rig.pod(**HELD))
        assert await rig.sync() is None
        assert await rig.status() == {"phase": "Failed", "reason": "the pod is gone", "failedAttempts": 3}
        assert rig.reasons == []

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["noting pre_bind", "noting rollback 1"]


@pytest.mark.parametrize("status", [{"phase": "Pending"}, {"phase": "Failed", "failedAttempts": 1}])
def test_a_success_that_somebody_sets_back_is_looked_at_again(tmp_path: Path, status: dict[str, Any]) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        async with rig.run_binder():
            await rig.request(await rig.pod())
            await rig.until_phase("Succeeded")
            await rig.patch(REQUESTS, "web", {"status": status}, sub="status")
            await rig.until_phase("Succeeded")
        assert await rig.node_of() == "n1"

    run_with_reconciler(tmp_path, test)


def test_an_attempt_that_nobody_wants_any_more_is_counted_no_longer(tmp_path: Path) -> None:
    """By a binder that starts, which counts it before."""

    class Changing(RecordingPlugin):
        rig: ReconcilerHarness

        async def pre_bind(self, *args: Any) -> None:
            assert (await self.rig.status())["failedAttempts"] == 1
            await self.rig.patch(REQUESTS, "web", {"spec": {"backoffLimit": 5}})
            await self.rig.deliver_event(BindRequest, "web")
            await super().pre_bind(*args)

    plugin = Changing()

    async def test(rig: ReconcilerHarness) -> None:
        plugin.rig = rig
        await rig.request(await rig.pod())
        await rig.deliver_event(BindRequest, "web")
        assert await rig.reconciler.reconcile(KEY, existed_at_start=True) is None
        assert await rig.status() == {"phase": "", "reason": "", "failedAttempts": 0}
        assert await rig.node_of() == ""

    run_with_reconciler(tmp_path, test, plugin)


# what the watch tells


def test_groups_of_a_request_that_goes_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody: Any = None
    view, groups = InformerCache(nobody, Cache()), list[str]()
    live = BinderController(
        view, nobody, nobody, waits=CancellableWaits(view.is_current), clock=ManualClock(), chance=random.Random(0)
    )
    monkeypatch.setattr(live.groups, "add", groups.append)
    request = request_of()
    live.handle_event(None, request)
    live.handle_event(request, replace(request, status=BindRequestStatus("Succeeded")))
    assert groups == []
    live.handle_event(request, None)
    assert groups == ["g-1", "g-2"]


def test_a_request_in_the_place_of_one_that_was_there_is_nothing_anybody_died_of(tmp_path: Path) -> None:
    """A list after a watch that broke tells of the other uid alone: no word that the first is gone."""
    asked: asyncio.Queue[tuple[RequestKey, bool]] = asyncio.Queue()

    class Asking:
        async def reconcile(self, key: RequestKey, *, existed_at_start: bool) -> float:
            asked.put_nowait((key, existed_at_start))
            return 3600.0

    async def test(rig: ReconcilerHarness) -> None:
        curious: Any = Asking()
        live = BinderController(
            rig.view, curious, rig.reservations, waits=rig.waits, clock=rig.client.clock, chance=random.Random(0)
        )
        first, second = request_of("u"), request_of("v", 2)
        live.handle_event(None, first)
        working = asyncio.ensure_future(live.run())
        async with asyncio.timeout(60):
            assert await asked.get() == (KEY, True)
            live.handle_event(first, second)
            assert await asked.get() == (KEY, False)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    run_with_reconciler(tmp_path, test)
