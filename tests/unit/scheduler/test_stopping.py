"""A process that is stopped while a binding is on its way keeps its lease until the outcome is known."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bayplan.app.process_lifecycle import STOPPED, SchedulerProcess
from support.builders.batch import make_group, make_member, make_queue
from support.builders.framework import make_node, make_pod
from support.fakes.http_server import Hang, Request
from support.harness.async_tests import on_loop, until
from support.harness.live_batch import batch_running
from support.harness.live_engine import PlayedServer
from support.harness.live_scheduler import running

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
    """Fits where an election does, and always leads."""

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

    async def hold(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.is_released = not self.is_retained


async def stopped(rig: PlayedServer[Any], *, answered: bool, started: Any) -> Lease:
    """The lease of a process that was stopped after a pod had come; the server answers its binding, or never does."""
    answer, lease = rig.server.route, Lease()

    def route(request: Request) -> Any:
        is_binding = request.method == "POST" and request.path.endswith("/binding")
        return Hang() if is_binding and not answered else answer(request)

    rig.server.route = route
    process = SchedulerProcess(rig.live, Watching(), lease, patience_s=1.0 if answered else 0.05)
    process_run = asyncio.ensure_future(process.run())
    started()
    asked = rig.server.requests
    await until(lambda: any(each.path.endswith("/binding") for each in asked), tick=lambda: rig.clock.advance(0.1))
    process.stop()
    assert await process_run == STOPPED
    return lease


ANSWERED = pytest.mark.parametrize("answered", [True, False], ids=["answered", "outcome unknown"])


@ANSWERED
def test_the_pod_engine(answered: bool) -> None:
    @on_loop
    async def test() -> None:
        async with running(NODE, decide=False) as rig:
            lease = await stopped(rig, answered=answered, started=lambda: rig.hear(make_pod("p", cpu="1")))
            assert lease.is_released is answered

    test()


@ANSWERED
def test_the_batch_engine(answered: bool) -> None:
    @on_loop
    async def test() -> None:
        group = make_group("g", min_member=1, queue="q")
        async with batch_running(NODE, make_queue(), group) as rig:
            member = make_member("m", group="g", requests={"cpu": "1"})
            lease = await stopped(rig, answered=answered, started=lambda: rig.hear(member))
            assert lease.is_released is answered

    test()
