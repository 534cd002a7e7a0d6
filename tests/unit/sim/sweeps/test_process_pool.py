"""Processes of a sweep: none of them outlives it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from support.harness.deadlines import DEADLINE_S

SWEEP = """
import os, sys, time
from pathlib import Path
from bayplan.sim.sweeps.process_pool import results

def work(folder):
    Path(folder, str(os.getpid())).touch()
    time.sleep(0.1)

if __name__ == "__main__":
    list(results(work, [sys.argv[1]] * 10_000, 2))
"""


def test_processes_end_with_a_sweep_that_is_killed(tmp_path: Path) -> None:
    script, seen = tmp_path / "sweep.py", tmp_path / "seen"
    script.write_text(SWEEP)
    seen.mkdir()
    sweep = subprocess.Popen([sys.executable, script, seen], stderr=subprocess.DEVNULL)
    try:
        assert _in_time(lambda: len(list(seen.iterdir())) == 2)
    finally:
        sweep.kill()
        sweep.wait()
    workers = [int(path.name) for path in seen.iterdir()]
    assert _in_time(lambda: not any(_lives(pid) for pid in workers))
    assert [int(path.name) for path in seen.iterdir()] == workers, "nobody took their place"


def _lives(pid: int) -> bool:
    """Also who has ended is there until somebody asks for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _in_time(holds: Callable[[], bool]) -> bool:
    """Whether it becomes so before patience ends."""
    ends_s = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() >= ends_s:
            return False
        time.sleep(0.05)
    return True
