"""Queue of the watch events of a live engine, which handles them in slices on its event loop.

Informers add the events, and the engine's task handles them in their order. Handling one event may take long, so it is
an iterator that pauses where the slice may end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bayplan.clock import Clock


@dataclass(slots=True)
class EventQueue:
    """The events that an engine has to handle. `wake` is set when one arrives."""

    clock: Clock
    slice_s: float
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: deque[Callable[[], Iterator[object]]] = field(default_factory=deque)
    """What starts to handle each event."""
    _current: Iterator[object] | None = None

    def add(self, work: Callable[[], Iterator[object]]) -> None:
        self.waiting.append(work)
        self.wake.set()

    @property
    def is_empty(self) -> bool:
        return self._current is None and not self.waiting

    def handle_until(self, ends_s: float) -> bool:
        """Handle queued events. False if the slice ended before all were handled."""
        while not self.is_empty:
            if self._current is None:
                self._current = self.waiting.popleft()()
            for _ in self._current:
                if self.clock.monotonic_s() > ends_s:
                    return False
            self._current = None
            if self.clock.monotonic_s() > ends_s:  # not every event pauses
                return not self.waiting
        return True

    async def handle_pending(self) -> None:
        while not self.handle_until(self.clock.monotonic_s() + self.slice_s):
            await asyncio.sleep(0)

    async def handle_forever(self) -> None:
        while True:
            self.wake.clear()
            await self.handle_pending()
            await self.wake.wait()
