"""Event loop on virtual time for tests: timers fire as soon as no callback is ready.

    with virtual_runner() as runner:
        runner.run(main())

`loop.time()` starts at 0 and jumps to the next timer when the loop would otherwise wait. `LoopTimeClock` reads the same
time. Only work inside the process is possible: a peer behind a socket does not see the time jump.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec

P = ParamSpec("P")
START = datetime(2026, 1, 1, tzinfo=UTC)


class _JumpingSelector(selectors.DefaultSelector):
    """Polls the files; instead of waiting for a timeout it advances the time by that much."""

    elapsed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("the loop waits for nothing: no timer, no callback, no file is ready")
        if not found and timeout is not None:
            self.elapsed_s += timeout
        return found


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.elapsed_s


class LoopTimeClock:
    """A `LoopClock` that returns the time of the running loop."""

    def now(self) -> datetime:
        return START + timedelta(seconds=self.monotonic_s())

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def uptime_s(self) -> float:
        return self.monotonic_s()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def virtual_time_test(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
