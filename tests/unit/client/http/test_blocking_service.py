"""Session steps that wait for an external response let the event loop run other tasks."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import NoReturn

import pytest

from bayplan.client import BlockingHttpService, ServiceCallError
from bayplan.objects.core import PodStatus
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.batch_engines import GANGS
from support.builders.framework import replace_fields
from support.fakes.http_server import FakeHttpServer, NoAnswer, Reply, Request, ServerAnswer
from support.harness.async_tests import async_test
from support.harness.live_batch import run_live_batch


def refuse() -> NoReturn:
    raise ValueError("no")


def service() -> BlockingHttpService:
    return BlockingHttpService(user_agent="bayplan", env={})


@async_test
async def test_run_step_returns_the_result_or_raises_the_exception() -> None:
    http = service()
    assert [await http.run_step(lambda n=n: n + 1) for n in range(3)] == [1, 2, 3]  # type: ignore[misc]
    with pytest.raises(ValueError, match="no"):
        await http.run_step(refuse)
    assert await http.run_step(lambda: 4) == 4
    await http.close_steps()
    assert await http.run_step(lambda: 5) == 5
    await http.close_steps()


@async_test
async def test_the_loop_runs_only_while_a_step_posts() -> None:
    turns = list[str]()
    started: list[asyncio.Future[None]] = []

    async def other() -> None:
        turns.append("others")

    threads = set(threading.enumerate())
    async with FakeHttpServer(lambda _: Reply(201, "answer")) as server:
        http = service()

        def work() -> tuple[int, bytes]:
            turns.append("before")
            started.append(asyncio.ensure_future(other()))  # runs when the loop continues
            turns.append("still the step")
            answer = http.post(server.url, b"{}", 60.0)
            turns.append("after")
            return answer

        assert await http.run_step(work) == (201, b'"answer"')
        assert turns == ["before", "still the step", "others", "after"]
        await http.run_step(work)
        assert server.connections == 1
        assert [each.name for each in threading.enumerate() if each not in threads] == ["session"]
        await http.close_steps()
        http.close()


@async_test
async def test_a_cancelled_caller_waits_for_the_end_of_the_step() -> None:
    posted, may_answer, ends = asyncio.Event(), asyncio.Event(), list[str]()

    async def answer(_: Request) -> Reply:
        posted.set()
        await may_answer.wait()
        return Reply()

    async with FakeHttpServer(answer) as server:
        http = service()

        def work() -> None:
            for _ in range(2):
                http.post(server.url, b"{}", 60.0)
            ends.append("ended")

        step = asyncio.ensure_future(http.run_step(work))
        await posted.wait()
        step.cancel()
        await asyncio.sleep(0)
        assert not step.done()
        may_answer.set()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert ends == ["ended"]
        await http.close_steps()


@async_test
async def test_a_failed_request_of_a_step_raises_in_the_step() -> None:
    http = service()
    async with FakeHttpServer(lambda _: NoAnswer()) as server:
        with pytest.raises(ServiceCallError, match="deadline exceeded"):
            await http.run_step(lambda: http.post(server.url, b"{}", 0.01))
        assert await http.run_step(lambda: 1) == 1
        await http.close_steps()


def test_without_a_step_the_caller_blocks() -> None:
    listening = socket.create_server(("127.0.0.1", 0))  # accepts connections without serving them
    http = service()
    with pytest.raises(ServiceCallError, match="deadline exceeded"):
        http.post(f"http://127.0.0.1:{listening.getsockname()[1]}/", b"{}", 0.01)
    listening.close()
    http.close()
    http.close()  # closing twice is allowed


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
