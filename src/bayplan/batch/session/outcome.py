"""What one session decided: the writes that follow from it, as values. Whoever has an API server performs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from bayplan.batch.session.pre_bind_state import PreBindState
from bayplan.codec.quantity import Quantity
from bayplan.objects.volcano.types import PodGroupStatus


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """A pod group after the session."""

    status: PodGroupStatus
    changed: bool  # whether the status must be written
    allocated_hyper_node: str = ""
    sub_job_hyper_nodes: dict[str, str] = field(default_factory=dict)
    waiting: int = 0  # tasks without a node
    queue: str = ""
    created: datetime | None = None


@dataclass(frozen=True, slots=True)
class PodMessage:
    """Why a pod waits: its PodScheduled condition, and the node that is being cleared for it."""

    reason: str
    message: str
    nominated_node: str = ""
    counts: Mapping[str, int] = field(default_factory=dict, compare=False)  # by reason: so many nodes said so


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """An event of a pod group."""

    group: str
    type: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class StalledQueue:
    """Queues get nothing, whatever they ask for, until somebody mends an object."""

    message: str
    objects: tuple[str, ...] = ()  # the queues that must be mended
    queue: str = ""  # the queue that gets nothing; "": no queue gets anything


@dataclass(slots=True)
class SessionResult:
    """Everything a session leaves. Pods and groups by `namespace/name`."""

    binds: dict[str, str] = field(default_factory=dict)  # pod -> node
    evicts: dict[str, str] = field(default_factory=dict)  # pod -> reason
    admitted: dict[str, str] = field(default_factory=dict)  # pod -> its uid: the gate goes that held it for its queue
    started: set[str] = field(default_factory=set)  # groups of which pods were bound
    shares: dict[str, float] = field(default_factory=dict)  # group -> dominant share, where a plugin counts it
    pipelined: dict[str, str] = field(default_factory=dict)  # pod -> node, as it stood after the last action
    allocated: dict[str, str] = field(default_factory=dict)  # placed, but not bound
    groups: dict[str, GroupOutcome] = field(default_factory=dict)
    messages: dict[str, PodMessage] = field(default_factory=dict)  # to be written, since the pod does not say so yet
    waiting: dict[str, PodMessage] = field(default_factory=dict)  # of every pod that waits, whatever it says
    events: list[GroupEvent] = field(default_factory=list)
    queues: dict[str, dict[str, Quantity]] = field(default_factory=dict)  # what each queue holds, where that changed
    queue_gauges: dict[str, dict[str, float]] = field(default_factory=dict)  # as the session opened
    final_gauges: dict[str, dict[str, float]] = field(default_factory=dict)  # and as it closed
    annotations: dict[str, dict[str, str]] = field(default_factory=dict)  # pod -> what is patched onto it
    request_annotations: dict[str, dict[str, str]] = field(default_factory=dict)  # pod -> what the binder is handed
    stalled_queues: list[StalledQueue] = field(default_factory=list)  # why queues got nothing
    faults: list[str] = field(default_factory=list)  # what plugins and actions did wrong, a sentence each
    session: str = ""  # its uid
    pre_binds: dict[str, PreBindState] = field(
        default_factory=dict
    )  # by uid: what a bound pod needs before it is bound
    action_s: dict[str, float] = field(default_factory=dict)  # how long each action took
    plugin_s: dict[tuple[str, str], float] = field(default_factory=dict)  # and each plugin, opening and closing
