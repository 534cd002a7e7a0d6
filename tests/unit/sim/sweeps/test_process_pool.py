"""Process pool of a sweep: no worker outlives the sweep."""

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
from bayplan.sim.sweeps.process_pool import run_jobs

def work(folder):
    Path(folder, str(os.getpid())).touch()
    time.sleep(0.1)

if __name__ == "__main__":
    list(run_jobs(work, [sys.argv[1]] * 10_000, 2))
"""


def test_processes_end_with_a_sweep_that_is_killed(tmp_path: Path) -> None:
    script, started = tmp_path / "sweep.py", tmp_path / "started"
    script.write_text(SWEEP)
    started.mkdir()
    sweep = subprocess.Popen([sys.executable, script, started], stderr=subprocess.DEVNULL)
    try:
        assert _becomes_true(lambda: len(list(started.iterdir())) == 2)
    finally:
        sweep.kill()
        sweep.wait()
    workers = [int(path.name) for path in started.iterdir()]
    assert _becomes_true(lambda: not any(_is_running(pid) for pid in workers))
    assert [int(path.name) for path in started.iterdir()] == workers, "no worker was replaced"


def _is_running(pid: int) -> bool:
    """False for a zombie, which has ended but still has an entry in /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _becomes_true(condition: Callable[[], bool]) -> bool:
    """Wait until the condition holds; False after the deadline."""
    ends_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() >= ends_s:
            return False
        time.sleep(0.05)
    return True
