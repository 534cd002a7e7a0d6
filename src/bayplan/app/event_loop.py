"""Which loop does a process run on that serves many connections? The fastest that is installed.

uvloop reads and writes sockets in C: about a twelfth of what a whole cluster in one process costs. Whoever has not
installed it (`pip install bayplan[fast]`) runs on Python's own loop, with the same answers. A scheduler alone paces its
loop instead (`pacing`), which uvloop cannot.
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
