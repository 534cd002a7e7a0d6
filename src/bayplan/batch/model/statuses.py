"""Task statuses of Volcano and the groups they form.

`status_of` derives a status from the pod when a session opens; statements change it afterwards. The order is Volcano's:
a status is an index into the per-status lists of a job.
"""

from __future__ import annotations

from enum import IntEnum

from bayplan.objects.core import Pod


class TaskStatus(IntEnum):
    """Volcano's TaskStatus."""

    PENDING = 0
    ALLOCATED = 1  # has a node in this session; not bound yet
    PIPELINED = 2  # waits for resources that are being released on a node
    BINDING = 3  # handed to the binder
    BOUND = 4
    RUNNING = 5
    RELEASING = 6  # being deleted, still holds resources
    SUCCEEDED = 7
    FAILED = 8
    UNKNOWN = 9

    @property
    def label(self) -> str:
        """The word that conditions and events use."""
        return self.name.capitalize()


HOLDING = frozenset({TaskStatus.BOUND, TaskStatus.BINDING, TaskStatus.RUNNING, TaskStatus.ALLOCATED})
"""Volcano's "allocated" statuses: the task has its node and counts against its queue."""

READY = HOLDING | {TaskStatus.SUCCEEDED}
PREEMPTABLE = frozenset({TaskStatus.BOUND, TaskStatus.RUNNING})
COMPLETED = frozenset({TaskStatus.SUCCEEDED, TaskStatus.FAILED})
SCHEDULED = frozenset({TaskStatus.RUNNING, TaskStatus.BOUND}) | COMPLETED
VALID = READY | {TaskStatus.PIPELINED, TaskStatus.PENDING}

IS_HOLDING: tuple[bool, ...] = tuple(status in HOLDING for status in TaskStatus)
"""`HOLDING` as a lookup table, for paths that run for every task."""


def status_of(pod: Pod) -> TaskStatus:
    """The status that the pod itself implies."""
    phase = pod.status.phase
    if phase in ("Running", "Pending"):
        if pod.terminating:
            return TaskStatus.RELEASING
        if phase == "Running":
            return TaskStatus.RUNNING
        return TaskStatus.BOUND if pod.spec.node_name else TaskStatus.PENDING
    return {"Succeeded": TaskStatus.SUCCEEDED, "Failed": TaskStatus.FAILED}.get(phase, TaskStatus.UNKNOWN)
