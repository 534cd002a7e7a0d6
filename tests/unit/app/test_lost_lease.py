"""A lost lease with many pending writes: no traceback and one log line, in each engine and in the binder."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path

import pytest

from bayplan.binder.controller import BinderController
from bayplan.client import CORE_EVENTS, EventSink
from bayplan.clock import ManualClock, SystemClock
from bayplan.objects.core import ObjectMeta, Pod
from bayplan.telemetry.events import EventRecorder
from support.builders.batch import make_group, make_member, make_queue
from support.builders.framework import make_node, make_pod
from support.fakes.http_server import FakeHttpServer, Reply
from support.harness.async_tests import async_test, wait_until
from support.harness.live_batch import run_live_batch
from support.harness.live_scheduler import bind_request_config, run_live_scheduler, run_with_bind_requests
from support.harness.lost_lease import StaleLease, complaints, unsent
from support.harness.reconciler import ReconcilerHarness, run_with_reconciler

MANY = 15
NODE = make_node("n", cpu="100")
FULL = make_node("full", cpu="2", labels={"full": "yes"})
WEAK = [make_pod(f"weak-{number}", cpu="1", node="full", priority=1) for number in range(2)]
"""The second one is evicted when the nomination of the stronger pod is written."""
STRONG = make_pod("strong", cpu="2", priority=9, node_selector={"full": "yes"})
FITTING = [make_pod(f"fits-{number}", cpu="1") for number in range(MANY)]
TOO_BIG = [make_pod(f"big-{number}", cpu="1000") for number in range(MANY)]


@pytest.fixture(autouse=True)
def _log_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


@pytest.mark.parametrize("by_binder", [False, True], ids=["bindings", "bind-requests"])
def test_the_pod_engine(by_binder: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Bindings or BindRequests, statuses, and the condition of a victim."""

    @async_test
    async def test() -> None:
        known = (NODE, FULL, *WEAK)
        running = (
            run_with_bind_requests(*known, config=bind_request_config()) if by_binder else run_live_scheduler(*known)
        )
        async with running as harness:
            lease = StaleLease(harness.clock)
            harness.client.set_guard(lease)
            harness.deliver(*FITTING, *TOO_BIG, STRONG)
            await wait_until(lambda: lease.refused >= 2 * MANY + 2)
            assert all(each.method == "GET" for each in harness.server.requests)
        lease.report_unsent()
        assert complaints(caplog) == [unsent(lease.refused)]

    test()


@async_test
async def test_the_batch_engine(caplog: pytest.LogCaptureFixture) -> None:
    """Bindings, statuses of pods, groups and queues, and the condition of a victim."""
    groups = [make_group(f"g{number}", min_member=1, queue="q") for number in range(MANY)]
    members = [make_member(f"m{number}", group=f"g{number}", requests={"cpu": "1"}) for number in range(MANY)]
    stuck = [make_group(f"s{number}", min_member=1, queue="q") for number in range(MANY)]
    big = [make_member(f"b{number}", group=f"s{number}", requests={"cpu": "1000"}) for number in range(MANY)]
    async with run_live_batch(NODE, FULL, *WEAK, make_queue(), *groups, *members, *stuck, *big) as harness:
        lease = StaleLease(harness.clock)
        harness.client.set_guard(lease)
        await harness.live.handle_pending_events()
        await harness.live.run_session()
        harness.live.evictions.start(WEAK[0], "reclaim")
        await wait_until(lambda: lease.refused >= 3 * MANY)
        assert harness.server.requests == []
    lease.report_unsent()
    assert complaints(caplog) == [unsent(lease.refused)]


def test_the_binder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Statuses of BindRequests, which are written before each binding, and their retries."""

    async def test(harness: ReconcilerHarness) -> None:
        for number in range(MANY):
            await harness.request(await harness.pod(f"p{number}"), name=f"p{number}")
        lease = StaleLease(SystemClock())
        harness.client.set_guard(lease)
        caplog.clear()
        async with harness.run_binder(workers=MANY) as live:
            assert isinstance(live, BinderController)
            while lease.refused < MANY:
                await asyncio.sleep(0)
        lease.report_unsent()
        assert complaints(caplog) == [unsent(lease.refused)]

    run_with_reconciler(tmp_path, test)


@async_test
async def test_events(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with FakeHttpServer(lambda _: Reply()) as server, server.client(clock) as client:
        sink = EventSink(client, resource=CORE_EVENTS)
        sending = asyncio.ensure_future(sink.run())
        lease = StaleLease(clock)
        client.set_guard(lease)
        recorder = EventRecorder("s", host="h", clock=clock, chance=random.Random(0), post=sink.post)
        for number in range(MANY):
            meta = ObjectMeta(name=f"p{number}", namespace="team", uid=f"u{number}")
            recorder.record_failed_scheduling(Pod(metadata=meta), "no room")
        await wait_until(lambda: lease.refused > 0)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert server.requests == []
    lease.report_unsent()
    assert complaints(caplog) == [unsent(lease.refused)]


@async_test
async def test_an_unexpected_error_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        raise ValueError("a bug")

    async with run_live_scheduler(NODE) as harness:
        harness.client.set_guard(StaleLease(harness.clock))
        harness.live.writes.start(broken(), "a write")
        await harness.idle()
    (record,) = [each for each in caplog.records if each.exc_info]
    assert record.getMessage() == "a write failed"
