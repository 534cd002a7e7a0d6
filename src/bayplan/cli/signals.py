"""How does a command that waits for others end when somebody says stop? In order, once, and without a traceback.

SIGINT and SIGTERM cancel the command's own task; what it opened is closed on the way out. Signals that come meanwhile
change nothing: closing takes a second at most. The handler raises nowhere, so no import and no callback can be hit.
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
    """The task that calls this has done its work and only closes what it opened: a signal need not end it any more."""
    task = asyncio.current_task()
    assert task is not None, "only a task can end"
    _finishing_tasks.add(task)


def run_until_stopped(work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; `click.Abort` where it was stopped."""
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

            if threading.current_thread() is threading.main_thread():  # no other one hears of signals
                before = {number: signal.signal(number, stop) for number in SIGNALS}
            return loop.run_until_complete(task)
    except asyncio.CancelledError:
        if not stopped:
            raise
        raise click.Abort from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def wait_until_stopped(work: Coroutine[Any, Any, None], *, beside: Coroutine[Any, Any, None]) -> None:
    """Work until a signal comes, and return as after an ordinary end: for commands that are meant to be stopped.

    What the work dies of is raised. `beside`: runs as long, and may end before. A second signal ends whatever the
    command does after this."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    working, other, stopping = (asyncio.ensure_future(each) for each in (work, beside, stop.wait()))
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, other, stopping):
            task.cancel()
        await asyncio.gather(other, stopping, return_exceptions=True)
        with suppress(asyncio.CancelledError):
            await working
        for number in SIGNALS:
            loop.remove_signal_handler(number)
