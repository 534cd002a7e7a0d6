"""A pod in the scheduling queue: its attempts, its rejectors and its sub-queue. The counterpart of QueuedPodInfo."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING

from bayplan.framework.api.events import HintKeyFunction
from bayplan.objects.core import Pod
from bayplan.snapshot import PodInfo

if TYPE_CHECKING:
    from bayplan.queue.hints import HintKey
    from bayplan.queue.unschedulable_pods import HintClass

NO_PLUGINS: frozenset[str] = frozenset()


class SubQueue(Enum):
    """The sub-queue of a pod.

    The value is its name in metrics. Pods that failed with an error have a separate backoff.
    """

    ACTIVE = "active"
    BACKOFF = "backoff"
    ERROR_BACKOFF = "errorBackoff"
    UNSCHEDULABLE = "unschedulable"

    @property
    def label(self) -> str:
        return SubQueue.BACKOFF.value if self is SubQueue.ERROR_BACKOFF else self.value


@dataclass(slots=True, eq=False)
class QueuedPodInfo:
    """One pod in the queue. `pop` returns this object, and `requeue` takes it back when the attempt fails."""

    info: PodInfo
    timestamp: datetime
    """When the pod was queued or last returned. Among equal pods the oldest comes first."""
    attempts: int = 0
    unschedulable_count: int = 0
    """Number of all attempts that ended in a rejection. It determines the backoff of rejected pods."""
    consecutive_errors: int = 0
    """Number of attempts since the last rejection that ended in an error."""
    backoff_until: datetime | None = None
    """Cached once computed. None: not computed since the pod last returned."""
    first_attempt: datetime | None = None
    """When the pod was first ready. Time behind a gate does not count as waiting."""
    unschedulable_plugins: frozenset[str] = NO_PLUGINS
    pending_plugins: frozenset[str] = NO_PLUGINS
    """The rejectors that returned Pending. An event that they registered for skips the backoff."""
    gated_by: str = ""
    """The PreEnqueue plugin that gates the pod."""
    gate_error: str = ""
    """Error of that plugin's last call, if it failed instead of rejecting."""
    is_flushed: bool = False
    """Whether the pod was moved by the timeout of unschedulable pods, not by an event."""
    flushed_at: datetime | None = None
    attempt_started_s: float = 0.0
    """Start of the latest attempt, on the monotonic clock."""
    pool: SubQueue | None = None
    """None: in flight, or removed."""
    heap_sequence: int = 0  # a heap entry with another number is stale
    unschedulable_sequence: int = 0  # order of entry among the unschedulable pods
    hint_class: HintClass | None = None  # the unschedulable pods with equal hint keys
    hint_keys: dict[HintKeyFunction, HintKey | None] = field(default_factory=dict)  # keys of this version of the pod
    key: str = field(init=False)
    """`namespace/name`, equal in all versions of the pod."""

    def __post_init__(self) -> None:
        self.key = self.info.pod.key

    @property
    def pod(self) -> Pod:
        return self.info.pod

    @property
    def uid(self) -> str:
        return self.info.uid

    @property
    def rejectors(self) -> frozenset[str]:
        return self.unschedulable_plugins | self.pending_plugins if self.pending_plugins else self.unschedulable_plugins

    @property
    def last_attempt_at(self) -> datetime:
        """When the pod last returned from an attempt, or was moved by the timeout of unschedulable pods."""
        return self.timestamp if self.flushed_at is None else max(self.timestamp, self.flushed_at)

    def update(self, info: PodInfo) -> None:
        self.info = info
        self.hint_keys = {}
