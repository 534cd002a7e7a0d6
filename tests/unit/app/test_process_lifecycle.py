"""Lifecycle of a process: sync, election, decisions, stop; and its early ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bayplan.app.process_lifecycle import LEASE_LOST_EXIT_CODE, STOPPED_EXIT_CODE, SchedulerProcess
from bayplan.errors import LeaseLost
from support.harness.async_tests import async_test, wait_until


class FakeEngine:
    """A fake engine that records the calls."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.stuck = False
        self.fault: Exception | None = None
        self.has_open_writes = False

    async def run(self) -> None:
        self.log.append("run")
        if self.fault is not None:
            raise self.fault
        await self._run_forever("run")

    async def handle_pending_events(self) -> None: ...

    async def handle_events(self) -> None:
        self.log.append("follow")
        await self._run_forever("follow")

    async def _run_forever(self, what: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.log.append(f"end {what}")

    def stop_scheduling(self) -> None:
        self.log.append("stop deciding")

    async def drain(self) -> None:
        self.log.append("drain")
        if self.stuck:
            await asyncio.get_running_loop().create_future()

    async def abandon(self) -> None:
        self.log.append("abandon")
        self.has_open_writes = False


class FakeInformers:
    def __init__(self) -> None:
        self.synced_event = asyncio.Event()
        self.caught_up = asyncio.Event()
        self.caught_up.set()
        self.asked_to_catch_up = False
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = False

    async def run(self) -> None:
        try:
            await self.broken
        finally:
            self.ended = True

    async def wait_synced(self) -> None:
        await self.synced_event.wait()

    async def catch_up(self) -> None:
        self.asked_to_catch_up = True
        await self.caught_up.wait()

    @property
    def synced(self) -> bool:
        return self.synced_event.is_set()


class FakeElection:
    def __init__(self) -> None:
        self.won = asyncio.Event()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.released = self.reported = self.retained = False
        self.observing = False

    @property
    def leading(self) -> bool:
        return self.won.is_set()

    async def observe(self) -> None:
        self.observing = True
        try:
            await asyncio.Event().wait()
        finally:
            self.observing = False

    async def acquire(self) -> None:
        await self.won.wait()

    async def renew_until_lost(self) -> None:
        try:
            await self.lost
        finally:
            self.released = not self.retained

    def retain(self) -> None:
        self.retained = True

    def report_unsent(self) -> None:
        self.reported = True


class ProcessHarness:
    def __init__(self, *, elected: bool = True) -> None:
        self.live, self.watching, self.leading = FakeEngine(), FakeInformers(), FakeElection()
        live: Any = self.live
        self.process = SchedulerProcess(live, self.watching, self.leading if elected else None, drain_timeout_s=0.01)
        self.running = asyncio.ensure_future(self.process.run())


@async_test
async def test_a_process_decides_when_it_has_synced_and_leads() -> None:
    harness = ProcessHarness()
    await wait_until(lambda: harness.leading.observing)  # while the caches are filled: the lease may end meanwhile
    harness.watching.synced_event.set()
    await wait_until(lambda: harness.live.log == ["follow"])
    assert not harness.leading.observing
    assert not harness.process.is_leading
    harness.leading.won.set()
    await wait_until(lambda: harness.live.log == ["follow", "end follow", "run"])
    assert harness.process.is_leading
    harness.process.stop()
    assert await harness.running == STOPPED_EXIT_CODE
    assert harness.live.log[3:] == ["stop deciding", "drain", "end run", "abandon"]
    assert harness.leading.released
    assert harness.watching.ended


@async_test
async def test_a_leader_decides_when_its_informers_have_caught_up() -> None:
    harness = ProcessHarness()
    harness.watching.synced_event.set()
    harness.watching.caught_up.clear()
    harness.leading.won.set()
    await wait_until(lambda: harness.watching.asked_to_catch_up)
    assert "run" not in harness.live.log
    harness.watching.caught_up.set()
    await wait_until(lambda: "run" in harness.live.log)
    harness.process.stop()
    await harness.running


@async_test
async def test_a_process_without_election_decides_at_once() -> None:
    harness = ProcessHarness(elected=False)
    harness.watching.synced_event.set()
    await wait_until(lambda: harness.live.log == ["run"])
    assert harness.process.is_leading
    harness.process.stop()
    assert await harness.running == STOPPED_EXIT_CODE


@pytest.mark.parametrize("synced", [False, True], ids=["while it learns", "while it waits for the lease"])
def test_a_process_can_be_stopped_before_it_decides(synced: bool) -> None:
    @async_test
    async def test() -> None:
        harness = ProcessHarness()
        if synced:
            harness.watching.synced_event.set()
            await wait_until(lambda: harness.live.log == ["follow"])
        harness.process.stop()
        assert await harness.running == STOPPED_EXIT_CODE
        assert "run" not in harness.live.log
        assert harness.watching.ended

    test()


@async_test
async def test_work_that_exceeds_the_drain_timeout_is_abandoned() -> None:
    harness = ProcessHarness(elected=False)
    harness.live.stuck = True
    harness.watching.synced_event.set()
    await wait_until(lambda: harness.live.log)
    harness.process.stop()
    assert await harness.running == STOPPED_EXIT_CODE
    assert harness.live.log[-1] == "abandon"


@async_test
async def test_a_lost_lease_ends_the_process_without_draining() -> None:
    harness = ProcessHarness()
    harness.watching.synced_event.set()
    harness.leading.won.set()
    await wait_until(lambda: "run" in harness.live.log)
    harness.leading.lost.set_exception(LeaseLost("another process leads"))
    assert await harness.running == LEASE_LOST_EXIT_CODE
    assert "drain" not in harness.live.log
    assert harness.live.log[-2:] == ["end run", "abandon"]
    assert harness.leading.reported


@async_test
async def test_a_lease_that_is_lost_during_the_drain_ends_the_drain() -> None:
    harness = ProcessHarness()
    harness.process.drain_timeout_s = 1e9
    harness.live.stuck = True
    harness.watching.synced_event.set()
    harness.leading.won.set()
    await wait_until(lambda: "run" in harness.live.log)
    harness.process.stop()
    await wait_until(lambda: "drain" in harness.live.log)
    harness.leading.lost.set_exception(LeaseLost("another process leads"))
    assert await harness.running == LEASE_LOST_EXIT_CODE
    assert harness.live.log[-1] == "abandon"


@pytest.mark.parametrize("moment", ["learning", "waiting", "deciding"])
def test_a_failed_informer_ends_the_process(moment: str) -> None:
    @async_test
    async def test() -> None:
        harness = ProcessHarness()
        if moment != "learning":
            harness.watching.synced_event.set()
            await wait_until(lambda: harness.live.log)
        if moment == "deciding":
            harness.leading.won.set()
            await wait_until(lambda: "run" in harness.live.log)
        harness.watching.broken.set_exception(ZeroDivisionError("a bug"))
        with pytest.raises(ZeroDivisionError):
            await harness.running
        assert harness.live.log[-1:] == ["abandon"]

    test()


@async_test
async def test_a_failed_engine_ends_the_process() -> None:
    harness = ProcessHarness(elected=False)
    harness.live.fault = ZeroDivisionError("a bug")
    harness.watching.synced_event.set()
    with pytest.raises(ZeroDivisionError):
        await harness.running
    assert harness.watching.ended


@async_test
async def test_no_decision_before_the_preparations_end() -> None:
    harness = ProcessHarness()
    prepared = asyncio.Event()

    async def prepare() -> None:
        harness.live.log.append("prepare")
        await prepared.wait()

    harness.process.before_deciding = (prepare,)
    harness.watching.synced_event.set()
    harness.leading.won.set()
    await wait_until(lambda: harness.live.log == ["follow", "end follow", "prepare"])
    prepared.set()
    await wait_until(lambda: harness.live.log[-1] == "run")
    harness.process.stop()
    assert await harness.running == STOPPED_EXIT_CODE


@pytest.mark.parametrize("is_open", [False, True], ids=["all outcomes are known", "an outcome is unknown"])
@pytest.mark.parametrize("how", ["stopped", "broken"])
def test_the_lease_is_released_only_if_no_write_may_still_take_effect(how: str, is_open: bool) -> None:
    @async_test
    async def test() -> None:
        harness = ProcessHarness()
        harness.watching.synced_event.set()
        harness.leading.won.set()
        await wait_until(lambda: "run" in harness.live.log)
        harness.live.stuck = harness.live.has_open_writes = is_open
        if how == "stopped":
            harness.process.stop()
            assert await harness.running == STOPPED_EXIT_CODE
        else:
            harness.watching.broken.set_exception(ZeroDivisionError("a bug"))
            with pytest.raises(ZeroDivisionError):
                await harness.running
        assert harness.leading.released is not is_open

    test()


@async_test
async def test_background_tasks_are_drained_with_the_engines() -> None:
    harness, drained = ProcessHarness(elected=False), asyncio.Event()

    async def drain() -> None:
        drained.set()

    harness.process.drain_beside = (drain,)
    harness.watching.synced_event.set()
    await wait_until(lambda: harness.live.log)
    harness.process.stop()
    assert await harness.running == STOPPED_EXIT_CODE
    assert drained.is_set()
