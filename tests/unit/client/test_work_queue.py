"""The work queue of every controller: one worker per key, due times and retries, on a manual clock."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from bayplan.client.work_queue import WorkQueue
from bayplan.clock import ManualClock
from bayplan.errors import BayplanError
from support.harness.async_tests import async_test, wait_until


class Work:
    """A handler that records its calls and returns or raises the next of `answers`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.calls: list[tuple[float, str]] = []
        self.answers: list[float | BaseException | None] = []
        self.hold: asyncio.Event | None = None
        self.running = 0
        self.max_running = 0
        self.queue: WorkQueue[str] = WorkQueue(
            "thing", self.handle, clock=self.clock, chance=random.Random(0), workers=3
        )

    async def handle(self, key: str) -> float | None:
        self.calls.append((round(self.clock.monotonic_s(), 3), key))
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        try:
            if self.hold is not None:
                await self.hold.wait()
            answer = self.answers.pop(0) if self.answers else None
            if isinstance(answer, BaseException):
                raise answer
            return answer
        finally:
            self.running -= 1

    async def run_tasks(self) -> None:
        """Run tasks until only the clock can wake them."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        await self.run_tasks()
        self.clock.advance(seconds)
        await self.run_tasks()


@asynccontextmanager
async def run_work() -> AsyncIterator[Work]:
    work = Work()
    runner = asyncio.ensure_future(work.queue.run())
    try:
        yield work
    finally:
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)


@async_test
async def test_a_key_that_is_added_repeatedly_is_processed_once() -> None:
    async with run_work() as w:
        for key in ("a", "b", "a", "a"):
            w.queue.add(key)
        await w.run_tasks()
        assert w.calls == [(0, "a"), (0, "b")]


@async_test
async def test_a_key_that_is_added_during_its_work_is_processed_again_afterwards() -> None:
    async with run_work() as w:
        w.hold = asyncio.Event()
        w.queue.add("a")
        await w.run_tasks()
        w.queue.add("a")
        w.queue.add("a")
        await w.run_tasks()
        assert len(w.calls) == 1
        w.hold.set()
        await w.run_tasks()
        assert len(w.calls) == 2
        assert w.max_running == 1


@async_test
async def test_the_number_of_concurrent_handlers_is_limited() -> None:
    async with run_work() as w:
        w.hold = asyncio.Event()
        for number in range(10):
            w.queue.add(str(number))
        await w.run_tasks()
        assert w.running == 3
        w.hold.set()
        await w.run_tasks()
        assert len(w.calls) == 10
        assert w.max_running == 3


@async_test
async def test_the_earlier_of_two_due_times_is_used() -> None:
    async with run_work() as w:
        w.queue.add("a", after_s=5)
        w.queue.add("a", after_s=2)
        w.queue.add("a", after_s=9)
        w.queue.add("b", after_s=1)
        for _ in range(20):
            await w.advance(0.5)
        assert w.calls == [(1, "b"), (2, "a")]


@async_test
async def test_keys_that_are_due_in_one_slot_are_processed_together() -> None:
    async with run_work() as w:
        for number in range(1, 90):
            w.queue.add(str(number), after_s=1 + number / 1000)
        await w.advance(1.05)
        assert w.calls == []
        await w.advance(0.05)
        await wait_until(lambda: len(w.calls) == 89)


@async_test
async def test_a_handler_whose_awaited_task_was_cancelled_is_retried_and_keeps_its_worker() -> None:
    async with run_work() as w:
        w.answers = [asyncio.CancelledError() for _ in range(5)]  # more than there are workers
        for number in range(5):
            w.queue.add(str(number))
        for _ in range(10):
            await w.advance(0.5)
        assert sorted(key for _, key in w.calls) == sorted("0123401234")


@async_test
async def test_a_handler_returns_the_delay_of_its_next_call() -> None:
    async with run_work() as w:
        w.answers = [10.0, 10.0, None]
        w.queue.add("a")
        for _ in range(50):
            await w.advance(1)
        assert w.calls == [(0, "a"), (10, "a"), (20, "a")]


@pytest.mark.parametrize("fault", [BayplanError("no"), ValueError("bug")], ids=["a refusal", "a bug"])
@async_test
async def test_a_failed_key_is_retried_with_growing_delays(fault: Exception) -> None:
    async with run_work() as w:
        w.answers = [fault] * 12
        w.queue.add("a")
        for _ in range(800):
            await w.advance(0.5)
        times = [at for at, _ in w.calls]
        gaps = [later - before for before, later in pairwise(times)]
        assert len(times) == 13
        assert 0.5 <= gaps[0] <= 1.5
        assert 2 <= gaps[2] <= 4.5
        assert all(30 <= gap <= 60.5 for gap in gaps[6:])
        w.queue.add("b")
        await w.run_tasks()
        assert w.calls[-1][1] == "b"


@async_test
async def test_a_success_resets_the_retry_delay() -> None:
    async with run_work() as w:
        w.answers = [BayplanError("no"), BayplanError("no"), None, BayplanError("no")]
        w.queue.add("a")
        for _ in range(50):
            await w.advance(0.1)
        w.queue.add("a")
        before = len(w.calls)
        for _ in range(13):
            await w.advance(0.1)
        assert len(w.calls) == before + 2


@async_test
async def test_a_forgotten_key_is_not_processed() -> None:
    async with run_work() as w:
        w.queue.add("a", after_s=1)
        w.queue.add("b")
        w.queue.forget("a")
        w.queue.forget("b")
        await w.advance(2)
        assert w.calls == []
        w.queue.add("b")
        await w.run_tasks()
        assert w.calls == [(2, "b")]


@async_test
async def test_a_key_that_is_added_without_delay_does_not_wait_for_its_due_time() -> None:
    async with run_work() as w:
        w.queue.add("a", after_s=5)
        w.queue.add("a")
        await w.run_tasks()
        await wait_until(lambda: w.calls == [(0, "a")])
        await w.advance(6)
        assert w.calls == [(0, "a")]


# Handlers that release their worker.


class ReleasingWork(Work):
    """Handlers of keys that start with `slow` release their worker until the test resumes them."""

    def __init__(self, *, workers: int = 2, max_released: int = 3) -> None:
        super().__init__()
        self.resumed: dict[str, asyncio.Event] = {}
        self.waiting: list[str] = []
        self.limit = asyncio.timeout(None)
        self.queue = WorkQueue(
            "thing", self.wait, clock=self.clock, chance=random.Random(0), workers=workers, max_released=max_released
        )

    async def wait(self, key: str) -> float | None:
        if key.startswith("slow"):
            self.waiting.append(key)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None) as self.limit, self.queue.released_worker():
                    await self.resumed.setdefault(key, asyncio.Event()).wait()
            self.waiting.remove(key)
        return await self.handle(key)


@asynccontextmanager
async def releasing_work(keys: int, **limits: int) -> AsyncIterator[ReleasingWork]:
    """Start a queue with this many keys whose handlers release their worker."""
    work = ReleasingWork(**limits)
    runner = asyncio.ensure_future(work.queue.run())
    try:
        for number in range(keys):
            work.queue.add(f"slow-{number}")
        await work.run_tasks()
        yield work
    finally:
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)


@async_test
async def test_a_released_worker_is_used_for_other_keys() -> None:
    async with releasing_work(3) as w:
        assert len(w.waiting) == 3  # with two workers
        for key in "abcd":
            w.queue.add(key)
        await w.run_tasks()
        assert [key for _, key in w.calls] == list("abcd")


@async_test
async def test_a_resumed_handler_waits_for_a_worker() -> None:
    async with releasing_work(3) as w:
        w.hold = asyncio.Event()
        for key in "ab":
            w.queue.add(key)
        await w.run_tasks()
        for each in w.resumed.values():
            each.set()
        await w.run_tasks()
        assert [key for _, key in w.calls] == ["a", "b"]
        w.hold.set()
        await w.run_tasks()
        assert sorted(key for _, key in w.calls) == ["a", "b", "slow-0", "slow-1", "slow-2"]
        assert w.max_running == 2


@async_test
async def test_a_key_whose_handler_waits_is_not_processed_twice() -> None:
    async with releasing_work(1) as w:
        w.queue.add("slow-0")
        await w.run_tasks()
        assert w.waiting == ["slow-0"]
        w.resumed["slow-0"].set()
        await w.run_tasks()
        assert [key for _, key in w.calls] == ["slow-0", "slow-0"]


@async_test
async def test_no_handler_starts_while_the_maximum_waits() -> None:
    async with releasing_work(8) as w:
        assert w.waiting == [f"slow-{number}" for number in range(5)]
        w.queue.add("a")
        await w.run_tasks()
        assert w.calls == []
        for key in w.waiting:
            w.resumed[key].set()
        await w.run_tasks()
        assert w.waiting == ["slow-5", "slow-6", "slow-7"]
        assert w.calls[-1][1] == "a"


@async_test
async def test_a_handler_that_is_cancelled_before_it_resumes_releases_no_worker() -> None:
    async with releasing_work(1, workers=1) as w:
        w.hold = asyncio.Event()
        w.queue.add("a")
        await w.run_tasks()
        w.resumed["slow-0"].set()
        await w.run_tasks()
        w.limit.reschedule(0)
        for key in "bc":
            w.queue.add(key)
        await w.run_tasks()
        assert [key for _, key in w.calls] == ["a", "slow-0"]  # the cancelled handler finishes
        w.hold.set()
        await w.run_tasks()
        assert len(w.calls) == 4
        w.hold = asyncio.Event()
        for key in "de":
            w.queue.add(key)
        await w.run_tasks()
        assert w.running == 1


@pytest.mark.parametrize("fault", [BayplanError("not now"), RuntimeError("broken")], ids=["told", "a bug"])
def test_log_lines_name_keys_with_a_slash(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    @async_test
    async def run() -> None:
        async def fail(_: tuple[str, str]) -> None:
            raise fault

        queue = WorkQueue[tuple[str, str]]("bind request", fail, clock=ManualClock(), chance=random.Random(0))
        run_work = asyncio.ensure_future(queue.run())
        queue.add(("default", "web"))
        queue.add(("", "node-1"))
        await wait_until(lambda: len(caplog.records) == 2)
        run_work.cancel()
        await asyncio.wait([run_work])

    run()
    assert [each.getMessage().split(":")[0] for each in caplog.records] == [
        "bind request default/web",
        "bind request node-1",
    ]


@async_test
async def test_drain_waits_for_running_handlers_and_starts_none() -> None:
    async with run_work() as w:
        w.hold = asyncio.Event()
        w.queue.add("under way")
        await w.run_tasks()
        draining = asyncio.ensure_future(w.queue.drain())
        await w.run_tasks()
        assert w.queue.is_busy
        w.queue.add("later")
        w.hold.set()
        await draining
        await w.run_tasks()
        assert not w.queue.is_busy
        assert w.calls == [(0, "under way")]
