"""Session steps that wait for an external response let the event loop run other tasks."""

from __future__ import annotations

import asyncio
import threading
from typing import NoReturn

import pytest

from bayplan.client.step_thread import StepThread
from bayplan.objects.core import PodStatus
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.batch_engines import GANGS
from support.builders.framework import replace_fields
from support.fakes.http_server import FakeHttpServer, Reply, Request, ServerAnswer
from support.harness.async_tests import async_test
from support.harness.live_batch import run_live_batch


def refuse() -> NoReturn:
    raise ValueError("no")


@async_test
async def test_run_step_returns_the_result_or_raises_the_exception() -> None:
    step_thread = StepThread()
    assert [await step_thread.run_step(lambda n=n: n + 1) for n in range(3)] == [1, 2, 3]  # type: ignore[misc]
    with pytest.raises(ValueError, match="no"):
        await step_thread.run_step(refuse)
    assert await step_thread.run_step(lambda: 4) == 4
    step_thread.close()
    assert await step_thread.run_step(lambda: 5) == 5
    step_thread.close()


@async_test
async def test_the_loop_runs_only_while_a_step_waits() -> None:
    step_thread, answered, turns = StepThread(), threading.Event(), list[str]()
    started: list[asyncio.Future[None]] = []

    async def other() -> None:
        turns.append("others")
        answered.set()

    def work() -> str:
        turns.append("before")
        started.append(asyncio.ensure_future(other()))  # runs when the loop continues
        turns.append("still us")
        step_thread.wait_outside(answered.wait)
        turns.append("after")
        return "done"

    assert await step_thread.run_step(work) == "done"
    assert turns == ["before", "still us", "others", "after"]
    step_thread.close()


@async_test
async def test_a_cancelled_caller_waits_for_the_end_of_the_step() -> None:
    step_thread, waits, answered, ends = StepThread(), asyncio.Event(), threading.Event(), list[str]()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        loop.call_soon_threadsafe(waits.set)
        answered.wait()

    def work() -> None:
        step_thread.wait_outside(wait)
        step_thread.wait_outside(lambda: None)
        ends.append("ended")

    step = asyncio.ensure_future(step_thread.run_step(work))
    await waits.wait()
    step.cancel()
    answered.set()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert ends == ["ended"]
    step_thread.close()


def test_wait_outside_without_a_step_calls_directly() -> None:
    assert StepThread().wait_outside(lambda: 7) == 7


@async_test
async def test_an_extender_on_the_sessions_loop_can_answer() -> None:
    """An extender on the same loop could not answer if the waiting session blocked the loop."""

    def answer(request: Request) -> ServerAnswer:
        task = request.json["task"]["Name"]
        return Reply(200, {"status": "", "code": 0} if task == "w-0" else {"status": "not this one", "code": 2})

    async with FakeHttpServer(answer) as extender_server:
        extender = f"""
- plugins:
  - name: extender
    arguments:
      extender.urlPrefix: http://127.0.0.1:{extender_server.port}
      extender.httpTimeout: 60s
      extender.predicateVerb: predicate
"""
        pods = [make_member(f"w-{number}", "job", requests={"cpu": "1"}) for number in range(2)]
        async with run_live_batch(
            make_node("n", cpu=4),
            make_queue(),
            make_group("job", min_member=1),
            *(
                replace_fields(pod, spec={"scheduler_name": "volcano"}, status=PodStatus(phase="Pending"))
                for pod in pods
            ),
            conf=GANGS + extender.lstrip("\n"),
        ) as harness:
            outcome = await harness.session()
            assert harness.bound() == {"w-0": "n"}
            assert "not this one" in outcome.waiting["default/w-1"].message
            assert {each.path for each in extender_server.requests} == {"/predicate"}
            harness.live.blocking_thread.close()
