"""The life of a process: watch, be elected, decide, stop; and what ends it before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bayplan.app.process_lifecycle import LEASE_LOST_EXIT_CODE, STOPPED_EXIT_CODE, SchedulerProcess
from bayplan.errors import LeaseLost
from support.harness.async_tests import async_test, wait_until


class Live:
    """Stands where the live scheduler would be, and writes down what it is told."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.stuck = False
        self.fault: Exception | None = None
        self.has_open_writes = False

    async def run(self) -> None:
        self.log.append("run")
        if self.fault is not None:
            raise self.fault
        await self._for_ever("run")

    async def handle_pending_events(self) -> None: ...

    async def handle_events(self) -> None:
        self.log.append("follow")
        await self._for_ever("follow")

    async def _for_ever(self, what: str) -> None:
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


class Watching:
    def __init__(self) -> None:
        self.told = asyncio.Event()
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
        await self.told.wait()

    async def catch_up(self) -> None:
        self.asked_to_catch_up = True
        await self.caught_up.wait()

    @property
    def synced(self) -> bool:
        return self.told.is_set()


class Leading:
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

    async def hold(self) -> None:
        try:
            await self.lost
        finally:
            self.released = not self.retained

    def retain(self) -> None:
        self.retained = True

    def report_unsent(self) -> None:
        self.reported = True


class World:
    def __init__(self, *, elected: bool = True) -> None:
        self.live, self.watching, self.leading = Live(), Watching(), Leading()
        live: Any = self.live
        self.process = SchedulerProcess(live, self.watching, self.leading if elected else None, drain_timeout_s=0.01)
        self.running = asyncio.ensure_future(self.process.run())


@async_test
async def test_it_decides_when_it_knows_everything_and_leads() -> None:
    world = World()
    await wait_until(lambda: world.leading.observing)  # while the caches are filled: the lease may end meanwhile
    assert not world.process.is_ready
    world.watching.told.set()
    await wait_until(lambda: world.live.log == ["follow"])
    assert not world.leading.observing
    assert world.process.is_ready
    assert not world.process.is_leading
    world.leading.won.set()
    await wait_until(lambda: world.live.log == ["follow", "end follow", "run"])
    assert world.process.is_leading
    world.process.stop()
    assert await world.running == STOPPED_EXIT_CODE
    assert world.live.log[3:] == ["stop deciding", "drain", "end run", "abandon"]
    assert world.leading.released
    assert world.watching.ended
    assert not world.process.is_ready


@async_test
async def test_a_leader_decides_when_it_has_caught_up() -> None:
    world = World()
    world.watching.told.set()
    world.watching.caught_up.clear()
    world.leading.won.set()
    await wait_until(lambda: world.watching.asked_to_catch_up)
    assert "run" not in world.live.log
    world.watching.caught_up.set()
    await wait_until(lambda: "run" in world.live.log)
    world.process.stop()
    await world.running


@async_test
async def test_without_an_election_it_decides_at_once() -> None:
    world = World(elected=False)
    world.watching.told.set()
    await wait_until(lambda: world.live.log == ["run"])
    assert world.process.is_leading
    world.process.stop()
    assert await world.running == STOPPED_EXIT_CODE


@pytest.mark.parametrize("synced", [False, True], ids=["while it learns", "while it waits for the lease"])
def test_it_stops_before_it_decides(synced: bool) -> None:
    @async_test
    async def test() -> None:
        world = World()
        if synced:
            world.watching.told.set()
            await wait_until(lambda: world.live.log == ["follow"])
        world.process.stop()
        assert await world.running == STOPPED_EXIT_CODE
        assert "run" not in world.live.log
        assert world.watching.ended

    test()


@async_test
async def test_what_does_not_end_in_time_is_left_alone() -> None:
    world = World(elected=False)
    world.live.stuck = True
    world.watching.told.set()
    await wait_until(lambda: world.live.log)
    world.process.stop()
    assert await world.running == STOPPED_EXIT_CODE
    assert world.live.log[-1] == "abandon"


