"""The queue of every controller: one worker a key, moments, retries; on a manual clock."""

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
    """A handler that notes when it was called, and does as it is told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.calls: list[tuple[float, str]] = []
        self.answers: list[float | BaseException | None] = []
        self.hold: asyncio.Event | None = None
        self.at_once = 0
        self.most_at_once = 0
        self.queue: WorkQueue[str] = WorkQueue(
            "thing", self.handle, clock=self.clock, chance=random.Random(0), workers=3
        )

    async def handle(self, key: str) -> float | None:
        self.calls.append((round(self.clock.monotonic_s(), 3), key))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.hold is not None:
                await self.hold.wait()
            answer = self.answers.pop(0) if self.answers else None
            if isinstance(answer, BaseException):
                raise answer
            return answer
        finally:
            self.at_once -= 1

    async def turns(self) -> None:
        """Let everything happen that happens without the clock."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        await self.turns()
        self.clock.advance(seconds)
        await self.turns()


@asynccontextmanager
async def working() -> AsyncIterator[Work]:
    work = Work()
    running = asyncio.ensure_future(work.queue.run())
    try:
        yield work
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@async_test
async def test_keys_are_worked_on_once_however_often_they_are_added() -> None:
    async with working() as w:
        for key in ("a", "b", "a", "a"):
            w.queue.add(key)
        await w.turns()
        assert w.calls == [(0, "a"), (0, "b")]


@async_test
async def test_a_key_is_in_one_workers_hands_and_goes_on_when_it_was_added_meanwhile() -> None:
    async with working() as w:
        w.hold = asyncio.Event()
        w.queue.add("a")
        await w.turns()
        w.queue.add("a")
        w.queue.add("a")
        await w.turns()
        assert len(w.calls) == 1
        w.hold.set()
        await w.turns()
        assert len(w.calls) == 2
        assert w.most_at_once == 1


@async_test
async def test_no_more_are_worked_on_at_once_than_there_are_workers() -> None:
    async with working() as w:
        w.hold = asyncio.Event()
        for number in range(10):
            w.queue.add(str(number))
        await w.turns()
        assert w.at_once == 3
        w.hold.set()
        await w.turns()
        assert len(w.calls) == 10
        assert w.most_at_once == 3


@async_test
async def test_moments_are_kept_and_the_earlier_of_two_counts() -> None:
    async with working() as w:
        w.queue.add("a", after_s=5)
        w.queue.add("a", after_s=2)
        w.queue.add("a", after_s=9)
        w.queue.add("b", after_s=1)
        for _ in range(20):
            await w.advance(0.5)
        assert w.calls == [(1, "b"), (2, "a")]


@async_test
async def test_what_is_due_in_one_slot_is_done_in_one_go() -> None:
    async with working() as w:
        for number in range(1, 90):
            w.queue.add(str(number), after_s=1 + number / 1000)
        await w.advance(1.05)
        assert w.calls == []
        await w.advance(0.05)
        await wait_until(lambda: len(w.calls) == 89)


@async_test
async def test_work_that_waited_for_something_cancelled_is_tried_again_and_costs_no_worker() -> None:
    async with working() as w:
        w.answers = [asyncio.CancelledError() for _ in range(5)]  # more than there are workers
        for number in range(5):
            w.queue.add(str(number))
        for _ in range(10):
            await w.advance(0.5)
        assert sorted(key for _, key in w.calls) == sorted("0123401234")


@async_test
async def test_a_handler_says_when_it_wants_to_be_called_again() -> None:
    async with working() as w:
        w.answers = [10.0, 10.0, None]
        w.queue.add("a")
        for _ in range(50):
            await w.advance(1)
        assert w.calls == [(0, "a"), (10, "a"), (20, "a")]


@pytest.mark.parametrize("fault", [BayplanError("no"), ValueError("bug")], ids=["a refusal", "a bug"])
@async_test
async def test_what_fails_is_tried_again_ever_later_and_the_others_go_on(fault: Exception) -> None:
    async with working() as w:
        w.answers = [fault] * 12
        w.queue.add("a")
        for _ in range(800):
            await w.advance(0.5)
        moments = [at for at, _ in w.calls]
        gaps = [later - before for before, later in pairwise(moments)]
        assert len(moments) == 13
        assert 0.5 <= gaps[0] <= 1.5
        assert 2 <= gaps[2] <= 4.5
        assert all(30 <= gap <= 60.5 for gap in gaps[6:])
        w.queue.add("b")
        await w.turns()
        assert w.calls[-1][1] == "b"


@async_test
async def test_success_makes_the_next_failure_a_first_one() -> None:
    async with working() as w:
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
async def test_what_is_forgotten_is_not_worked_on() -> None:
    async with working() as w:
        w.queue.add("a", after_s=1)
        w.queue.add("b")
        w.queue.forget("a")
        w.queue.forget("b")
        await w.advance(2)
        assert w.calls == []
        w.queue.add("b")
        await w.turns()
        assert w.calls == [(2, "b")]


