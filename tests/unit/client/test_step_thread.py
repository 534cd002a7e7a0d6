"""Sessions that wait for answers from outside leave the loop to others meanwhile."""

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
async def test_a_step_returns_what_it_returns_and_raises_what_it_raises() -> None:
    aside = StepThread()
    assert [await aside.run_step(lambda n=n: n + 1) for n in range(3)] == [1, 2, 3]  # type: ignore[misc]
    with pytest.raises(ValueError, match="no"):
        await aside.run_step(refuse)
    assert await aside.run_step(lambda: 4) == 4
    aside.close()
    assert await aside.run_step(lambda: 5) == 5
    aside.close()


@async_test
async def test_the_loop_turns_while_a_step_waits_and_only_then() -> None:
    aside, answered, turns = StepThread(), threading.Event(), list[str]()
    begun: list[asyncio.Future[None]] = []

    async def others() -> None:
        turns.append("others")
        answered.set()

    def work() -> str:
        turns.append("before")
        begun.append(asyncio.ensure_future(others()))  # goes on when the loop does
        turns.append("still us")
        aside.wait_outside(answered.wait)
        turns.append("after")
        return "done"

    assert await aside.run_step(work) == "done"
    assert turns == ["before", "still us", "others", "after"]
    aside.close()


@async_test
async def test_who_is_cancelled_sees_the_step_end() -> None:
    aside, waits, answered, ends = StepThread(), asyncio.Event(), threading.Event(), list[str]()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        loop.call_soon_threadsafe(waits.set)
        answered.wait()

    def work() -> None:
        aside.wait_outside(wait)
        aside.wait_outside(lambda: None)
        ends.append("ended")

    stepping = asyncio.ensure_future(aside.run_step(work))
    await waits.wait()
    stepping.cancel()
    answered.set()
    with pytest.raises(asyncio.CancelledError):
        await stepping
    assert ends == ["ended"]
    aside.close()


def test_whoever_is_no_step_just_waits() -> None:
    assert StepThread().wait_outside(lambda: 7) == 7


@async_test
async def test_an_extender_on_the_sessions_own_loop_is_heard() -> None:
    """It could never answer if the session held the loop while it waits."""

    def answer(request: Request) -> ServerAnswer:
        task = request.json["task"]["Name"]
        return Reply(200, {"status": "", "code": 0} if task == "w-0" else {"status": "not this one", "code": 2})

    async with FakeHttpServer(answer) as outside:
        extender = f"""
- plugins:
  - name: extender
    arguments:
      extender.urlPrefix: http://127.0.0.1:{outside.port}
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
        ) as rig:
            outcome = await rig.session()
            assert rig.bound() == {"w-0": "n"}
            assert "not this one" in outcome.waiting["default/w-1"].message
            assert {each.path for each in outside.requests} == {"/predicate"}
            rig.live.blocking_thread.close()
