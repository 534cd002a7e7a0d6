"""The ten states of a task, and which of them count as what.

A status comes from the pod (`status_of`) when a session opens; statements move it from there. The order is Volcano's,
and a status is a position in the lists that jobs keep one entry a status in.
"""

from __future__ import annotations

from enum import IntEnum

from bayplan.objects.core import Pod


class TaskStatus(IntEnum):
    """Where a task stands."""

    PENDING = 0
    ALLOCATED = 1  # has a node in this session; not bound yet
    PIPELINED = 2  # waits for room that is being released on a node
    BINDING = 3  # handed to the binder
    BOUND = 4
    RUNNING = 5
    RELEASING = 6  # being deleted, still takes room
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
"""The same as a lookup, for paths that ask for every task."""


def status_of(pod: Pod) -> TaskStatus:
    """What the pod itself says."""
    phase = pod.status.phase
    if phase in ("Running", "Pending"):
        if pod.terminating:
            return TaskStatus.RELEASING
        if phase == "Running":
            return TaskStatus.RUNNING
        return TaskStatus.BOUND if pod.spec.node_name else TaskStatus.PENDING
    return {"Succeeded": TaskStatus.SUCCEEDED, "Failed": TaskStatus.FAILED}.get(phase, TaskStatus.UNKNOWN)
