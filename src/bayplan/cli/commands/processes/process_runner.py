"""Runs a scheduler process under a command: handles its signals and returns its exit code.

SIGTERM and SIGINT stop the process. SIGUSR2 writes what it knows into the log, SIGUSR1 into a file. Before the watches
have delivered everything there is nothing to write; the log says so, and the process goes on.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from types import FrameType

from bayplan.app.process_lifecycle import STOPPED_EXIT_CODE, SchedulerProcess

log = logging.getLogger(__name__)


async def run_process(
    process: AbstractAsyncContextManager[SchedulerProcess],
    dump_file: Callable[[SchedulerProcess], None] | None = None,
) -> int:
    """An exit code; a process that is stopped before it has begun ends as one that had. `dump_file`: for SIGUSR1."""
    starting = asyncio.current_task()
    assert starting is not None
    _add_stop_handlers(starting.cancel)
    dumps = _StateDumper(dump_file)
    begun = False
    with _dump_signal_handlers(dumps):
        try:
            async with process as running:
                begun = True
                _add_stop_handlers(running.stop)
                dumps.process = running
                return await running.run()
        except asyncio.CancelledError:
            if begun:
                raise
            return STOPPED_EXIT_CODE


@dataclass(slots=True)
class _StateDumper:
    """Writes what a process knows, when a signal asks for it."""

    to_file: Callable[[SchedulerProcess], None] | None
    process: SchedulerProcess | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def start(self, number: int) -> None:
        if self.process is None or not self.process.informers.synced:
            log.info("%s: nothing is written, because the start is not complete yet", signal.Signals(number).name)
        elif number == signal.SIGUSR2:
            task = asyncio.get_running_loop().create_task(self.process.dump())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif self.to_file is not None:
            self.to_file(self.process)


@contextmanager
def _dump_signal_handlers(dumps: _StateDumper) -> Iterator[None]:
    """Handlers as long as the block lasts. Those of the loop would leave the default action, which kills, behind them
    when the loop is closed; these leave the ones that were there before."""
    loop = asyncio.get_running_loop()

    def handle(number: int, _: FrameType | None) -> None:
        loop.call_soon_threadsafe(dumps.start, number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _add_stop_handlers(stop: Callable[[], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
