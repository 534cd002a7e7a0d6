"""What did the API server say a moment ago? Its answers, for a while; each question is under way once at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from bayplan.clock import LoopClock

T = TypeVar("T")

MAX_ENTRIES = 4096
"""Answers that are kept; the oldest goes first."""


class TtlCache(Generic[T]):
    """Answers by key. `lasts_s` says for how long one holds; failures are never kept."""

    def __init__(self, clock: LoopClock, lasts_s: Callable[[T], float], *, limit: int = MAX_ENTRIES) -> None:
        self._clock = clock
        self._lasts_s = lasts_s
        self._limit = limit
        self._known: dict[Hashable, tuple[float, T]] = {}
        self._pending: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer that is known, or a new one. Who goes away while it is asked takes it from nobody else."""
        known = self._known.get(key)
        if known is not None and known[0] > self._clock.monotonic_s():
            return known[1]
        task = self._pending.get(key)
        if task is None:
            task = self._pending[key] = asyncio.create_task(self._fetch(key, ask), name="review")
            task.add_done_callback(lambda done: self._on_fetched(key, done))
        return await asyncio.shield(task)

    async def _fetch(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        answer = await ask()
        self._known.pop(key, None)
        self._known[key] = self._clock.monotonic_s() + self._lasts_s(answer), answer
        if len(self._known) > self._limit:
            del self._known[next(iter(self._known))]
        return answer

    def _on_fetched(self, key: Hashable, task: asyncio.Task[T]) -> None:
        del self._pending[key]
        if not task.cancelled():
            task.exception()  # whoever still waits is told; nobody else needs to know
