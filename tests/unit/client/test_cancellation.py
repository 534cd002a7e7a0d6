"""Cancelled work ends its waits at once, and its writes first."""

from __future__ import annotations

import asyncio

import pytest

from bayplan.client.cancellation import Cancellation, finish_write, leave_cancellation, start_cancellable
from support.harness.async_tests import async_test


class Write:
    """A request that the test answers."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_sent = False

    async def send(self) -> str:
        self.is_sent = True
        return await self.answer


async def run_tasks(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@async_test
async def test_a_wait_ends_at_once() -> None:
    task, cancellation = start_cancellable(asyncio.Event().wait())
    await run_tasks()
    cancellation.cancel()
    await run_tasks()
    assert task.cancelled()


@async_test
async def test_a_write_returns_its_result_before_the_work_is_cancelled() -> None:
    write, seen = Write(), []

    async def work() -> None:
        seen.append(await finish_write(write.send()))
        await asyncio.Event().wait()

    task, cancellation = start_cancellable(work())
    await run_tasks()
    cancellation.cancel()
    await run_tasks()
    assert not task.done()
    write.answer.set_result("written")
    await run_tasks()
    assert seen == ["written"]
    assert task.cancelled()


@async_test
async def test_a_cancelled_task_sends_no_further_write() -> None:
    first, second = Write(), Write()

    async def work() -> None:
        await finish_write(first.send())
        await finish_write(second.send())

    task, cancellation = start_cancellable(work())
    await run_tasks()
    cancellation.cancel()
    first.answer.set_result("")
    await run_tasks()
    assert task.cancelled()
    assert not second.is_sent


@async_test
async def test_concurrent_work_sends_nothing_while_a_write_delays_the_cancellation() -> None:
    first, second, begun = Write(), Write(), asyncio.Event()

    async def other() -> None:
        await begun.wait()
        await finish_write(second.send())

    async def work() -> None:
        await asyncio.gather(finish_write(first.send()), other())

    task, cancellation = start_cancellable(work())
    await run_tasks()
    cancellation.cancel()
    begun.set()
    await run_tasks()
    assert not task.done()
    first.answer.set_result("")
    await run_tasks()
    assert task.cancelled()
    assert not second.is_sent


@async_test
async def test_cancelling_an_inner_task_does_not_cancel_the_outer_work() -> None:
    inner, outer = Write(), Write()

    async def work() -> str:
        task, cancellation = start_cancellable(finish_write(inner.send()))
        await run_tasks()
        cancellation.cancel()
        inner.answer.set_result("inner")
        await asyncio.wait([task])
        return await finish_write(outer.send())

    task, _ = start_cancellable(work())
    await run_tasks(30)
    outer.answer.set_result("outer")
    assert await task == "outer"


@async_test
async def test_a_write_of_an_inner_task_delays_the_outer_cancellation() -> None:
    write = Write()

    async def work() -> None:
        task, _ = start_cancellable(finish_write(write.send()))
        await task

    task, cancellation = start_cancellable(work())
    await run_tasks()
    cancellation.cancel()
    await run_tasks()
    assert not task.done()
    write.answer.set_result("")
    await run_tasks()
    assert task.cancelled()


@async_test
async def test_a_cleanup_write_after_the_cancellation_is_sent() -> None:
    write = Write()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await finish_write(write.send())

    task, cancellation = start_cancellable(work())
    await run_tasks()
    cancellation.cancel()
    await run_tasks()
    write.answer.set_result("")
    await run_tasks()
    assert write.is_sent
    assert task.cancelled()


@async_test
async def test_a_detached_task_writes_after_the_cancellation() -> None:
    write, tasks, begun = Write(), [], asyncio.Event()

    async def detached() -> str:
        leave_cancellation()
        await begun.wait()
        return await finish_write(write.send())

    async def work() -> None:
        tasks.append(asyncio.ensure_future(detached()))
        await asyncio.Event().wait()

    _, cancellation = start_cancellable(work())
    await run_tasks()
    cancellation.cancel()
    begun.set()
    write.answer.set_result("written")
    assert await tasks[0] == "written"


@async_test
async def test_an_attached_task_does_not_write_after_the_cancellation() -> None:
    write, tasks, begun = Write(), [], asyncio.Event()

    async def attached() -> str:
        await begun.wait()
        return await finish_write(write.send())

    async def work() -> None:
        tasks.append(asyncio.ensure_future(attached()))
        await asyncio.Event().wait()

    _, cancellation = start_cancellable(work())
    await run_tasks()
    cancellation.cancel()
    begun.set()
    await run_tasks()
    assert tasks[0].cancelled()
    assert not write.is_sent


@async_test
async def test_cancelling_the_task_does_not_wait_for_a_write() -> None:
    write = Write()
    task, _ = start_cancellable(finish_write(write.send()))
    await run_tasks()
    task.cancel()
    await run_tasks()
    assert task.cancelled()


@async_test
async def test_a_timeout_expires_after_the_write() -> None:
    loop, write, never = asyncio.get_running_loop(), Write(), Write()

    async def work() -> None:
        async with asyncio.timeout(None) as end:
            with Cancellation(lambda: end.reschedule(0)) as cancellation:
                loop.call_soon(cancellation.cancel)
                loop.call_later(0.01, write.answer.set_result, "")
                await finish_write(write.send())
                await finish_write(never.send())

    with pytest.raises(TimeoutError):
        await work()
    assert write.answer.done()
    assert not never.is_sent
