"""Runs asynchronous tests on an event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

from support.harness.deadlines import TEST_TIMEOUT_S

P = ParamSpec("P")


def async_test(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def limited() -> None:
            async with asyncio.timeout(TEST_TIMEOUT_S):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return run


@asynccontextmanager
async def count_loop_turns(pause_s: float = 0.0) -> AsyncIterator[Callable[[], int]]:
    """Count the turns of another task on the loop."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(pause_s)

    beside = asyncio.ensure_future(others())
    try:
        yield lambda: turns
    finally:
        beside.cancel()


async def wait_until(condition: Callable[[], object], *, tick: Callable[[], None] | None = None) -> None:
    """Run the loop until a condition holds; `tick` may advance a manual clock between two turns."""
    while not condition():
        await asyncio.sleep(0.001)
        if tick is not None:
            tick()
