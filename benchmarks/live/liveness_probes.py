"""Response times of a liveness endpoint, requested as by a kubelet, from a separate process.

    python benchmarks/live/liveness_probes.py http://127.0.0.1:11251/livez

Sends requests from the first response until SIGTERM, then prints the result as JSON.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

EVERY_S = 0.1
"""Often enough to meet a long turn of the loop, and rarely enough to cost the process almost nothing."""
LIMIT_MS = 100.0
"""Maximum of a response time, whatever the process is doing."""


@dataclass(slots=True)
class Probes:
    """Result, available when the process has ended."""

    found: dict[str, Any] = field(default_factory=dict)

    @property
    def in_time(self) -> bool:
        return bool(self.found) and self.found["longest_ms"] <= LIMIT_MS


@contextmanager
def run_probes(url: str) -> Iterator[Probes]:
    """Send probes inside the block."""
    probes = Probes()
    command = [sys.executable, str(Path(__file__)), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield probes
        finally:
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
            probes.found = json.loads(output)


def summed_up(took_ms: Sequence[float]) -> dict[str, Any]:
    ordered = sorted(took_ms)
    last = len(ordered) - 1
    return {
        "probes": len(ordered),
        "p50_ms": round(ordered[last // 2], 2) if ordered else None,
        "p99_ms": round(ordered[last * 99 // 100], 2) if ordered else None,
        "longest_ms": round(ordered[-1], 2) if ordered else float("inf"),
    }


def main(url: str) -> None:
    took_ms: list[float] = []
    stopped = False

    def stop(_: int, __: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    while not stopped:
        start_s = time.perf_counter()
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                answer.read()
            took_ms.append(1e3 * (time.perf_counter() - start_s))
        except TimeoutError:
            took_ms.append(float("inf"))
        except OSError:
            pass  # not listening yet, or no longer
        time.sleep(EVERY_S)
    sys.stdout.write(json.dumps(summed_up(took_ms)))


if __name__ == "__main__":
    main(sys.argv[1])
