"""Event loop of a process that serves many connections: uvloop if it is installed.

uvloop reads and writes sockets in C, which saves about a twelfth of the cost of a whole cluster in one process. Without
it (`pip install bayplan[fast]`) Python's own loop gives the same results. A scheduler process instead batches wake-ups
(`wakeup_batching`), which uvloop does not support.
"""

from __future__ import annotations

import asyncio
from importlib import import_module


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop, for `asyncio.Runner`."""
    try:
        uvloop = import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
