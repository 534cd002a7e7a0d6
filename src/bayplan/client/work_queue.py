"""Work queue of keys, as client-go's rate-limited work queue. One worker at a time processes a key.

Every controller and the binder use it: a watch adds keys, and workers call the handler. The handler's result says when
to call it again. A failed key is retried with a doubling delay; no exception of a handler stops the queue. The number
of workers is limited. A handler that only waits releases its worker slot with `released_worker`, and the queue uses the
slot for another key. Due times are rounded up to `TIMER_RESOLUTION_S`, so that many timers wake the loop ten times a
second at most.
"""

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
"""Processes a key. Returns the seconds until the next call, or None to wait until the key is added."""

TIMER_RESOLUTION_S = 0.1
FIRST_RETRY_S = 0.5
MAX_RETRY_S = 30.0


class WorkQueue(Generic[K]):
    """Queue of keys and their workers. The caller runs `run` as a task."""

    def __init__(
        self,
        name: str,
        handler: Handler[K],
        *,
        clock: LoopClock,
        chance: random.Random,
        workers: int = 16,
        max_released: int = 0,
        first_retry_s: float = FIRST_RETRY_S,
        last_retry_s: float = MAX_RETRY_S,
    ) -> None:
        """`max_released`: how many handlers may wait in `released_worker`; above it no new handler starts."""
        self._name = name
        self._first_retry_s = first_retry_s
        self._last_retry_s = last_retry_s
        self._handler = handler
        self._clock = clock
        self._chance = chance
        self._slots = asyncio.Semaphore(workers)
        self._started = asyncio.Semaphore(workers + max_released)
        self._with_slot: set[asyncio.Task[None]] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()
        self._busy: set[K] = set()
        self._work = asyncio.Semaphore(0)
        self._due: dict[K, float] = {}
        self._timers: list[tuple[float, int, K]] = []
        self._order = itertools.count()
        self._earlier_timer = asyncio.Event()
        self._failures: dict[K, int] = {}
        self._faults = ErrorLogThrottle(log, clock)

    def add(self, key: K, *, after_s: float = 0.0) -> None:
        """Add a key. The earlier of two due times is used."""
        if after_s <= 0:
            self._due.pop(key, None)
            self._enqueue(key)
            return
        due = math.ceil((self._clock.monotonic_s() + after_s) / TIMER_RESOLUTION_S) * TIMER_RESOLUTION_S
        if key in self._waiting or self._due.get(key, math.inf) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._timers, (due, next(self._order), key))
        if self._timers[0][0] == due:
            self._earlier_timer.set()

    def forget(self, key: K) -> None:
        """Remove a key; a running handler finishes."""
        self._due.pop(key, None)
        self._failures.pop(key, None)
        self._waiting.discard(key)

    async def run(self) -> None:
        """Process keys until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_timers(), name=f"{self._name} alarms")
            while True:
                await self._work.acquire()
                await self._started.acquire()
                await self._slots.acquire()
                if self._is_draining:
                    await asyncio.Event().wait()
                key = self._ready.popleft()
                if key not in self._waiting or key in self._busy:
                    self._slots.release()
                    self._started.release()
                    continue  # removed, or its running worker enqueues it again
                self._waiting.discard(key)
                self._busy.add(key)
                worker = group.create_task(self._work_on(key), name=self._name)
                self._with_slot.add(worker)
                self._workers.add(worker)
                worker.add_done_callback(self._workers.discard)

    @property
    def is_busy(self) -> bool:
        return bool(self._workers)

    async def drain(self) -> None:
        """Start no handler any more, and wait for the running ones."""
        self._is_draining = True
        while self._workers:
            await asyncio.wait(self._workers)

    @asynccontextmanager
    async def released_worker(self) -> AsyncIterator[None]:
        """Release the worker slot for a block in which the handler only waits. The end of the block waits for a slot.

        A task without a slot, such as one that a handler has started, releases none. A release is never refused, so no
        handler keeps a slot while it waits for a handler that needs one."""
        task = asyncio.current_task()
        if task is None or task not in self._with_slot:
            yield
            return
        self._with_slot.discard(task)
        self._slots.release()
        try:
            yield
        finally:
            await self._slots.acquire()  # a task that is cancelled here has no slot to release
            self._with_slot.add(task)

    def _enqueue(self, key: K) -> None:
        if key in self._waiting:
            return
        self._waiting.add(key)
        self._ready.append(key)
        self._work.release()

    async def _work_on(self, key: K) -> None:
        try:
            delay_s = await self._attempt(key)
        finally:
            self._busy.discard(key)
            self._release_worker()
        if delay_s is not None:
            self.add(key, after_s=max(delay_s, TIMER_RESOLUTION_S))
        if key in self._waiting:
            self._ready.append(key)
            self._work.release()

    def _release_worker(self) -> None:
        self._started.release()
        task = asyncio.current_task()
        if task in self._with_slot:
            self._with_slot.discard(task)
            self._slots.release()

    async def _attempt(self, key: K) -> float | None:
        try:
            delay_s = await self._handler(key)
        except Conflict as fault:
            log.debug("%s %s: %s; retrying", self._name, _key_text(key), fault)  # conflicts are frequent
        except BayplanError as fault:
            self._faults.log_api_error(key, f"{self._name} {_key_text(key)}", fault)
        except asyncio.CancelledError:
            if is_cancelled_task():
                raise
            log.exception("%s %s: a task that its handler awaited was cancelled", self._name, _key_text(key))
        except Exception:
            log.exception("%s %s: its handler failed", self._name, _key_text(key))
        else:
            if self._failures.pop(key, None):
                self._faults.clear(key)
            self._faults.clear(SERVER_TOPIC)
            return delay_s
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        retry_s: float = min(self._first_retry_s * 2 ** min(failures - 1, 16), self._last_retry_s)
        return retry_s * (1.0 + self._chance.random())

    async def _run_timers(self) -> None:
        while True:
            self._earlier_timer.clear()
            now = self._clock.monotonic_s()
            while self._timers and self._timers[0][0] <= now:
                due, _, key = heapq.heappop(self._timers)
                if self._due.get(key) == due:
                    del self._due[key]
                    self._enqueue(key)
            await self._wait(self._timers[0][0] - now if self._timers else None)

    async def _wait(self, seconds: float | None) -> None:
        """Wait that many seconds, or until an earlier timer is set."""
        if seconds is None:
            await self._earlier_timer.wait()
            return
        both = asyncio.ensure_future(self._clock.sleep(seconds)), asyncio.ensure_future(self._earlier_timer.wait())
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()


def _key_text(key: Hashable) -> str:
    """Key as text: namespace and name with a slash."""
    return "/".join(str(part) for part in key if part) if isinstance(key, tuple) else str(key)


def is_cancelled_task() -> bool:
    """Whether the current task was cancelled, and not a task that it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
