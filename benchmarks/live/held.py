"""`bayplan scheduler`, with every turn of its loop timed: what held it longest, and when.

    python benchmarks/live/held.py FILE scheduler --kubeconfig ...

Run by `soak.py`. FILE gets the longest turns as JSON, once a second where they have changed. A turn counts in time of
the processor, because whatever else a machine does can only add; the time that passed stands beside it, and so does
what of the turn was a collection of garbage.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import json
import sys
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

from bayplan.cli import main

_KEPT = 10
_WRITE_S = 1.0


class Turns:
    """The longest turns so far."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._started_s = perf_counter()
        self._longest: list[tuple[float, float, float, float, str]] = []
        self._written_s = 0.0
        self._changed = False

    def took(self, cpu_s: float, wall_s: float, collecting_s: float, handle: asyncio.Handle) -> None:
        if len(self._longest) < _KEPT or cpu_s > self._longest[0][0]:
            at_s = perf_counter() - self._started_s
            push = heapq.heappush if len(self._longest) < _KEPT else heapq.heapreplace
            push(self._longest, (cpu_s, wall_s, collecting_s, at_s, _whose(handle)[:200]))
            self._changed = True
        if self._changed and perf_counter() - self._written_s > _WRITE_S:
            self._changed, self._written_s = False, perf_counter()
            self._write()

    def _write(self) -> None:
        found = [
            {
                "ms": round(1e3 * cpu, 2),
                "wall_ms": round(1e3 * wall, 2),
                "collecting_ms": round(1e3 * collecting, 2),
                "at_s": round(at, 1),
                "what": what,
            }
            for cpu, wall, collecting, at, what in sorted(self._longest, reverse=True)
        ]
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1))
        part.replace(self._file)


def _whose(handle: asyncio.Handle) -> str:
    """The task that went on, where that can be told."""
    task = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
    return repr(task if isinstance(task, asyncio.Task) else handle)


class Collections:
    """How long the collector of garbage has been at work."""

    def __init__(self) -> None:
        self.took_s = 0.0
        self._began_s = 0.0
        gc.callbacks.append(self._happens)

    def _happens(self, phase: str, _: Any) -> None:
        if phase == "start":
            self._began_s = thread_time()
        else:
            self.took_s += thread_time() - self._began_s


def time_turns(turns: Turns) -> None:
    run, collections = asyncio.Handle._run, Collections()

    def timed(self: asyncio.Handle) -> Any:
        wall, cpu, collected = perf_counter(), thread_time(), collections.took_s
        try:
            return run(self)
        finally:
            turns.took(thread_time() - cpu, perf_counter() - wall, collections.took_s - collected, self)

    asyncio.Handle._run = timed  # type: ignore[method-assign]


if __name__ == "__main__":
    time_turns(Turns(Path(sys.argv.pop(1))))
    sys.argv[0] = "bayplan"
    main()
