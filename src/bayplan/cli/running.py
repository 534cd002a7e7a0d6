"""How a scheduler process lives under a command: signals stop it, dump what it knows, and its end is an exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from bayplan.scheduler.process import STOPPED, SchedulerProcess


async def run_process(
    process: AbstractAsyncContextManager[SchedulerProcess],
    dump_file: Callable[[SchedulerProcess], None] | None = None,
) -> int:
    """An exit code. Who is told to stop before it has begun ends as if it had. `dump_file`: what SIGUSR1 does."""
    starting = asyncio.current_task()
    assert starting is not None
    _on_signals(starting.cancel)
    begun = False
    try:
        async with process as running:
            begun = True
            _on_signals(running.stop)
            loop, dumps = asyncio.get_running_loop(), set[asyncio.Task[None]]()
            loop.add_signal_handler(signal.SIGUSR2, lambda: dumps.add(loop.create_task(running.dump())))
            if dump_file is not None:
                loop.add_signal_handler(signal.SIGUSR1, lambda: dump_file(running))
            return await running.run()
    except asyncio.CancelledError:
        if begun:
            raise
        return STOPPED


def _on_signals(stop: Callable[[], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
