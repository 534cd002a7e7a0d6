"""The client's semaphore against asyncio's: the same tasks continue after any acquire, release or cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hypothesis import given
from hypothesis import strategies as st

from bayplan.scheduler.binding.semaphore import FifoSemaphore

Step = tuple[str, int]


class Crowd:
    """Tasks that acquire, hold until they are released, and may be cancelled at any time."""

    def __init__(self, take: Callable[[], Awaitable[object]], give: Callable[[], None]) -> None:
        self._take, self._give = take, give
        self._tasks: list[asyncio.Task[None]] = []
        self._leave: list[asyncio.Event] = []
        self.told: list[str] = []

    async def _visit(self, number: int, leave: asyncio.Event) -> None:
        await self._take()
        self.told.append(f"in {number}")
        try:
            await leave.wait()
        finally:
            self._give()
            self.told.append(f"out {number}")

    async def do(self, what: str, number: int) -> None:
        if what == "come":
            self._leave.append(asyncio.Event())
            self._tasks.append(asyncio.ensure_future(self._visit(len(self._tasks), self._leave[-1])))
        elif self._tasks and what == "leave":
            self._leave[number % len(self._tasks)].set()
        elif self._tasks:
            self._tasks[number % len(self._tasks)].cancel()

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


steps = st.tuples(st.sampled_from(["come", "come", "leave", "cancel"]), st.integers(0, 7))


@given(st.integers(1, 3), st.lists(st.lists(steps, min_size=1, max_size=3), max_size=20))
def test_the_same_tasks_continue_as_with_asyncio(at_once: int, history: list[list[Step]]) -> None:
    """Several steps may happen in one turn of the loop; then the loop runs until it is idle."""

    async def run() -> None:
        turns, plain = FifoSemaphore(at_once), asyncio.Semaphore(at_once)
        ours, theirs = Crowd(turns.acquire, turns.release), Crowd(plain.acquire, plain.release)
        for together in history:
            for step in together:
                await ours.do(*step)
                await theirs.do(*step)
            for _ in range(20):
                await asyncio.sleep(0)
            # Within one turn of the loop the order of releases and acquisitions may differ.
            assert sorted(ours.told) == sorted(theirs.told)
            inside = sum(1 if each.startswith("in") else -1 for each in ours.told)
            assert 0 <= inside <= at_once
        await ours.end()
        await theirs.end()
        for _ in range(at_once):  # every slot was released
            await asyncio.wait_for(turns.acquire(), 1)

    asyncio.run(run())
