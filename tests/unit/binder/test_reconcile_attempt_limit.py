"""Limit of attempts: a reset request starts again, and crashes of the binder count."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.cancellable_waits import CancellableWaits
from bayplan.binder.controller import BinderController
from bayplan.binder.informer_cache import InformerCache, RequestKey
from bayplan.binder.plugin import RejectBind
from bayplan.clock import ManualClock
from bayplan.errors import BayplanError, Unreachable
from bayplan.objects.kai.bind_request import BindRequest, BindRequestSpec, BindRequestStatus
from bayplan.objects.meta import ObjectMeta
from support.harness.reconciler import REQUESTS, ReconcilerHarness, RecordingPlugin, run_with_reconciler

KEY: RequestKey = ("default", "web")


def request_at(version: int, phase: str = "", attempts: int = 0) -> BindRequest:
    return BindRequest(
        metadata=ObjectMeta(name="web", namespace="default", uid="u", resource_version=str(version), generation=1),
        spec=BindRequestSpec(pod_name="web", selected_node="n1", backoff_limit=3),
        status=BindRequestStatus(phase, "", attempts),
    )


class ControllerHarness:
    """A controller without workers; `added`: whether an event queues the request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        unused: Any = None
        self.view = InformerCache(unused)
        self._live = BinderController(
            self.view,
            unused,
            unused,
            waits=CancellableWaits(self.view.is_current),
            clock=ManualClock(),
            chance=random.Random(0),
        )
        self._old: BindRequest | None = None
        self._added: list[RequestKey] = []
        monkeypatch.setattr(self._live.requests, "add", self._added.append)

    def added(self, new: BindRequest) -> bool:
        self._added.clear()
        self._live.handle_event(self._old, new)
        self._old = new
        return self._added == [KEY]


@pytest.mark.parametrize(
    ("was", "now", "wanted"),
    [
        pytest.param(("Failed", 3), ("Pending", 0), True, id="given up"),
        pytest.param(("Failed", 3), ("", 0), True, id="as created"),
        pytest.param(("Failed", 3), ("Pending", 3), True, id="its attempts stay counted"),
        pytest.param(("Failed", 3), ("Failed", 0), True, id="its attempts alone"),
        pytest.param(("Failed", 1), ("Pending", 0), True, id="waiting for its next attempt"),
        pytest.param(("Succeeded", 0), ("Pending", 0), True, id="succeeded"),
        pytest.param(("Failed", 1), ("Failed", 2), False, id="a failure more"),
        pytest.param(("Failed", 1), ("Succeeded", 1), False, id="success"),
        pytest.param(("", 0), ("Pending", 0), False, id="phase Pending"),
    ],
)
def test_only_a_reset_request_is_queued_again(
    monkeypatch: pytest.MonkeyPatch, was: tuple[str, int], now: tuple[str, int], *, wanted: bool
) -> None:
    controller = ControllerHarness(monkeypatch)
    assert controller.added(request_at(1))
    assert not controller.added(request_at(2, *was))
    assert controller.added(request_at(3, *now)) == wanted


def test_events_older_than_an_own_write_reset_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = ControllerHarness(monkeypatch)
    assert controller.added(request_at(1))
    controller.view.observe(request_at(3, "Failed", 3))
    assert not controller.added(request_at(2, "Pending", 1))
    assert not controller.added(request_at(3, "Failed", 3))


def test_a_reset_request_is_carried_out(tmp_path: Path) -> None:
    plugin = RecordingPlugin("moody", RejectBind("not yet"))

    async def test(harness: ReconcilerHarness) -> None:
        async with harness.run_binder():
            await harness.request(await harness.pod())
            await harness.until_phase("Failed")
            await harness.patch(REQUESTS, "web", {"status": {"phase": "Pending", "failedAttempts": 0}}, sub="status")
            assert (await harness.until_phase("Succeeded"))["failedAttempts"] == 0

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["moody pre_bind", "moody rollback 1", "moody pre_bind", "moody post_bind"]


# crashes


class Crashing(RecordingPlugin):
    """Simulates a crash: the call never returns."""

    def __init__(self, *faults: Exception, lives: int = 0) -> None:
        super().__init__("deadly", *faults)
        self.lives = lives
        self.died = asyncio.Event()

    async def pre_bind(self, *args: Any) -> None:
        await super().pre_bind(*args)
        if self.lives > 0:
            self.lives -= 1
            return
        self.died.set()
        await asyncio.Event().wait()


