"""Work in turns: a generator yields where others may have theirs, and returns what it found.

Sessions are made of these. Whoever has the process to itself runs one to its end with `finished`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finished(work: Generator[None, None, T]) -> T:
    """Do all of it, and give nobody a turn."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: T = end.value
            return found
