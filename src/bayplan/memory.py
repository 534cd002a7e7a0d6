"""When does the collector of garbage stay away?"""

from __future__ import annotations

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
