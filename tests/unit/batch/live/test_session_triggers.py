"""Triggers of early sessions, and what an early session leaves to the next one."""

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
OTHER_SCHEDULERS_POD = replace_fields(WAITING, spec={"scheduler_name": "other"})


@pytest.mark.parametrize(
    ("old", "new", "is_trigger"),
    [
        pytest.param(None, SECOND, True, id="a pod of ours comes"),
        pytest.param(None, OTHER_SCHEDULERS_POD, False, id="a pod of another scheduler is created"),
        pytest.param(SECOND, replace_fields(SECOND, metadata={"annotations": {}}), True, id="a pod gets another group"),
        pytest.param(
            SECOND,
            replace_fields(SECOND, status=PodStatus(phase="Pending", nominated_node_name="n")),
            False,
            id="a pod gets a condition",
        ),
        pytest.param(SECOND, replace_fields(SECOND.bound_to("n")), False, id="a pod is bound"),
        pytest.param(SECOND, None, False, id="a pod goes that was nowhere"),
        pytest.param(RUNNING, None, True, id="a pod gives its room back"),
        pytest.param(RUNNING, replace_fields(RUNNING, status=PodStatus(phase="Succeeded")), True, id="a pod ends"),
        pytest.param(
            replace_fields(RUNNING, status=PodStatus(phase="Failed")), None, False, id="a pod goes that had ended"
        ),
        pytest.param(None, GROUP, True, id="a group comes"),
        pytest.param(
            GROUP, replace_fields(GROUP, status=PodGroupStatus(phase="Inqueue")), False, id="a group gets a status"
        ),
        pytest.param(GROUP, replace_fields(GROUP, spec={"min_member": 1}), True, id="a group wants less"),
        pytest.param(GROUP, None, False, id="a group goes"),
        pytest.param(QUEUE, replace_fields(QUEUE, status=QueueStatus(state="Closed")), True, id="a queue is closed"),
        pytest.param(
            QUEUE, replace_fields(QUEUE, status=QueueStatus(state="Open", running=3)), False, id="a queue gets a status"
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
async def test_triggers_of_early_sessions(old: KubeObject | None, new: KubeObject | None, is_trigger: bool) -> None:
    async with run_live_batch(NODE, QUEUE, GROUP, WAITING) as harness:
        await harness.live.handle_pending_events()
        assert triggers_session(old, new, harness.live.event_handlers) is is_trigger


@async_test
async def test_freed_resources_trigger_nothing_without_pending_pods() -> None:
    async with run_live_batch(NODE, QUEUE, GROUP) as harness:
        await harness.live.handle_pending_events()
        assert not triggers_session(RUNNING, None, harness.live.event_handlers)
        assert not triggers_session(None, make_node("m"), harness.live.event_handlers)


@asynccontextmanager
async def running_sessions(harness: LiveBatchHarness) -> AsyncIterator[None]:
    """Sessions run on their own as the clock advances."""

    async def nothing() -> None: ...

    harness.live.prepare = nothing
    running = asyncio.ensure_future(harness.live.run())
    try:
        await wait_until(lambda: harness.live.session_count == 1 and harness.clock.sleepers)
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def advance(harness: LiveBatchHarness, seconds: float) -> None:
    """Advance the clock and run all tasks that are due."""
    sleeping = harness.clock.sleepers
    harness.clock.advance(seconds)
    for _ in range(20):
        await asyncio.sleep(0)
    await wait_until(lambda: harness.clock.sleepers >= min(1, sleeping))


@async_test
async def test_a_new_pod_triggers_an_early_session() -> None:
    async with run_live_batch(NODE, QUEUE, GROUP, WAITING) as harness, running_sessions(harness):
        await advance(harness, MIN_PAUSE_S)
        assert harness.live.session_count == 1  # no event has arrived
        harness.deliver(SECOND)
        await wait_until(lambda: harness.live.session_count == 2)
        await wait_until(lambda: len(harness.bound()) == 2)
        assert harness.clock.monotonic_s() < harness.live.period_s


@async_test
async def test_continuous_events_leave_a_pause_between_sessions() -> None:
    async with run_live_batch(NODE, QUEUE, GROUP, WAITING) as harness, running_sessions(harness):
        harness.deliver(replace_fields(WAITING, metadata={"name": "other-0", "uid": "o0"}))
        await advance(harness, MIN_PAUSE_S / 2)
        assert harness.live.session_count == 1
        await advance(harness, MIN_PAUSE_S / 2)
        await wait_until(lambda: harness.live.session_count == 2)


@async_test
async def test_early_sessions_do_not_write_conditions_of_pending_pods() -> None:
    big = make_group("big", min_member=3)
    async with run_live_batch(NODE, QUEUE, big, GROUP) as harness, running_sessions(harness):
        member = replace_fields(WAITING, metadata={"name": "big-w-0", "uid": "b0", "annotations": {**_in("big")}})
        harness.deliver(member)
        await advance(harness, MIN_PAUSE_S)
        await wait_until(lambda: harness.live.session_count == 2)
        assert harness.sent("PATCH", "/pods/big-w-0/status") == []
        await advance(harness, harness.live.period_s)
        await wait_until(lambda: harness.live.session_count == 3)
        await wait_until(lambda: harness.sent("PATCH", "/pods/big-w-0/status"))


def _in(group: str) -> dict[str, str]:
    return {"scheduling.k8s.io/group-name": group}
