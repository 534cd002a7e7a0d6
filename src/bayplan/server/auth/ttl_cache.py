"""Cache of responses of the API server with a time to live. Concurrent lookups of a key share one request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from bayplan.clock import LoopClock

T = TypeVar("T")

MAX_ENTRIES = 4096
"""Maximum number of cached responses; the oldest is removed first."""


class TtlCache(Generic[T]):
    """Responses by key. `lasts_s` returns the time to live of a response; failures are not cached."""

    def __init__(self, clock: LoopClock, lasts_s: Callable[[T], float], *, limit: int = MAX_ENTRIES) -> None:
        self._clock = clock
        self._lasts_s = lasts_s
        self._limit = limit
        self._cached: dict[Hashable, tuple[float, T]] = {}
        self._pending: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, key: Hashable, fetch: Callable[[], Awaitable[T]]) -> T:
        """The cached or a new response. A cancelled caller does not cancel the request for other callers."""
        cached = self._cached.get(key)
        if cached is not None and cached[0] > self._clock.monotonic_s():
            return cached[1]
        task = self._pending.get(key)
        if task is None:
            task = self._pending[key] = asyncio.create_task(self._fetch(key, fetch), name="review")
            task.add_done_callback(lambda done: self._on_fetched(key, done))
        return await asyncio.shield(task)

    async def _fetch(self, key: Hashable, fetch: Callable[[], Awaitable[T]]) -> T:
        response = await fetch()
        self._cached.pop(key, None)
        self._cached[key] = self._clock.monotonic_s() + self._lasts_s(response), response
        if len(self._cached) > self._limit:
            del self._cached[next(iter(self._cached))]
        return response

    def _on_fetched(self, key: Hashable, task: asyncio.Task[T]) -> None:
        del self._pending[key]
        if not task.cancelled():
            task.exception()  # raised to callers that still wait; else ignored
