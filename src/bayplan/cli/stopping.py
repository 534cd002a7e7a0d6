"""How does a command that waits for others end when somebody says stop? In order, once, and without a traceback.

SIGINT and SIGTERM cancel the command's own task; what it opened is closed on the way out. Signals that come meanwhile
change nothing: closing takes a second at most. The handler raises nowhere, so no import and no callback can be hit.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

import click

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_until_stopped(work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; `click.Abort` where it was stopped."""
    stopped = False
    before = {}
    try:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            task = loop.create_task(work)

            def stop(_: int, __: FrameType | None) -> None:
                nonlocal stopped
                if not stopped and not loop.is_closed():
                    stopped = True
                    loop.call_soon_threadsafe(task.cancel)

            before = {number: signal.signal(number, stop) for number in SIGNALS}
            return loop.run_until_complete(task)
    except asyncio.CancelledError:
        if not stopped:
            raise
        raise click.Abort from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
