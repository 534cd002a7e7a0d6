"""`bayplan scheduler` with a timer for every turn of its event loop: the longest turns and their times.

    python benchmarks/live/loop_turns.py FILE scheduler --kubeconfig ...

Called by `soak.py`. FILE gets the longest turns as JSON, once a second if they have changed. A turn counts in processor
time, because other load can only add wall-clock time; the wall-clock time is recorded beside it, and so is the garbage
collector's part. On a virtual machine the host takes the processor away while the thread's clock goes on: a loop that
adds numbers for a tenth of a millisecond has been charged 100 ms. The steal time that the kernel counted during a turn,
on the processor where it ended, is therefore subtracted and recorded.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import json
import os
import sys
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

from bayplan.cli import main

_KEPT = 10
_WRITE_S = 1.0
_LONG_S = 0.02
"""Steal time is not read for shorter turns."""
_LOOK_S = 0.02


class Turns:
    """The longest turns so far."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._started_s = perf_counter()
        self._longest: list[tuple[float, float, float, float, float, str]] = []
        self._written_s = 0.0
        self._changed = False

    def took(self, cpu_s: float, wall_s: float, collecting_s: float, stolen_s: float, handle: asyncio.Handle) -> None:
        own_s = max(0.0, cpu_s - stolen_s)
        if len(self._longest) < _KEPT or own_s > self._longest[0][0]:
            at_s = perf_counter() - self._started_s
            push = heapq.heappush if len(self._longest) < _KEPT else heapq.heapreplace
            push(self._longest, (own_s, wall_s, collecting_s, stolen_s, at_s, _whose(handle)[:200]))
            self._changed = True
        if self._changed and perf_counter() - self._written_s > _WRITE_S:
            self._changed, self._written_s = False, perf_counter()
            self._write()

    def _write(self) -> None:
        found = [
            {
                "ms": round(1e3 * own, 2),
                "wall_ms": round(1e3 * wall, 2),
                "collecting_ms": round(1e3 * collecting, 2),
                "stolen_ms": round(1e3 * stolen, 2),
                "at_s": round(at, 1),
                "what": what,
            }
            for own, wall, collecting, stolen, at, what in sorted(self._longest, reverse=True)
        ]
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1))
        part.replace(self._file)


def _whose(handle: asyncio.Handle) -> str:
    """The task of the turn, if known."""
    task = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
    return repr(task if isinstance(task, asyncio.Task) else handle)


class Collections:
    """Time of the garbage collector so far."""

    def __init__(self) -> None:
        self.took_s = 0.0
        self._began_s = 0.0
        gc.callbacks.append(self._happens)

    def _happens(self, phase: str, _: Any) -> None:
        if phase == "start":
            self._began_s = thread_time()
        else:
            self.took_s += thread_time() - self._began_s


class Stolen:
    """Steal time of each processor, as the kernel counts it; zero if it does not."""

    def __init__(self, stat: Path = Path("/proc/stat"), own: Path = Path("/proc/thread-self/stat")) -> None:
        self._own = own
        self._file = os.open(stat, os.O_RDONLY) if stat.exists() else None
        self._tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        self._looked_s = float("-inf")
        self._seconds: list[float] = []

    def look(self, now_s: float) -> None:
        """Record the steal time, unless that was done a moment ago: it costs as much as a short turn."""
        if self._file is not None and now_s - self._looked_s > _LOOK_S:
            self._looked_s, self._seconds = now_s, self._read()

    def since(self, began_s: float) -> float:
        """Lower bound of the steal time since then: all of it since the last record may have been before."""
        if self._file is None:
            return 0.0
        processor = int(self._own.read_text().rpartition(")")[2].split()[36])
        stolen_s = self._read()[processor] - self._seconds[processor]
        return max(0.0, stolen_s - (began_s - self._looked_s))

    def _read(self) -> list[float]:
        assert self._file is not None
        lines = os.pread(self._file, 1 << 16, 0).splitlines()
        return [int(line.split()[8]) * self._tick_s for line in lines if line[:3] == b"cpu" and line[3:4].isdigit()]


def time_turns(turns: Turns) -> None:
    run, collections, stolen = asyncio.Handle._run, Collections(), Stolen()

    def timed(self: asyncio.Handle) -> Any:
        stolen.look(perf_counter())
        wall, cpu, collected = perf_counter(), thread_time(), collections.took_s
        try:
            return run(self)
        finally:
            took_s = thread_time() - cpu
            wall_s = perf_counter() - wall
            stolen_s = stolen.since(wall) if took_s > _LONG_S else 0.0
            turns.took(took_s, wall_s, collections.took_s - collected, stolen_s, self)

    asyncio.Handle._run = timed  # type: ignore[method-assign]


if __name__ == "__main__":
    time_turns(Turns(Path(sys.argv.pop(1))))
    sys.argv[0] = "bayplan"
    main()
