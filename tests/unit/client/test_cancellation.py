"""Cancelled work ends its waits at once, and its writes first."""

from __future__ import annotations

import asyncio

import pytest

from bayplan.client.cancellation import Cancellation, finish_write, leave_cancellation, start_cancellable
from support.harness.async_tests import async_test


class Write:
    """A request that is answered when the test says so."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_sent = False

    async def send(self) -> str:
        self.is_sent = True
        return await self.answer


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@async_test
async def test_a_wait_ends_at_once() -> None:
    task, cancellation = start_cancellable(asyncio.Event().wait())
    await turns()
    cancellation.cancel()
    await turns()
    assert task.cancelled()


@async_test
async def test_a_write_returns_its_result_before_the_work_is_cancelled() -> None:
    write, seen = Write(), []

    async def work() -> None:
        seen.append(await finish_write(write.send()))
        await asyncio.Event().wait()

    task, cancellation = start_cancellable(work())
    await turns()
    cancellation.cancel()
    await turns()
    assert not task.done()
    write.answer.set_result("written")
    await turns()
    assert seen == ["written"]
    assert task.cancelled()


@async_test
async def test_no_write_is_sent_after_the_one_that_was_under_way() -> None:
    first, second = Write(), Write()

    async def work() -> None:
        await finish_write(first.send())
        await finish_write(second.send())

    task, cancellation = start_cancellable(work())
    await turns()
    cancellation.cancel()
    first.answer.set_result("")
    await turns()
    assert task.cancelled()
    assert not second.is_sent


@async_test
async def test_work_beside_a_write_waits_for_it_and_sends_nothing() -> None:
    first, second, begun = Write(), Write(), asyncio.Event()

    async def other() -> None:
        await begun.wait()
        await finish_write(second.send())

    async def work() -> None:
        await asyncio.gather(finish_write(first.send()), other())

    task, cancellation = start_cancellable(work())
    await turns()
    cancellation.cancel()
    begun.set()
    await turns()
    assert not task.done()
    first.answer.set_result("")
    await turns()
    assert task.cancelled()
    assert not second.is_sent


@async_test
async def test_a_part_that_is_cancelled_leaves_the_rest_alone() -> None:
    inner, outer = Write(), Write()

    async def work() -> str:
        task, cancellation = start_cancellable(finish_write(inner.send()))
        await turns()
        cancellation.cancel()
        inner.answer.set_result("inner")
        await asyncio.wait([task])
        return await finish_write(outer.send())

    task, _ = start_cancellable(work())
    await turns(30)
    outer.answer.set_result("outer")
    assert await task == "outer"


@async_test
async def test_a_write_of_a_part_delays_the_whole() -> None:
    write = Write()

    async def work() -> None:
        task, _ = start_cancellable(finish_write(write.send()))
        await task

    task, cancellation = start_cancellable(work())
    await turns()
    cancellation.cancel()
    await turns()
    assert not task.done()
    write.answer.set_result("")
    await turns()
    assert task.cancelled()


@async_test
async def test_what_is_taken_back_after_the_cancellation_is_written() -> None:
    write = Write()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await finish_write(write.send())

    task, cancellation = start_cancellable(work())
    await turns()
    cancellation.cancel()
    await turns()
    write.answer.set_result("")
    await turns()
    assert write.is_sent
    assert task.cancelled()


@async_test
async def test_a_task_that_left_the_work_writes_after_its_cancellation() -> None:
    write, tasks, begun = Write(), [], asyncio.Event()

    async def submitted() -> str:
        leave_cancellation()
        await begun.wait()
        return await finish_write(write.send())

    async def work() -> None:
        tasks.append(asyncio.ensure_future(submitted()))
        await asyncio.Event().wait()

    _, cancellation = start_cancellable(work())
    await turns()
    cancellation.cancel()
    begun.set()
    write.answer.set_result("written")
    assert await tasks[0] == "written"


@async_test
async def test_a_task_that_stayed_does_not_write_after_the_cancellation() -> None:
    write, tasks, begun = Write(), [], asyncio.Event()

    async def detached() -> str:
        await begun.wait()
        return await finish_write(write.send())

    async def work() -> None:
        tasks.append(asyncio.ensure_future(detached()))
        await asyncio.Event().wait()

    _, cancellation = start_cancellable(work())
    await turns()
    cancellation.cancel()
    begun.set()
    await turns()
    assert tasks[0].cancelled()
    assert not write.is_sent


@async_test
async def test_cancelling_the_task_itself_waits_for_no_write() -> None:
    write = Write()
    task, _ = start_cancellable(finish_write(write.send()))
    await turns()
    task.cancel()
    await turns()
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
