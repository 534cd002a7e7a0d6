"""Crash points for tests: named steps of binding at which a process can kill itself.

A test of recovery after a crash names the step: `BAYPLAN_DIE_AT=bound`, or `BAYPLAN_DIE_AT=requested:2` for the second
time that the step is reached. Cost without the variable: a call that does nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from bayplan.errors import UsageError

ENVIRONMENT_VARIABLE = "BAYPLAN_DIE_AT"

# scheduler
REQUEST_CREATED = "requested"
"""The API server has the BindRequest of a pod; the engine does not know it yet."""
VICTIMS_EVICTED = "evicted"
"""Victims are deleted; the preemptor has no node yet."""

# binder
ATTEMPT_STARTED = "taken"
GPU_RESERVED = "reserved"
"""A reservation pod exists; the pod does not have its label yet."""
POD_LABELLED = "labelled"
VOLUMES_ASSUMED = "promised"
"""Volumes are assumed for the pod's claims, or nodes selected for them; the claims are not bound yet."""
PRE_BIND_DONE = "prepared"
"""Every plugin has finished PreBind."""
BINDING_WRITTEN = "bound"
"""The API server has the binding."""
POST_BIND_DONE = "finished"
"""The plugins have run PostBind; the request's status does not say so yet."""
ATTEMPT_FAILED = "broken"
"""A step failed; nothing is rolled back yet."""
ROLLED_BACK = "rolled-back"

CRASH_POINTS = (
    REQUEST_CREATED,
    VICTIMS_EVICTED,
    ATTEMPT_STARTED,
    GPU_RESERVED,
    POD_LABELLED,
    VOLUMES_ASSUMED,
    PRE_BIND_DONE,
    BINDING_WRITTEN,
    POST_BIND_DONE,
    ATTEMPT_FAILED,
    ROLLED_BACK,
)
ANY = "any"

CrashPointCallback = Callable[[str], None]


def ignore_crash_point(step: str) -> None:
    """The default: does nothing."""


def crash_point_from_environment(environment: Mapping[str, str]) -> CrashPointCallback:
    """The callback for an environment's `BAYPLAN_DIE_AT`."""
    text = environment.get(ENVIRONMENT_VARIABLE, "")
    if not text:
        return ignore_crash_point
    step, _, times = text.partition(":")
    if step not in (*CRASH_POINTS, ANY) or not (times or "1").isdecimal() or times == "0":
        raise UsageError(
            f'{ENVIRONMENT_VARIABLE} is "{text}"; use a step ({", ".join(CRASH_POINTS)}, {ANY}) or step:times'
        )
    return kill_process_at(step, int(times or "1"))


def kill_process_at(step: str, times: int = 1) -> CrashPointCallback:
    """A callback that kills this process with SIGKILL when the step is reached for the `times`-th time."""
    left = times

    def on_crash_point(name: str) -> None:
        nonlocal left
        if step in (ANY, name):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return on_crash_point
