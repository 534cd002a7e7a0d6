"""A process that is stopped during a binding keeps its lease until the outcome is known."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bayplan.app.process_lifecycle import STOPPED_EXIT_CODE, SchedulerProcess
from support.builders.batch import make_group, make_member, make_queue
from support.builders.framework import make_node, make_pod
from support.fakes.http_server import NoAnswer, Request
from support.harness.async_tests import async_test, wait_until
from support.harness.live_batch import run_live_batch
from support.harness.live_engine import LiveEngineHarness
from support.harness.live_scheduler import run_live_scheduler

NODE = make_node("n", cpu="4")


class Watching:
    synced = True

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def wait_synced(self) -> None: ...

    async def catch_up(self) -> None: ...

    def objects(self, plural: str) -> tuple[()]:  # noqa: ARG002
        return ()


class Lease:
    """A fake leader election that always leads."""

    leading = True
    is_released = False
    is_retained = False

    def overdue_s(self) -> float:
        return 0.0

    def report_unsent(self) -> None: ...
    async def observe(self) -> None: ...
    async def acquire(self) -> None: ...

    def retain(self) -> None:
        self.is_retained = True

    async def renew_until_lost(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.is_released = not self.is_retained


async def stopped(harness: LiveEngineHarness[Any], *, answered: bool, started: Any) -> Lease:
    """The lease of a process that was stopped during a binding, which the server answers or not."""
    answer, lease = harness.server.route, Lease()

    def route(request: Request) -> Any:
        is_binding = request.method == "POST" and request.path.endswith("/binding")
        return NoAnswer() if is_binding and not answered else answer(request)

    harness.server.route = route
    process = SchedulerProcess(harness.live, Watching(), lease, drain_timeout_s=1.0 if answered else 0.05)
    process_run = asyncio.ensure_future(process.run())
    started()
    requests = harness.server.requests
    await wait_until(
        lambda: any(each.path.endswith("/binding") for each in requests), tick=lambda: harness.clock.advance(0.1)
    )
    process.stop()
    assert await process_run == STOPPED_EXIT_CODE
    return lease


ANSWERED = pytest.mark.parametrize("answered", [True, False], ids=["answered", "outcome unknown"])


@ANSWERED
def test_the_pod_engine(answered: bool) -> None:
    @async_test
    async def test() -> None:
        async with run_live_scheduler(NODE, decide=False) as harness:
            lease = await stopped(harness, answered=answered, started=lambda: harness.deliver(make_pod("p", cpu="1")))
            assert lease.is_released is answered

    test()


@ANSWERED
def test_the_batch_engine(answered: bool) -> None:
    @async_test
    async def test() -> None:
        group = make_group("g", min_member=1, queue="q")
        async with run_live_batch(NODE, make_queue(), group) as harness:
            member = make_member("m", group="g", requests={"cpu": "1"})
            lease = await stopped(harness, answered=answered, started=lambda: harness.deliver(member))
            assert lease.is_released is answered

    test()
