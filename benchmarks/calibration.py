"""How fast is this machine, next to the one that the budgets were set on?

A fixed loop of the NumPy and Python work that a decision is made of: whole columns of five thousand rows, gathers,
reductions, small objects, dictionaries. Its best time here over its best time there is the calibration: 2.0 means that
this machine needs twice as long, so a budget of 50 µs is read as 100 µs. About a second; the best of many runs, in time
of the processor, because whatever else the machine does can only add.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import thread_time

import numpy as np

REFERENCE_S = 0.0071
"""The median of 36 times `best_s()`, in six processes, while nothing else ran on the machine that the budgets were set
on: two cores of an Intel Xeon (Sapphire Rapids, 2.0 GHz, virtual), Python 3.11.7, NumPy 2.4.6. The 36 lay between 6.95
and 7.56 ms, but for two of twelve while the host was busy: that is what `Calibration` takes the best of many for."""

_ROWS = 5000
_ROUNDS = 40
_RUNS = 60


@dataclass(slots=True)
class _Entry:
    name: str
    amount: int


def work(rounds: int = _ROUNDS) -> int:
    """The loop. The sum depends on every step, so that nothing can be left out."""
    rows = np.arange(_ROWS, dtype=np.int64)
    room, used = 1000 + rows % 97, rows * 7 % 800
    zones = (rows % 3).astype(np.intp)
    total = 0
    for turn in range(rounds):
        free = room - used - turn
        fits = (free > 100) & (zones != turn % 3)
        share = np.floor(free.astype(np.float64) * 100.0 / room)
        counts = np.bincount(zones, weights=share, minlength=3).take(zones)
        score = np.where(fits, share + counts % 50, -1.0)
        best = np.flatnonzero(score == score.max())
        total += int(best[turn % len(best)]) + _objects(turn)
        used[best[0]] += 1
    return total


def _objects(turn: int) -> int:
    entries = {f"pod-{turn}-{number}": _Entry(f"node-{number}", number) for number in range(60)}
    kept = [entry for key, entry in sorted(entries.items()) if entry.amount % 3 or key.endswith("7")]
    return sum(entry.amount for entry in kept) + len({entry.name[:6] for entry in kept})


def best_s(runs: int = _RUNS) -> float:
    """The shortest of so many runs."""
    times = []
    for _ in range(runs):
        start = thread_time()
        work()
        times.append(thread_time() - start)
    return min(times)


class Calibration:
    """Measured again and again while a benchmark runs; the best counts, because the machine is no faster than that."""

    def __init__(self) -> None:
        self._best_s = best_s()

    def measure_again(self) -> None:
        self._best_s = min(self._best_s, best_s(_RUNS // 4))

    @property
    def value(self) -> float:
        """How many times longer this machine needs than the one that the budgets were set on."""
        return self._best_s / REFERENCE_S
