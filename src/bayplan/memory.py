"""Control of Python's garbage collector, and of the memory that the C library holds back.

Python 3.11 collects three generations. Objects that survived two collections are examined in full, but rarely.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_gc() -> Iterator[None]:
    """Turn the collector off for work that creates very many long-lived objects. A collection in the middle of such
    work walks through all of them, takes as long as the work itself and finds nothing. A collector that was off stays
    off."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


_MALLOC_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
TRIM_INTERVAL_S = 30.0


def trim_heap() -> None:
    """Return the free pages of the C library to the system. By itself it does so only at the end of its heap, where
    after days of allocations some object always lies. Takes less than a millisecond."""
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


async def trim_heap_periodically() -> None:
    """Call `trim_heap` every 30 seconds for as long as the process runs."""
    while True:
        await asyncio.sleep(TRIM_INTERVAL_S)
        trim_heap()


def freeze_memory() -> None:
    """Exclude all objects that exist now from collections, because they live long.

    For a process that Bayplan owns. It is called before the loop starts, for all that was imported, and again when the
    informers have synced. Later collections examine little and hold the loop for a few milliseconds only. Of the
    objects from the initial lists only the youngest are collected: all of a large cluster would hold the loop for half
    a second."""
    gc.collect(1)
    gc.freeze()


FREEZE_INTERVAL_S = 0.25
_MIN_COLLECTIONS = 2  # collections of the young generation, each after 7,000 more allocations than deallocations


def freeze_periodically() -> None:
    """Freeze memory now, and keep freezing new objects as long as the loop runs."""
    freeze_memory()
    _schedule_freeze()


def _schedule_freeze() -> None:
    freeze_new_objects()
    loop = asyncio.get_running_loop()
    # in step with other timers of this interval
    loop.call_later(FREEZE_INTERVAL_S - loop.time() % FREEZE_INTERVAL_S, _schedule_freeze)


def freeze_new_objects() -> None:
    """Freeze new objects that survive a collection.

    Costs a few milliseconds now and then. Without it the collector runs when the number of objects has grown by a
    quarter, and examines all of them: after ten thousand pods it takes a tenth of a second. Cyclic garbage that forms
    later is never freed. So long-lived objects must form no cycle, or break it."""
    if gc.isenabled() and gc.get_count()[2] >= _MIN_COLLECTIONS:
        gc.collect()
        gc.freeze()
