"""When does the collector of garbage stay away, and when does the system get back what is not used?"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """For work that makes very many objects that stay: a collection in the middle of it walks through all of them, for
    as long as the work itself takes, and finds nothing. Whoever had turned the collector off finds it off."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # the C library of GNU has it
GIVE_BACK_S = 30.0


def give_back() -> None:
    """Let the system have the pages that the C library keeps for later: it does so by itself only at the end of its
    heap, and where objects come and go for days something always lies there. Takes less than a millisecond."""
    if _TRIM is not None:
        _TRIM(0)


async def giving_back() -> None:
    """Do so now and then, for as long as a process runs."""
    while True:
        await asyncio.sleep(GIVE_BACK_S)
        give_back()