@async_test
async def test_added_now_it_does_not_wait_for_its_moment() -> None:
    async with working() as w:
        w.queue.add("a", after_s=5)
        w.queue.add("a")
        await w.turns()
        await wait_until(lambda: w.calls == [(0, "a")])
        await w.advance(6)
        assert w.calls == [(0, "a")]


# waiting aside


class Aside(Work):
    """Its handler waits aside until the key is told to come back; then it works, and waits at its place if told to."""

    def __init__(self, *, workers: int = 2, most_aside: int = 3) -> None:
        super().__init__()
        self.back: dict[str, asyncio.Event] = {}
        self.waiting: list[str] = []
        self.limit = asyncio.timeout(None)
        self.queue = WorkQueue(
            "thing", self.stand_aside, clock=self.clock, chance=random.Random(0), workers=workers, most_aside=most_aside
        )

    async def stand_aside(self, key: str) -> float | None:
        if key.startswith("slow"):
            self.waiting.append(key)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None) as self.limit, self.queue.released_worker():
                    await self.back.setdefault(key, asyncio.Event()).wait()
            self.waiting.remove(key)
        return await self.handle(key)


@asynccontextmanager
async def waiting_aside(keys: int, **how: int) -> AsyncIterator[Aside]:
    """So many keys that only wait."""
    work = Aside(**how)
    running = asyncio.ensure_future(work.queue.run())
    try:
        for number in range(keys):
            work.queue.add(f"slow-{number}")
        await work.turns()
        yield work
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@async_test
async def test_who_waits_aside_takes_no_place_from_others() -> None:
    async with waiting_aside(3) as w:
        assert len(w.waiting) == 3  # of two workers
        for key in "abcd":
            w.queue.add(key)
        await w.turns()
        assert [key for _, key in w.calls] == list("abcd")


@async_test
async def test_who_comes_back_takes_a_place_before_it_goes_on() -> None:
    async with waiting_aside(3) as w:
        w.hold = asyncio.Event()
        for key in "ab":
            w.queue.add(key)
        await w.turns()
        for each in w.back.values():
            each.set()
        await w.turns()
        assert [key for _, key in w.calls] == ["a", "b"]
        w.hold.set()
        await w.turns()
        assert sorted(key for _, key in w.calls) == ["a", "b", "slow-0", "slow-1", "slow-2"]
        assert w.most_at_once == 2


@async_test
async def test_a_key_that_waits_aside_is_still_in_nobody_elses_hands() -> None:
    async with waiting_aside(1) as w:
        w.queue.add("slow-0")
        await w.turns()
        assert w.waiting == ["slow-0"]
        w.back["slow-0"].set()
        await w.turns()
        assert [key for _, key in w.calls] == ["slow-0", "slow-0"]


@async_test
async def test_nothing_new_is_begun_while_as_many_as_may_wait_and_the_workers_besides_wait() -> None:
    async with waiting_aside(8) as w:
        assert w.waiting == [f"slow-{number}" for number in range(5)]
        w.queue.add("a")
        await w.turns()
        assert w.calls == []
        for key in w.waiting:
            w.back[key].set()
        await w.turns()
        assert w.waiting == ["slow-5", "slow-6", "slow-7"]
        assert w.calls[-1][1] == "a"


@async_test
async def test_who_is_stopped_on_its_way_back_has_no_place_to_give_back() -> None:
    async with waiting_aside(1, workers=1) as w:
        w.hold = asyncio.Event()
        w.queue.add("a")
        await w.turns()
        w.back["slow-0"].set()
        await w.turns()
        w.limit.reschedule(0)
        for key in "bc":
            w.queue.add(key)
        await w.turns()
        assert [key for _, key in w.calls] == ["a", "slow-0"]  # it ends as it may
        w.hold.set()
        await w.turns()
        assert len(w.calls) == 4
        w.hold = asyncio.Event()
        for key in "de":
            w.queue.add(key)
        await w.turns()
        assert w.at_once == 1


@pytest.mark.parametrize("fault", [BayplanError("not now"), RuntimeError("broken")], ids=["told", "a bug"])
def test_keys_are_told_as_people_write_them(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    @async_test
    async def run() -> None:
        async def fail(_: tuple[str, str]) -> None:
            raise fault

        queue = WorkQueue[tuple[str, str]]("bind request", fail, clock=ManualClock(), chance=random.Random(0))
        working = asyncio.ensure_future(queue.run())
        queue.add(("default", "web"))
        queue.add(("", "node-1"))
        await wait_until(lambda: len(caplog.records) == 2)
        working.cancel()
        await asyncio.wait([working])

    run()
    assert [each.getMessage().split(":")[0] for each in caplog.records] == [
        "bind request default/web",
        "bind request node-1",
    ]


@async_test
async def test_draining_waits_for_what_is_under_way_and_begins_nothing() -> None:
    async with working() as w:
        w.hold = asyncio.Event()
        w.queue.add("under way")
        await w.turns()
        draining = asyncio.ensure_future(w.queue.drain())
        await w.turns()
        assert w.queue.is_busy
        w.queue.add("later")
        w.hold.set()
        await draining
        await w.turns()
        assert not w.queue.is_busy
        assert w.calls == [(0, "under way")]
