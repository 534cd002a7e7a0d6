"""A pod as the scheduling queue keeps it: what happened to it so far, who rejected it, and where it is now."""

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
    """Where a pod waits. The value is what metrics call it; pods that failed by an error back off apart."""

    ACTIVE = "active"
    BACKOFF = "backoff"
    ERROR_BACKOFF = "errorBackoff"
    UNSCHEDULABLE = "unschedulable"

    @property
    def label(self) -> str:
        return SubQueue.BACKOFF.value if self is SubQueue.ERROR_BACKOFF else self.value


@dataclass(slots=True, eq=False)
class QueuedPodInfo:
    """One pod on its way. Popping hands it out; the same object comes back when the attempt fails."""

    info: PodInfo
    timestamp: datetime
    """When it was queued, or last came back: among equals who waits longest is first."""
    attempts: int = 0
    unschedulable_count: int = 0
    """Attempts that ended in a rejection, ever: rejected pods back off by it."""
    consecutive_errors: int = 0
    """Attempts since then that ended in an error."""
    backoff_until: datetime | None = None
    """Kept once computed; None: not computed since it last came back."""
    first_attempt: datetime | None = None
    """When it was first ready to be tried; time behind a gate does not count as waiting."""
    unschedulable_plugins: frozenset[str] = NO_PLUGINS
    pending_plugins: frozenset[str] = NO_PLUGINS
    """Of those who rejected it, the ones that wait for something outside: what they wait for spares it the backoff."""
    gated_by: str = ""
    """The PreEnqueue plugin that keeps it out."""
    gate_error: str = ""
    """What went wrong when that plugin was asked last, if it broke and did not refuse."""
    is_flushed: bool = False
    """It is tried again because it was parked for too long, and not because anything happened."""
    flushed_at: datetime | None = None
    attempt_started_s: float = 0.0
    """When its latest attempt began, on the clock that never jumps."""
    pool: SubQueue | None = None
    """None: in flight, or gone."""
    heap_sequence: int = 0  # its place in a heap; another one makes the place empty
    unschedulable_sequence: int = 0  # when it was parked, in parkings
    hint_class: HintClass | None = None  # the parked pods that hints cannot tell from it
    hint_keys: dict[HintKeyFunction, HintKey | None] = field(default_factory=dict)  # what hints look at in this version
    key: str = field(init=False)
    """`namespace/name`, which no version of the pod changes."""

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
        """When it came back, or was taken out because it had been parked for too long."""
        return self.timestamp if self.flushed_at is None else max(self.timestamp, self.flushed_at)

    def update(self, info: PodInfo) -> None:
        """Another version of the pod is known."""
        self.info = info
        self.hint_keys = {}
