"""Signal handling of commands: SIGINT and SIGTERM end a command in order, once, and without a traceback.

They cancel the command's own task; resources are closed on the way out. Further signals have no effect meanwhile:
closing takes a second at most. The handler never raises, so it cannot interrupt an import or a callback.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar
from weakref import WeakSet

import click

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_finishing_tasks: WeakSet[asyncio.Task[Any]] = WeakSet()


def ignore_further_signals() -> None:
    """Mark the current task as finished except for closing its resources: a signal no longer cancels it."""
    task = asyncio.current_task()
    assert task is not None, "call this in a task"
    _finishing_tasks.add(task)


def run_until_stopped(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` and return its result. Raises `click.Abort` if a signal stopped it."""
    stopped = False
    before = {}
    try:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            task = loop.create_task(work)

            def cancel() -> None:
                nonlocal stopped
                if not stopped and task not in _finishing_tasks:
                    stopped = True
                    task.cancel()

            def stop(_: int, __: FrameType | None) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(cancel)

            if threading.current_thread() is threading.main_thread():  # only the main thread gets signals
                before = {number: signal.signal(number, stop) for number in SIGNALS}
            return loop.run_until_complete(task)
    except asyncio.CancelledError:
        if not stopped:
            raise
        raise click.Abort from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def wait_until_stopped(
    work: Coroutine[Any, Any, None], *, beside: Coroutine[Any, Any, None] | None = None
) -> None:
    """Work until a signal arrives, and return normally: for commands that are meant to be stopped.

    An exception of `work` is raised. `beside` runs at the same time and may end earlier. After the return a second
    signal has its default effect."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    work_task, stop_task = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    others = [stop_task] if beside is None else [stop_task, asyncio.ensure_future(beside)]
    try:
        await asyncio.wait((work_task, stop_task), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (work_task, *others):
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        with suppress(asyncio.CancelledError):
            await work_task
        for number in SIGNALS:
            loop.remove_signal_handler(number)