async def fail_to_send(*_: Any, **__: Any) -> None:
    raise Unreachable("no response", sent=False)


async def crash(harness: ReconcilerHarness, plugin: Crashing, **requested: Any) -> None:
    """Run one binder until it crash without a write; with `requested` it starts before the request is created."""
    plugin.died.clear()
    with pytest.MonkeyPatch.context() as cut:
        async with harness.run_binder():
            if requested:
                await harness.request(await harness.pod(), **requested)
            await plugin.died.wait()
            cut.setattr(harness.client, "patch_typed", fail_to_send)


async def stop(harness: ReconcilerHarness, plugin: Crashing) -> None:
    """Run one binder that is stopped during an attempt."""
    plugin.died.clear()
    async with harness.run_binder():
        await plugin.died.wait()


@pytest.mark.parametrize(("limit", "attempts"), [(3, 4), (1, 2), (0, 2), (None, 2)])
def test_a_request_that_kills_every_binder_is_given_up(tmp_path: Path, limit: int | None, attempts: int) -> None:
    plugin = Crashing()

    async def test(harness: ReconcilerHarness) -> None:
        await crash(harness, plugin, backoffLimit=limit)
        assert await harness.status() == {}  # a normal request needs no write before its attempt
        for number in range(1, attempts):
            await crash(harness, plugin)
            status = await harness.status()
            assert (status["phase"], status["failedAttempts"]) == ("Pending", number)
        async with harness.run_binder():
            status = await harness.until_phase("Failed")
            while not harness.reasons:  # the event follows the status
                await asyncio.sleep(0.02)
        # before the result is written, because then the pod may be placed elsewhere
        assert harness.steps.reached[-1] == "rolled-back"
        allowed = max(limit or 0, 1)
        assert status["reason"] == (f"the binder died during attempt {allowed} of {allowed}; it is not tried again")
        assert status["failedAttempts"] == allowed
        assert harness.reasons == ["BindingError"]
        assert harness.steps.reached.count("taken") == attempts

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls[-1] == "deadly rollback None"


def test_a_crash_in_the_rollback_is_the_last(tmp_path: Path) -> None:
    class CrashingInRollback(Crashing):
        async def rollback(self, *args: Any) -> None:
            await super().rollback(*args)
            self.died.set()
            await asyncio.Event().wait()

    plugin = CrashingInRollback()

    async def test(harness: ReconcilerHarness) -> None:
        await crash(harness, plugin, backoffLimit=1)
        await crash(harness, plugin)
        await crash(harness, plugin)
        assert (await harness.status())["reason"] == "it was given up; its rollback is in progress"
        async with harness.run_binder():
            status = await harness.until_phase("Failed")
        assert status["failedAttempts"] == 1
        assert plugin.calls.count("deadly rollback None") == 1

    run_with_reconciler(tmp_path, test, plugin)


class CrashingAfterwards(Crashing):
    """Simulates a crash in PostBind and in rollback."""

    def __init__(self) -> None:
        super().__init__(lives=1)

    async def post_bind(self, *args: Any) -> None:
        await super().post_bind(*args)
        await self._end()

    async def rollback(self, *args: Any) -> None:
        await super().rollback(*args)
        await self._end()

    async def _end(self) -> None:
        self.died.set()
        await asyncio.Event().wait()


def test_after_a_crash_in_post_bind_plugins_are_not_called_again(tmp_path: Path) -> None:
    plugin = CrashingAfterwards()

    async def test(harness: ReconcilerHarness) -> None:
        await crash(harness, plugin, backoffLimit=3)
        assert await harness.status() == {}
        await crash(harness, plugin)
        status = await harness.status()
        assert (status["phase"], status["failedAttempts"]) == ("Pending", 1)
        assert status["reason"].startswith("the pod is bound and PostBind runs")
        async with harness.run_binder():
            status = await harness.until_phase("Succeeded")
        assert (status["reason"], status["failedAttempts"]) == ("", 1)
        assert plugin.calls == ["deadly pre_bind", "deadly post_bind", "deadly post_bind"]

    run_with_reconciler(tmp_path, test, plugin)


