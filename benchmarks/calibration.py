"""Speed of this machine relative to the machine that the budgets were set on.

A fixed loop of NumPy and Python work as in a scheduling decision: whole columns of five thousand rows, gathers,
reductions, small objects, dictionaries. Its time here divided by its time there is the calibration: 2.0 means that this
machine needs twice as long, so a budget of 50 µs becomes 100 µs.

The speed of a virtual core varies: with a neighbour on the same silicon it needs up to twice as long, for seconds at a
time. So the loop also runs between the measurements, and each workload is judged by the machine's speed during its run:
the median of the one against the median of the other, in processor time.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from time import thread_time

import numpy as np

REFERENCE_S = 0.0071
"""Time of the loop on the otherwise idle machine that the budgets were set on: two cores of an Intel Xeon (Sapphire
Rapids, 2.0 GHz, virtual), Python 3.11.7, NumPy 2.4.6. It is the median of 36 times the best of sixty runs, in six
processes; the 36 lay between 6.95 and 7.56 ms, except for two of twelve while the host was busy.
"""

_ROWS = 5000
_ROUNDS = 40
_RUNS = 60


@dataclass(slots=True)
class _Entry:
    name: str
    amount: int


def work(rounds: int = _ROUNDS) -> int:
    """The loop. The sum depends on every step, so that no step can be optimised away."""
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


def run_s() -> float:
    """Time of one run of the loop now."""
    start = thread_time()
    work()
    return thread_time() - start


def pace() -> float:
    """The calibration at this moment."""
    return run_s() / REFERENCE_S


class Calibration:
    """Calibrates repeatedly during a benchmark, for figures of the whole run."""

    def __init__(self) -> None:
        self._paces: list[float] = []
        self.measure_again(_RUNS)

    def measure_again(self, runs: int = _RUNS // 4) -> None:
        self._paces.append(statistics.median(pace() for _ in range(runs)))

    @property
    def value(self) -> float:
        """The median calibration."""
        return statistics.median(self._paces)
