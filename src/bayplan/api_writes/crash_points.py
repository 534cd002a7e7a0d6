"""Where can a process die that has pods bound? Its steps by name, and a process that ends itself at one of them.

Whoever tests what a crash leaves behind names the step, and need not guess a moment: `BAYPLAN_DIE_AT=bound`, or
`BAYPLAN_DIE_AT=requested:2` for the second time that the step is reached. Costs a call that does nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from bayplan.errors import UsageError

ENVIRONMENT_VARIABLE = "BAYPLAN_DIE_AT"

# of whoever places pods
REQUEST_CREATED = "requested"
"""The API server has the BindRequest of a pod; nobody was told yet."""
VICTIMS_EVICTED = "evicted"
"""Victims were told to go; who comes in their place has no node yet."""

# of whoever binds them
ATTEMPT_STARTED = "taken"
GPU_RESERVED = "reserved"
"""A reservation pod is there; the pod does not say so yet."""
POD_LABELLED = "labelled"
VOLUMES_ASSUMED = "promised"
"""Volumes are promised to the pod's claims, or nodes named for them; nobody has bound them yet."""
PRE_BIND_DONE = "prepared"
"""Every plugin has done its part."""
BINDING_WRITTEN = "bound"
"""The API server has the binding."""
POST_BIND_DONE = "finished"
"""The plugins know, too; the request does not say so yet."""
ATTEMPT_FAILED = "broken"
"""Something failed; nothing was taken back yet."""
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
    """Nobody waits for a step."""


def crash_point_from_environment(environment: Mapping[str, str]) -> CrashPointCallback:
    """What the variable of an environment asks for."""
    text = environment.get(ENVIRONMENT_VARIABLE, "")
    if not text:
        return ignore_crash_point
    step, _, times = text.partition(":")
    if step not in (*CRASH_POINTS, ANY) or not (times or "1").isdecimal() or times == "0":
        raise UsageError(
            f'{ENVIRONMENT_VARIABLE} is "{text}"; it takes a step ({", ".join(CRASH_POINTS)}, {ANY}), or step:times'
        )
    return kill_process_at(step, int(times or "1"))


def kill_process_at(step: str, times: int = 1) -> CrashPointCallback:
    """End this process, without any further word, when the step is reached for the `times`-th time."""
    left = times

    def reached(name: str) -> None:
        nonlocal left
        if step in (ANY, name):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reached