@async_test
async def test_a_lost_lease_ends_it_without_finishing_anything() -> None:
    world = World()
    world.watching.told.set()
    world.leading.won.set()
    await wait_until(lambda: "run" in world.live.log)
    world.leading.lost.set_exception(LeaseLost("somebody else leads"))
    assert await world.running == LEASE_LOST_EXIT_CODE
    assert "drain" not in world.live.log
    assert world.live.log[-2:] == ["end run", "abandon"]
    assert world.leading.reported


@async_test
async def test_a_lease_that_is_lost_while_writes_are_finished_ends_the_wait_for_them() -> None:
    world = World()
    world.process.drain_timeout_s = 1e9
    world.live.stuck = True
    world.watching.told.set()
    world.leading.won.set()
    await wait_until(lambda: "run" in world.live.log)
    world.process.stop()
    await wait_until(lambda: "drain" in world.live.log)
    world.leading.lost.set_exception(LeaseLost("somebody else leads"))
    assert await world.running == LEASE_LOST_EXIT_CODE
    assert world.live.log[-1] == "abandon"


@pytest.mark.parametrize("moment", ["learning", "waiting", "deciding"])
def test_a_broken_informer_ends_it(moment: str) -> None:
    @async_test
    async def test() -> None:
        world = World()
        if moment != "learning":
            world.watching.told.set()
            await wait_until(lambda: world.live.log)
        if moment == "deciding":
            world.leading.won.set()
            await wait_until(lambda: "run" in world.live.log)
        world.watching.broken.set_exception(ZeroDivisionError("of ours"))
        with pytest.raises(ZeroDivisionError):
            await world.running
        assert world.live.log[-1:] == ["abandon"]

    test()


@async_test
async def test_a_broken_loop_ends_it() -> None:
    world = World(elected=False)
    world.live.fault = ZeroDivisionError("of ours")
    world.watching.told.set()
    with pytest.raises(ZeroDivisionError):
        await world.running
    assert world.watching.ended


@async_test
async def test_nothing_is_decided_before_what_it_needs_is_there() -> None:
    world = World()
    opened = asyncio.Event()

    async def opening() -> None:
        world.live.log.append("opening")
        await opened.wait()

    world.process.before_deciding = (opening,)
    world.watching.told.set()
    world.leading.won.set()
    await wait_until(lambda: world.live.log == ["follow", "end follow", "opening"])
    opened.set()
    await wait_until(lambda: world.live.log[-1] == "run")
    world.process.stop()
    assert await world.running == STOPPED_EXIT_CODE


@pytest.mark.parametrize("is_open", [False, True], ids=["all outcomes are known", "an outcome is unknown"])
@pytest.mark.parametrize("how", ["stopped", "broken"])
def test_the_lease_is_given_up_only_if_no_write_may_still_take_effect(how: str, is_open: bool) -> None:
    @async_test
    async def test() -> None:
        world = World()
        world.watching.told.set()
        world.leading.won.set()
        await wait_until(lambda: "run" in world.live.log)
        world.live.stuck = world.live.has_open_writes = is_open
        if how == "stopped":
            world.process.stop()
            assert await world.running == STOPPED_EXIT_CODE
        else:
            world.watching.broken.set_exception(ZeroDivisionError("of ours"))
            with pytest.raises(ZeroDivisionError):
                await world.running
        assert world.leading.released is not is_open

    test()


@async_test
async def test_what_runs_beside_the_engines_is_drained_with_them() -> None:
    world, drained = World(elected=False), asyncio.Event()

    async def drain() -> None:
        drained.set()

    world.process.drain_beside = (drain,)
    world.watching.told.set()
    await wait_until(lambda: world.live.log)
    world.process.stop()
    assert await world.running == STOPPED_EXIT_CODE
    assert drained.is_set()
