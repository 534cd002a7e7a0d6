"""Who is next? Keys that want work, soon or at a moment; each is in one worker's hands at a time.

The engine of every controller and of the binder: a watch adds keys, workers call the handler, and what the handler
returns says when it wants to be called again. What fails is tried again with doubling delays; nothing that a handler
raises stops the queue. Workers are places: a handler that only waits for others steps `released_worker`, and another
key has its place meanwhile. Moments are rounded up to slots, so that a thousand timers wake the loop ten times a second
and not a hundred."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from bayplan.client.error_log_throttle import SERVER_TOPIC, ErrorLogThrottle
from bayplan.clock import LoopClock
from bayplan.errors import BayplanError, Conflict

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

Handler = Callable[[K], Awaitable[float | None]]
"""Works on a key; returns after how many seconds it is to be called again, or None: when the key is added."""

TIMER_RESOLUTION_S = 0.1
FIRST_RETRY_S = 0.5
MAX_RETRY_S = 30.0


class WorkQueue(Generic[K]):
    """Work by key. `run` it as a task."""

    def __init__(
        self,
        name: str,
        handler: Handler[K],
        *,
        clock: LoopClock,
        chance: random.Random,
        workers: int = 16,
        most_aside: int = 0,
        first_retry_s: float = FIRST_RETRY_S,
        last_retry_s: float = MAX_RETRY_S,
    ) -> None:
        """`most_aside`: how many may wait aside while so many workers are busy; beyond that nothing new is begun."""
        self._name = name
        self._first_retry_s = first_retry_s
        self._last_retry_s = last_retry_s
        self._handler = handler
        self._clock = clock
        self._chance = chance
        self._places = asyncio.Semaphore(workers)
        self._begun = asyncio.Semaphore(workers + most_aside)
        self._placed: set[asyncio.Task[None]] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()
        self._busy: set[K] = set()
        self._work = asyncio.Semaphore(0)
        self._due: dict[K, float] = {}
        self._alarms: list[tuple[float, int, K]] = []
        self._order = itertools.count()
        self._sooner = asyncio.Event()
        self._failures: dict[K, int] = {}
        self._faults = ErrorLogThrottle(log, clock)

    def add(self, key: K, *, after_s: float = 0.0) -> None:
        """The key wants work. The earlier of two moments counts."""
        if after_s <= 0:
            self._due.pop(key, None)
            self._enqueue(key)
            return
        due = math.ceil((self._clock.monotonic_s() + after_s) / TIMER_RESOLUTION_S) * TIMER_RESOLUTION_S
        if key in self._waiting or self._due.get(key, math.inf) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._alarms, (due, next(self._order), key))
        if self._alarms[0][0] == due:
            self._sooner.set()

    def forget(self, key: K) -> None:
        """The key wants nothing any more; work under way ends as it may."""
        self._due.pop(key, None)
        self._failures.pop(key, None)
        self._waiting.discard(key)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_timers(), name=f"{self._name} alarms")
            while True:
                await self._work.acquire()
                await self._begun.acquire()
                await self._places.acquire()
                if self._is_draining:
                    await asyncio.Event().wait()
                key = self._ready.popleft()
                if key not in self._waiting or key in self._busy:
                    self._places.release()
                    self._begun.release()
                    continue  # forgotten since, or whoever has it goes on with it when it is done
                self._waiting.discard(key)
                self._busy.add(key)
                worker = group.create_task(self._work_on(key), name=self._name)
                self._placed.add(worker)
                self._workers.add(worker)
                worker.add_done_callback(self._workers.discard)

    @property
    def is_busy(self) -> bool:
        """Whether a handler is under way."""
        return bool(self._workers)

    async def drain(self) -> None:
        """Call no handler any more, and wait for those that are under way."""
        self._is_draining = True
        while self._workers:
            await asyncio.wait(self._workers)

    @asynccontextmanager
    async def released_worker(self) -> AsyncIterator[None]:
        """A handler only waits in this block: its place is another's meanwhile, and is taken again at the end.

        Whoever has no place, such as a task that a handler has started, gives none away. Stepping aside is never
        refused, so that nobody keeps a place while it waits for somebody who waits for one."""
        task = asyncio.current_task()
        if task is None or task not in self._placed:
            yield
            return
        self._placed.discard(task)
        self._places.release()
        try:
            yield
        finally:
            await self._places.acquire()  # cancelled here, too, it has none to give back
            self._placed.add(task)

    def _enqueue(self, key: K) -> None:
        if key in self._waiting:
            return
        self._waiting.add(key)
        self._ready.append(key)
        self._work.release()

    async def _work_on(self, key: K) -> None:
        try:
            again_s = await self._attempt(key)
        finally:
            self._busy.discard(key)
            self._release_worker()
        if again_s is not None:
            self.add(key, after_s=max(again_s, TIMER_RESOLUTION_S))
        if key in self._waiting:
            self._ready.append(key)
            self._work.release()

    def _release_worker(self) -> None:
        self._begun.release()
        task = asyncio.current_task()
        if task in self._placed:
            self._placed.discard(task)
            self._places.release()

    async def _attempt(self, key: K) -> float | None:
        try:
            again_s = await self._handler(key)
        except Conflict as fault:
            log.debug("%s %s: %s; looking at it again", self._name, _key_text(key), fault)  # it is daily bread
        except BayplanError as fault:
            self._faults.log_api_error(key, f"{self._name} {_key_text(key)}", fault)
        except asyncio.CancelledError:
            if is_cancelled_task():
                raise
            log.exception("%s %s: what the work on it waited for was cancelled", self._name, _key_text(key))
        except Exception:
            log.exception("%s %s: the work on it failed", self._name, _key_text(key))
        else:
            if self._failures.pop(key, None):
                self._faults.clear(key)
            self._faults.clear(SERVER_TOPIC)
            return again_s
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay_s: float = min(self._first_retry_s * 2 ** min(failures - 1, 16), self._last_retry_s)
        return delay_s * (1.0 + self._chance.random())

    async def _run_timers(self) -> None:
        while True:
            self._sooner.clear()
            now = self._clock.monotonic_s()
            while self._alarms and self._alarms[0][0] <= now:
                due, _, key = heapq.heappop(self._alarms)
                if self._due.get(key) == due:
                    del self._due[key]
                    self._enqueue(key)
            await self._wait(self._alarms[0][0] - now if self._alarms else None)

    async def _wait(self, seconds: float | None) -> None:
        """Until that many seconds have passed, or an earlier alarm was set."""
        if seconds is None:
            await self._sooner.wait()
            return
        both = asyncio.ensure_future(self._clock.sleep(seconds)), asyncio.ensure_future(self._sooner.wait())
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()


def _key_text(key: Hashable) -> str:
    """As people write keys: namespace and name with a slash."""
    return "/".join(str(part) for part in key if part) if isinstance(key, tuple) else str(key)


def is_cancelled_task() -> bool:
    """Whether it is this very task that was cancelled, and not something that it has waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