@pytest.mark.parametrize("is_there", [False, True], ids=["gone", "bound elsewhere"])
def test_after_a_crash_in_a_cleanup_it_is_not_repeated(tmp_path: Path, *, is_there: bool) -> None:
    plugin = CrashingAfterwards()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(spec={"nodeName": "n2"}) if is_there else None, backoffLimit=3)
        await crash(harness, plugin)
        assert (await harness.status())["phase"] == "Pending"
        async with harness.run_binder():
            status = await harness.until_phase("Failed")
        assert status["reason"] == ('the pod is bound elsewhere: to node "n2"' if is_there else "the pod is gone")
        assert plugin.calls == ["deadly rollback None"]

    run_with_reconciler(tmp_path, test, plugin)


def test_after_a_stop_during_a_cleanup_it_is_repeated(tmp_path: Path) -> None:
    plugin = CrashingAfterwards()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(None, backoffLimit=3)
        for _ in range(2):
            await stop(harness, plugin)
            assert await harness.status() == {"phase": "", "reason": "", "failedAttempts": 0}
        assert plugin.calls == ["deadly rollback None"] * 2

    run_with_reconciler(tmp_path, test, plugin)


def test_a_regular_stop_counts_no_attempt(tmp_path: Path) -> None:
    plugin = Crashing()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), backoffLimit=2)
        for _ in range(5):
            await stop(harness, plugin)
            assert await harness.status() == {"phase": "", "reason": "", "failedAttempts": 0}

    run_with_reconciler(tmp_path, test, plugin)


def test_a_request_that_is_reset_without_its_attempts_is_attempted_after_a_restart(tmp_path: Path) -> None:
    """Its attempt number is at the limit, but no binder has died."""
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), backoffLimit=3)
        await harness.patch(REQUESTS, "web", {"status": {"phase": "Pending", "failedAttempts": 3}}, sub="status")
        async with harness.run_binder():
            assert (await harness.until_phase("Succeeded"))["failedAttempts"] == 3

    run_with_reconciler(tmp_path, test, plugin)


def test_an_attempt_of_a_dead_binder_is_finished_by_the_next(tmp_path: Path) -> None:
    plugin = Crashing()

    async def test(harness: ReconcilerHarness) -> None:
        await crash(harness, plugin, backoffLimit=3)
        plugin.lives = 1
        async with harness.run_binder():
            status = await harness.until_phase("Succeeded")
        assert status == {"phase": "Succeeded", "reason": "", "failedAttempts": 0}

    run_with_reconciler(tmp_path, test, plugin)


def test_failures_and_crashes_are_each_counted_once(tmp_path: Path) -> None:
    plugin = Crashing()

    async def test(harness: ReconcilerHarness) -> None:
        await crash(harness, plugin, backoffLimit=3)
        plugin.faults = [BayplanError("not now")]
        plugin.died.clear()
        async with harness.run_binder():
            assert (await harness.until_phase("Failed"))["failedAttempts"] == 1
            await plugin.died.wait()  # in the next attempt, which was counted before it started
            assert (await harness.status())["failedAttempts"] == 2
        assert (await harness.status())["failedAttempts"] == 1  # it was stopped regularly
        for _ in range(2):
            await crash(harness, plugin)
        async with harness.run_binder():
            await harness.until_phase("Failed")
        assert harness.steps.reached.count("taken") == 5

    run_with_reconciler(tmp_path, test, plugin)


def test_without_the_write_that_counts_it_no_attempt_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod())
        await harness.deliver_event(BindRequest, "web")
        with monkeypatch.context() as cut:
            cut.setattr(harness.client, "patch_typed", fail_to_send)
            for _ in range(5):
                with pytest.raises(Unreachable):
                    await harness.reconciler.reconcile(KEY, existed_at_start=True)
        assert harness.view.requests[KEY].status == BindRequestStatus()
        assert plugin.calls == []
        assert await harness.reconciler.reconcile(KEY, existed_at_start=True) is None
        assert await harness.status() == {"phase": "Succeeded", "reason": "", "failedAttempts": 0}

    run_with_reconciler(tmp_path, test, plugin)


def test_an_own_in_progress_mark_resets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch may deliver it before the response arrives."""
    controller = ControllerHarness(monkeypatch)
    failed = request_at(1, "Failed", 1)
    assert controller.added(failed)
    with controller.view.expect_own_write(failed, BindRequestStatus("Pending", "", 2)):
        assert not controller.added(request_at(2, "Pending", 2))
    assert not controller.added(request_at(3, "Failed", 2))
