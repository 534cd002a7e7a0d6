"""How often is a request tried? Anew when somebody sets it back, and never more often than it says, whoever dies."""

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
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.errors import BayplanError, Unreachable
from bayplan.objects.kai.bind_request import BindRequest, BindRequestSpec, BindRequestStatus
from bayplan.objects.meta import ObjectMeta
from support.harness.reconciler import (
    REQUESTS,
    ReconcilerHarness,
    RecordingPlugin,
    run_with_reconciler,
)

KEY: RequestKey = ("default", "web")


def request_at(version: int, phase: str = "", attempts: int = 0) -> BindRequest:
    return BindRequest(
        metadata=ObjectMeta(name="web", namespace="default", uid="u", resource_version=str(version), generation=1),
        spec=BindRequestSpec(pod_name="web", selected_node="n1", backoff_limit=3),
        status=BindRequestStatus(phase, "", attempts),
    )


class Heard:
    """A binder that is told of a request, and does nothing about it; `added`: whether it wants to, each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nobody: Any = None
        self.view = InformerCache(nobody, Cache())
        self._live = BinderController(
            self.view,
            nobody,
            nobody,
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
        pytest.param(("Failed", 3), ("", 0), True, id="as it was made"),
        pytest.param(("Failed", 3), ("Pending", 3), True, id="its attempts stay counted"),
        pytest.param(("Failed", 3), ("Failed", 0), True, id="its attempts alone"),
        pytest.param(("Failed", 1), ("Pending", 0), True, id="waiting for its next attempt"),
        pytest.param(("Succeeded", 0), ("Pending", 0), True, id="succeeded"),
        pytest.param(("Failed", 1), ("Failed", 2), False, id="a failure more"),
        pytest.param(("Failed", 1), ("Succeeded", 1), False, id="success"),
        pytest.param(("", 0), ("Pending", 0), False, id="said otherwise"),
    ],
)
def test_only_a_request_that_somebody_sets_back_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, was: tuple[str, int], now: tuple[str, int], *, wanted: bool
) -> None:
    heard = Heard(monkeypatch)
    assert heard.added(request_at(1))
    assert not heard.added(request_at(2, *was))
    assert heard.added(request_at(3, *now)) == wanted


def test_what_the_watch_tells_later_than_our_own_write_sets_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    assert heard.added(request_at(1))
    heard.view.observe(request_at(3, "Failed", 3))
    assert not heard.added(request_at(2, "Pending", 1))
    assert not heard.added(request_at(3, "Failed", 3))


def test_a_request_that_was_given_up_and_is_set_back_is_carried_out(tmp_path: Path) -> None:
    plugin = RecordingPlugin("moody", RejectBind("not yet"))

    async def test(rig: ReconcilerHarness) -> None:
        async with rig.run_binder():
            await rig.request(await rig.pod())
            await rig.until_phase("Failed")
            await rig.patch(REQUESTS, "web", {"status": {"phase": "Pending", "failedAttempts": 0}}, sub="status")
            assert (await rig.until_phase("Succeeded"))["failedAttempts"] == 0

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls == ["moody pre_bind", "moody rollback 1", "moody pre_bind", "moody post_bind"]


# binders that die


class Deadly(RecordingPlugin):
    """Ends whoever calls it, without a word: the attempt never comes back."""

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


async def silent(*_: Any, **__: Any) -> None:
    raise Unreachable("nobody answers", sent=False)


async def dies(rig: ReconcilerHarness, plugin: Deadly, **requested: Any) -> None:
    """One binder, from its start to its death, in which it says nothing; with `requested` it is at work before the
    request comes."""
    plugin.died.clear()
    with pytest.MonkeyPatch.context() as cut:
        async with rig.run_binder():
            if requested:
                await rig.request(await rig.pod(), **requested)
            await plugin.died.wait()
            cut.setattr(rig.client, "patch_typed", silent)


async def is_stopped(rig: ReconcilerHarness, plugin: Deadly) -> None:
    """One binder that is told to end in the midst of an attempt."""
    plugin.died.clear()
    async with rig.run_binder():
        await plugin.died.wait()


@pytest.mark.parametrize(("limit", "attempts"), [(3, 4), (1, 2), (0, 2), (None, 2)])
def test_a_request_that_kills_every_binder_is_given_up(tmp_path: Path, limit: int | None, attempts: int) -> None:
    plugin = Deadly()

    async def test(rig: ReconcilerHarness) -> None:
        await dies(rig, plugin, backoffLimit=limit)
        assert await rig.status() == {}  # an ordinary request costs no write before its attempt
        for number in range(1, attempts):
            await dies(rig, plugin)
            status = await rig.status()
            assert (status["phase"], status["failedAttempts"]) == ("Pending", number)
        async with rig.run_binder():
            status = await rig.until_phase("Failed")
            while not rig.reasons:  # the event follows the status
                await asyncio.sleep(0.02)
        assert rig.steps.reached[-1] == "rolled-back"  # before anybody is told, for then the pod may go elsewhere
        allowed = max(limit or 0, 1)
        assert status["reason"] == (f"the binder died during attempt {allowed} of {allowed}; it is not tried again")
        assert status["failedAttempts"] == allowed
        assert rig.reasons == ["BindingError"]
        assert rig.steps.reached.count("taken") == attempts

    run_with_reconciler(tmp_path, test, plugin)
    assert plugin.calls[-1] == "deadly rollback None"


def test_a_binder_that_dies_again_where_it_takes_things_back_is_the_last(tmp_path: Path) -> None:
    class Deadlier(Deadly):
        async def rollback(self, *args: Any) -> None:
            await super().rollback(*args)
            self.died.set()
            await asyncio.Event().wait()

    plugin = Deadlier()

    async def test(rig: ReconcilerHarness) -> None:
        await dies(rig, plugin, backoffLimit=1)
        await dies(rig, plugin)
        await dies(rig, plugin)
        assert (await rig.status())["reason"] == "it was given up; its rollback is in progress"
        async with rig.run_binder():
            status = await rig.until_phase("Failed")
        assert status["failedAttempts"] == 1
        assert plugin.calls.count("deadly rollback None") == 1

    run_with_reconciler(tmp_path, test, plugin)


class DeadlyAfterwards(Deadly):
    """Ends whoever tells it that a pod is bound, or is not."""

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


def test_a_binder_that_dies_after_a_pod_is_bound_is_followed_by_one_that_tells_plugins_no_more(tmp_path: Path) -> None:
    plugin = DeadlyAfterwards()

    async def test(rig: ReconcilerHarness) -> None:
        await dies(rig, plugin, backoffLimit=3)
        assert await rig.status() == {}
        await dies(rig, plugin)
        status = await rig.status()
        assert (status["phase"], status["failedAttempts"]) == ("Pending", 1)
        assert status["reason"].startswith("the pod is bound and PostBind runs")
        async with rig.run_binder():
            status = await rig.until_phase("Succeeded")
        assert (status["reason"], status["failedAttempts"]) == ("", 1)
        assert plugin.calls == ["deadly pre_bind", "deadly post_bind", "deadly post_bind"]

    run_with_reconciler(tmp_path, test, plugin)


@pytest.mark.parametrize("is_there", [False, True], ids=["gone", "bound elsewhere"])
def test_a_binder_that_dies_while_it_clears_away_is_followed_by_one_that_leaves_that(
    tmp_path: Path, *, is_there: bool
) -> None:
    plugin = DeadlyAfterwards()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(spec={"nodeName": "n2"}) if is_there else None, backoffLimit=3)
        await dies(rig, plugin)
        assert (await rig.status())["phase"] == "Pending"
        async with rig.run_binder():
            status = await rig.until_phase("Failed")
        assert status["reason"] == ('the pod is bound elsewhere: to node "n2"' if is_there else "the pod is gone")
        assert plugin.calls == ["deadly rollback None"]

    run_with_reconciler(tmp_path, test, plugin)


def test_a_binder_that_is_stopped_while_it_clears_away_is_followed_by_one_that_does(tmp_path: Path) -> None:
    plugin = DeadlyAfterwards()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(None, backoffLimit=3)
        for _ in range(2):
            await is_stopped(rig, plugin)
            assert await rig.status() == {"phase": "", "reason": "", "failedAttempts": 0}
        assert plugin.calls == ["deadly rollback None"] * 2

    run_with_reconciler(tmp_path, test, plugin)


def test_a_binder_that_is_stopped_in_order_costs_no_attempt(tmp_path: Path) -> None:
    plugin = Deadly()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), backoffLimit=2)
        for _ in range(5):
            await is_stopped(rig, plugin)
            assert await rig.status() == {"phase": "", "reason": "", "failedAttempts": 0}

    run_with_reconciler(tmp_path, test, plugin)


def test_a_request_that_is_set_back_without_its_attempts_is_tried_by_a_binder_that_starts(tmp_path: Path) -> None:
    """Its number says that nothing is left, and nobody has died."""
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), backoffLimit=3)
        await rig.patch(REQUESTS, "web", {"status": {"phase": "Pending", "failedAttempts": 3}}, sub="status")
        async with rig.run_binder():
            assert (await rig.until_phase("Succeeded"))["failedAttempts"] == 3

    run_with_reconciler(tmp_path, test, plugin)


def test_what_a_dead_binder_had_begun_is_carried_out_by_the_next_as_if_nothing_had_been(tmp_path: Path) -> None:
    plugin = Deadly()

    async def test(rig: ReconcilerHarness) -> None:
        await dies(rig, plugin, backoffLimit=3)
        plugin.lives = 1
        async with rig.run_binder():
            status = await rig.until_phase("Succeeded")
        assert status == {"phase": "Succeeded", "reason": "", "failedAttempts": 0}

    run_with_reconciler(tmp_path, test, plugin)


def test_a_failure_after_a_death_counts_once_and_deaths_after_it_are_counted_too(tmp_path: Path) -> None:
    plugin = Deadly()

    async def test(rig: ReconcilerHarness) -> None:
        await dies(rig, plugin, backoffLimit=3)
        plugin.faults = [BayplanError("not now")]
        plugin.died.clear()
        async with rig.run_binder():
            assert (await rig.until_phase("Failed"))["failedAttempts"] == 1
            await plugin.died.wait()  # at the next attempt, which was counted before it was made
            assert (await rig.status())["failedAttempts"] == 2
        assert (await rig.status())["failedAttempts"] == 1  # it was stopped in order
        for _ in range(2):
            await dies(rig, plugin)
        async with rig.run_binder():
            await rig.until_phase("Failed")
        assert rig.steps.reached.count("taken") == 5

    run_with_reconciler(tmp_path, test, plugin)


def test_an_attempt_that_could_not_be_counted_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod())
        await rig.deliver_event(BindRequest, "web")
        with monkeypatch.context() as cut:
            cut.setattr(rig.client, "patch_typed", silent)
            for _ in range(5):
                with pytest.raises(Unreachable):
                    await rig.reconciler.reconcile(KEY, existed_at_start=True)
        assert rig.view.requests[KEY].status == BindRequestStatus()
        assert plugin.calls == []
        assert await rig.reconciler.reconcile(KEY, existed_at_start=True) is None
        assert await rig.status() == {"phase": "Succeeded", "reason": "", "failedAttempts": 0}

    run_with_reconciler(tmp_path, test, plugin)


def test_our_own_word_that_an_attempt_is_under_way_sets_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch may tell it before the server has answered."""
    heard = Heard(monkeypatch)
    failed = request_at(1, "Failed", 1)
    assert heard.added(failed)
    with heard.view.expect_own_write(failed, BindRequestStatus("Pending", "", 2)):
        assert not heard.added(request_at(2, "Pending", 2))
    assert not heard.added(request_at(3, "Failed", 2))
