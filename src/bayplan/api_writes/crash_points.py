"""Crash points: named steps of binding, at which a test launcher may end the process.

`CRASH_POINT` is read when a process connects to the API server. Nothing in the package sets it; the launcher of the
end-to-end tests does. Cost of a step: a call that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

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

CrashPointCallback = Callable[[str], None]


def ignore_crash_point(step: str) -> None:
    """The default: does nothing."""


CRASH_POINT: ContextVar[CrashPointCallback] = ContextVar("CRASH_POINT", default=ignore_crash_point)
"""Called with the name of each step that is reached."""
