"""Runs `bayplan` and kills the process at a crash point, so that tests can check the state after a crash.

Started instead of `-m bayplan` inside `crash_at`. `BAYPLAN_DIE_AT=bound` names the crash point, `requested:2` the
second time that it is reached, and `any:3` the third of all crash points.
"""

from __future__ import annotations

import os
import signal

from bayplan.__main__ import main
from bayplan.api_writes.crash_points import CRASH_POINT, CRASH_POINTS, CrashPointCallback

ENVIRONMENT_VARIABLE = "BAYPLAN_DIE_AT"
ANY = "any"


def kill_process_at(text: str) -> CrashPointCallback:
    """A callback that kills this process with SIGKILL at the crash point that the text names."""
    step, _, times = text.partition(":")
    assert step in (*CRASH_POINTS, ANY), f"{ENVIRONMENT_VARIABLE} is {text!r}; use one of {CRASH_POINTS} or {ANY}"
    left = int(times or "1")
    assert left > 0, f"{ENVIRONMENT_VARIABLE} is {text!r}; steps are counted from 1"

    def on_crash_point(name: str) -> None:
        nonlocal left
        if step in (ANY, name):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return on_crash_point


if __name__ == "__main__":
    CRASH_POINT.set(kill_process_at(os.environ[ENVIRONMENT_VARIABLE]))
    main()
