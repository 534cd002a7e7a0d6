"""The condition PodGroupScheduled: when it is written, the order of writes, and its transition time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bayplan.api_writes.writes import ApiWrites
from bayplan.client import resource_of
from bayplan.clock import ManualClock
from bayplan.errors import Forbidden, Unreachable
from bayplan.framework.api.status import SUCCESS, unschedulable
from bayplan.objects.kinds import kind_of
from bayplan.objects.workloads import PodGroup
from bayplan.scheduler.pod_groups.group_statuses import GroupStatuses
from support.harness.live_scheduler import RecordedEvents
from support.harness.reconciler import ReconcilerHarness, run_with_reconciler

GROUPS = resource_of(kind_of(PodGroup))
FULL, TAINTED = unschedulable("no room"), unschedulable("all nodes are tainted")


class SkippingClock(ManualClock):
    """Sleeping takes no time and moves the clock on."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)


class World:
    def __init__(self, harness: ReconcilerHarness) -> None:
        self.harness, self.clock = harness, SkippingClock()
        self.writes = ApiWrites(harness.client, RecordedEvents(), clock=self.clock)
        self.statuses = GroupStatuses(self.writes, GROUPS, self.clock, asyncio.Event())

    async def create(self) -> PodGroup:
        tree = {"apiVersion": GROUPS.api_version, "kind": "PodGroup", "metadata": {"name": "g"}}
        await self.harness.make(GROUPS, {**tree, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})
        return await self.read()

    async def read(self) -> PodGroup:
        return await self.harness.client.get(PodGroup, "default", "g", resource=GROUPS)

    async def condition(self) -> dict[str, Any]:
        (found,) = (await self.harness.get(GROUPS, "g"))["status"]["conditions"]
        condition: dict[str, Any] = found
        return condition


def test_the_latest_status_wins_although_an_earlier_one_is_sent_again(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        world = World(harness)
        group = await world.create()
        patched, lost = harness.client.patch_typed, list[int]()

        async def lose_first(*args: Any, **more: Any) -> Any:
            if not lost:
                lost.append(1)
                raise Unreachable("the connection was cut", sent=True)
            return await patched(*args, **more)

        harness.client.patch_typed = lose_first  # type: ignore[method-assign, assignment]
        world.statuses.write(group, FULL)
        world.statuses.write(group, TAINTED)
        await world.writes.drain()
        assert (await world.condition())["message"] == TAINTED.message

    run_with_reconciler(tmp_path, test)


def test_a_status_is_written_again_when_the_watch_shows_another_one(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        world = World(harness)
        group = await world.create()
        world.statuses.write(group, FULL)
        world.statuses.write(group, FULL)  # this write is in progress
        await world.writes.drain()
        other = {**await world.condition(), "message": "of another writer"}
        await harness.patch(GROUPS, "g", {"status": {"conditions": [other]}}, sub="status")
        world.statuses.write(await world.read(), FULL)
        await world.writes.drain()
        assert (await world.condition())["message"] == FULL.message

    run_with_reconciler(tmp_path, test)


def test_the_transition_time_changes_only_with_the_status(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        world, times = World(harness), list[str]()
        await world.create()
        for status in (FULL, TAINTED, SUCCESS, FULL):
            world.statuses.write(await world.read(), status)
            await world.writes.drain()
            times.append((await world.condition())["lastTransitionTime"])
            world.clock.advance(10.0)
        assert times[0] == times[1] != times[2] == times[3]
        assert (await world.condition())["status"] == "True", "a scheduled group keeps its condition"

    run_with_reconciler(tmp_path, test)


def refuse(world: World, times: int) -> list[int]:
    """Have the next patches refused; the list grows with each send."""
    patched, sent = world.harness.client.patch_typed, list[int]()

    async def refused(*args: Any, **more: Any) -> Any:
        sent.append(1)
        if len(sent) <= times:
            raise Forbidden("a webhook says no", code=403)
        return await patched(*args, **more)

    world.harness.client.patch_typed = refused  # type: ignore[method-assign, assignment]
    return sent


def test_the_status_of_a_scheduled_group_is_written_again_after_pauses_that_grow(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        world, dues = World(harness), list[float]()
        sent = refuse(world, 3)
        world.statuses.write(await world.create(), SUCCESS)
        await world.writes.drain()
        while (due_s := world.statuses.next_retry_s()) is not None:
            assert len(dues) < 9
            dues.append(due_s - world.clock.monotonic_s())
            world.statuses.retry()
            assert not world.writes.busy, "it is not due"
            world.clock.advance(dues[-1])
            world.statuses.retry()
            assert world.statuses.next_retry_s() is None, "it is under way"
            await world.writes.drain()
        assert dues == [10.0, 20.0, 40.0]
        assert len(sent) == 4
        assert (await world.condition())["status"] == "True"

    run_with_reconciler(tmp_path, test)


def test_a_status_that_could_not_be_written_goes_with_its_group(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        for makes_another in (False, True):
            world = World(harness)
            sent = refuse(world, 1)
            world.statuses.write(await world.create(), SUCCESS)
            await world.writes.drain()
            await harness.client.delete(GROUPS, name="g", namespace="default")
            if makes_another:
                await world.create()
            world.clock.advance(10.0)
            world.statuses.retry()
            await world.writes.drain()
            assert world.statuses.next_retry_s() is None
            assert len(sent) == 1

    run_with_reconciler(tmp_path, test)


def test_a_later_status_replaces_one_that_could_not_be_written(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        world = World(harness)
        sent = refuse(world, 1)
        group = await world.create()
        world.statuses.write(group, FULL)
        await world.writes.drain()
        world.statuses.write(group, FULL)  # it waits for its pause
        assert not world.writes.busy
        world.statuses.write(group, TAINTED)
        await world.writes.drain()
        assert world.statuses.next_retry_s() is None
        assert len(sent) == 2
        assert (await world.condition())["message"] == TAINTED.message

    run_with_reconciler(tmp_path, test)
