"""When does the collector of garbage stay away, and when does the system get back what is not used?

Python 3.11 collects in three generations: what is older than two collections of the young is looked at in full, rarely.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_gc() -> Iterator[None]:
    """For work that makes very many objects that stay: a collection in the middle of it walks through all of them, for
    as long as the work itself takes, and finds nothing. Whoever had turned the collector off finds it off."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


_MALLOC_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # the C library of GNU has it
TRIM_INTERVAL_S = 30.0


def trim_heap() -> None:
    """Let the system have the pages that the C library keeps for later: it does so by itself only at the end of its
    heap, and where objects come and go for days something always lies there. Takes less than a millisecond."""
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


async def trim_heap_periodically() -> None:
    """Do so now and then, for as long as a process runs."""
    while True:
        await asyncio.sleep(TRIM_INTERVAL_S)
        trim_heap()


def freeze_memory() -> None:
    """What is there now stays for long: collections need not look at it each time.

    For a process that is ours alone, before its loop begins, for all that was imported, and again when the cluster was
    read: what is left to be looked at then is little, and holds the loop for a few milliseconds only. Of what was read
    only the youngest is looked through for garbage: all of a large cluster would hold the loop for half a second."""
    gc.collect(1)
    gc.freeze()


FREEZE_INTERVAL_S = 0.25
_MIN_COLLECTIONS = 2  # collections of what is young, of 7,000 objects each by which more came than went


def freeze_periodically() -> None:
    """Freeze, and from now on also what comes, as long as the loop runs."""
    freeze_memory()
    _schedule_freeze()


def _schedule_freeze() -> None:
    freeze_new_objects()
    loop = asyncio.get_running_loop()
    loop.call_later(
        FREEZE_INTERVAL_S - loop.time() % FREEZE_INTERVAL_S, _schedule_freeze
    )  # with those who look at connections so often


def freeze_new_objects() -> None:
    """What has come of late, and is no garbage, stays for long as well.

    Costs a few milliseconds now and then. Left to itself the collector comes when a quarter more is there than before,
    and looks through all of it: after ten thousand pods for a tenth of a second. What becomes garbage later and forms a
    cycle stays for ever: so what lives for longer than a moment must form none, or break it."""
    if gc.isenabled() and gc.get_count()[2] >= _MIN_COLLECTIONS:
        gc.collect()
        gc.freeze()
