"""When a session comes before its time, and what such a one leaves to the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from bayplan.batch.live.run_loop import MIN_PAUSE_S
from bayplan.batch.live.session_triggers import triggers_session
from bayplan.objects.core import PodStatus
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import PodGroupStatus, QueueStatus
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.framework import replace_fields
from support.harness.async_tests import async_test, wait_until
from support.harness.live_batch import LiveBatchHarness, run_live_batch

NODE = make_node("n", cpu=4)
QUEUE = make_queue()
GROUP = make_group("job", min_member=2)
WAITING = replace_fields(
    make_member("job-w-0", requests={"cpu": "1"}), spec={"scheduler_name": "volcano"}, status=PodStatus(phase="Pending")
)
SECOND = replace_fields(WAITING, metadata={"name": "job-w-1", "uid": "second"})
RUNNING = replace_fields(WAITING.bound_to("n"), status=PodStatus(phase="Running"))
THEIRS = replace_fields(WAITING, spec={"scheduler_name": "somebody"})


@pytest.mark.parametrize(
    ("old", "new", "calls"),
    [
        pytest.param(None, SECOND, True, id="a pod of ours comes"),
        pytest.param(None, THEIRS, False, id="a pod of others comes"),
        pytest.param(SECOND, replace_fields(SECOND, metadata={"annotations": {}}), True, id="a pod gets another group"),
        pytest.param(
            SECOND,
            replace_fields(SECOND, status=PodStatus(phase="Pending", nominated_node_name="n")),
            False,
            id="a pod is told",
        ),
        pytest.param(SECOND, replace_fields(SECOND.bound_to("n")), False, id="a pod is bound"),
        pytest.param(SECOND, None, False, id="a pod goes that was nowhere"),
        pytest.param(RUNNING, None, True, id="a pod gives its room back"),
        pytest.param(RUNNING, replace_fields(RUNNING, status=PodStatus(phase="Succeeded")), True, id="a pod ends"),
        pytest.param(
            replace_fields(RUNNING, status=PodStatus(phase="Failed")), None, False, id="a pod goes that had ended"
        ),
        pytest.param(None, GROUP, True, id="a group comes"),
        pytest.param(GROUP, replace_fields(GROUP, status=PodGroupStatus(phase="Inqueue")), False, id="a group is told"),
        pytest.param(GROUP, replace_fields(GROUP, spec={"min_member": 1}), True, id="a group wants less"),
        pytest.param(GROUP, None, False, id="a group goes"),
        pytest.param(QUEUE, replace_fields(QUEUE, status=QueueStatus(state="Closed")), True, id="a queue is closed"),
        pytest.param(
            QUEUE, replace_fields(QUEUE, status=QueueStatus(state="Open", running=3)), False, id="a queue is told"
        ),
        pytest.param(None, NODE, True, id="a node comes"),
        pytest.param(NODE, replace_fields(NODE, spec={"unschedulable": True}), True, id="a node is cordoned"),
        pytest.param(
            NODE, replace_fields(NODE, metadata={"resource_version": "7"}), False, id="a node says that it lives"
        ),
        pytest.param(NODE, None, False, id="a node goes"),
    ],
)
@async_test
async def test_what_calls_for_a_session(old: KubeObject | None, new: KubeObject | None, calls: bool) -> None:
    async with run_live_batch(NODE, QUEUE, GROUP, WAITING) as rig:
        await rig.live.handle_pending_events()
        assert triggers_session(old, new, rig.live.event_handlers) is calls


@async_test
async def test_room_calls_for_nothing_where_nobody_waits() -> None:
    async with run_live_batch(NODE, QUEUE, GROUP) as rig:
        await rig.live.handle_pending_events()
        assert not triggers_session(RUNNING, None, rig.live.event_handlers)
        assert not triggers_session(None, make_node("m"), rig.live.event_handlers)


@asynccontextmanager
async def deciding(rig: LiveBatchHarness) -> AsyncIterator[None]:
    """Its sessions go on by themselves, as the clock does."""

    async def nothing() -> None: ...

    rig.live.prepare = nothing
    running = asyncio.ensure_future(rig.live.run())
    try:
        await wait_until(lambda: rig.live.session_count == 1 and rig.clock.sleepers)
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def moved_on(rig: LiveBatchHarness, seconds: float) -> None:
    """The clock moves, and who slept long enough does what comes next, until all sleep again."""
    sleeping = rig.clock.sleepers
    rig.clock.advance(seconds)
    for _ in range(20):
        await asyncio.sleep(0)
    await wait_until(lambda: rig.clock.sleepers >= min(1, sleeping))


@async_test
async def test_who_comes_need_not_sit_the_period_out() -> None:
    async with run_live_batch(NODE, QUEUE, GROUP, WAITING) as rig, deciding(rig):
        await moved_on(rig, MIN_PAUSE_S)
        assert rig.live.session_count == 1  # nothing has happened
        rig.deliver(SECOND)
        await wait_until(lambda: rig.live.session_count == 2)
        await wait_until(lambda: len(rig.bound()) == 2)
        assert rig.clock.monotonic_s() < rig.live.period_s


@async_test
async def test_what_comes_all_the_time_leaves_a_pause_between_sessions() -> None:
    async with run_live_batch(NODE, QUEUE, GROUP, WAITING) as rig, deciding(rig):
        rig.deliver(replace_fields(WAITING, metadata={"name": "other-0", "uid": "o0"}))
        await moved_on(rig, MIN_PAUSE_S / 2)
        assert rig.live.session_count == 1
        await moved_on(rig, MIN_PAUSE_S / 2)
        await wait_until(lambda: rig.live.session_count == 2)


@async_test
async def test_only_sessions_of_their_time_tell_why_pods_wait() -> None:
    big = make_group("big", min_member=3)
    async with run_live_batch(NODE, QUEUE, big, GROUP) as rig, deciding(rig):
        member = replace_fields(WAITING, metadata={"name": "big-w-0", "uid": "b0", "annotations": {**_in("big")}})
        rig.deliver(member)
        await moved_on(rig, MIN_PAUSE_S)
        await wait_until(lambda: rig.live.session_count == 2)
        assert rig.sent("PATCH", "/pods/big-w-0/status") == []
        await moved_on(rig, rig.live.period_s)
        await wait_until(lambda: rig.live.session_count == 3)
        await wait_until(lambda: rig.sent("PATCH", "/pods/big-w-0/status"))


def _in(group: str) -> dict[str, str]:
    return {"scheduling.k8s.io/group-name": group}
