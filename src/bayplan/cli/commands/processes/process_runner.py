"""Runs a scheduler process under a command: handles its signals and returns its exit code.

SIGTERM and SIGINT stop the process. SIGUSR2 logs its state, SIGUSR1 writes it to a file. Before the informers have
synced there is no state to write; the log says so, and the process continues.
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
    process: AbstractAsyncContextManager[SchedulerProcess], dump_file: Callable[[SchedulerProcess], None] | None = None
) -> int:
    """Run the process; returns its exit code, also if it is stopped while it starts. `dump_file`: handles SIGUSR1."""
    main_task = asyncio.current_task()
    assert main_task is not None
    _add_stop_handlers(main_task.cancel)
    dumps = _StateDumper(dump_file)
    has_started = False
    with _dump_signal_handlers(dumps):
        try:
            async with process as running:
                has_started = True
                _add_stop_handlers(running.stop)
                dumps.process = running
                return await running.run()
        except asyncio.CancelledError:
            if has_started:
                raise
            return STOPPED_EXIT_CODE


@dataclass(slots=True)
class _StateDumper:
    """Writes the state of a process on a signal."""

    to_file: Callable[[SchedulerProcess], None] | None
    process: SchedulerProcess | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def start(self, number: int) -> None:
        if self.process is None or not self.process.informers.synced:
            log.info("%s: no state is written, because the start is not complete yet", signal.Signals(number).name)
        elif number == signal.SIGUSR2:
            task = asyncio.get_running_loop().create_task(self.process.dump())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif self.to_file is not None:
            self.to_file(self.process)


@contextmanager
def _dump_signal_handlers(dumps: _StateDumper) -> Iterator[None]:
    """Install signal handlers for the block, and restore the previous ones. Handlers of the loop would restore the
    default action, which kills the process, when the loop is closed."""
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
