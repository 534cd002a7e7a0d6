"""The result of one session: the writes that follow from it, as values. The caller with an API server performs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from bayplan.batch.session.pre_bind_state import PreBindState
from bayplan.codec.quantity import Quantity
from bayplan.objects.volcano.types import PodGroupStatus


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    status: PodGroupStatus
    changed: bool  # whether the status must be written
    allocated_hyper_node: str = ""
    sub_job_hyper_nodes: dict[str, str] = field(default_factory=dict)
    waiting: int = 0  # tasks without a node
    queue: str = ""
    created: datetime | None = None


@dataclass(frozen=True, slots=True)
class PodMessage:
    """Why a pod waits: its PodScheduled condition, and its nominated node."""

    reason: str
    message: str
    nominated_node: str = ""
    counts: Mapping[str, int] = field(default_factory=dict, compare=False)  # by reason: number of nodes


@dataclass(frozen=True, slots=True)
class GroupEvent:
    group: str
    type: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class StalledQueue:
    """Queues that get no resources until an object is corrected."""

    message: str
    objects: tuple[str, ...] = ()  # the queues to correct
    queue: str = ""  # the stalled queue; "": all queues


@dataclass(slots=True)
class SessionResult:
    """Everything that a session decides. Pods and groups by `namespace/name`."""

    binds: dict[str, str] = field(default_factory=dict)  # pod -> node
    evicts: dict[str, str] = field(default_factory=dict)  # pod -> reason
    admitted: dict[str, str] = field(default_factory=dict)  # pod -> uid of each pod whose queue gate is removed
    started: set[str] = field(default_factory=set)  # groups with bound pods
    shares: dict[str, float] = field(default_factory=dict)  # group -> dominant share, if a plugin computes it
    pipelined: dict[str, str] = field(default_factory=dict)  # pod -> node, after the last action
    allocated: dict[str, str] = field(default_factory=dict)  # placed, but not bound
    groups: dict[str, GroupOutcome] = field(default_factory=dict)
    # conditions to write, because the pod does not have them yet
    messages: dict[str, PodMessage] = field(default_factory=dict)
    waiting: dict[str, PodMessage] = field(default_factory=dict)  # conditions of every pending pod
    events: list[GroupEvent] = field(default_factory=list)
    queues: dict[str, dict[str, Quantity]] = field(default_factory=dict)  # changed allocations of queues
    queue_gauges: dict[str, dict[str, float]] = field(default_factory=dict)  # at the opening
    final_gauges: dict[str, dict[str, float]] = field(default_factory=dict)  # at the end
    annotations: dict[str, dict[str, str]] = field(default_factory=dict)  # pod -> annotations to patch
    # pod -> annotations of the bind request
    request_annotations: dict[str, dict[str, str]] = field(default_factory=dict)
    stalled_queues: list[StalledQueue] = field(default_factory=list)  # why queues got nothing
    faults: list[str] = field(default_factory=list)  # faults of plugins and actions, one message each
    session: str = ""  # uid of the session
    # by uid: state needed before a pod is bound
    pre_binds: dict[str, PreBindState] = field(default_factory=dict)
    action_s: dict[str, float] = field(default_factory=dict)  # seconds per action
    plugin_s: dict[tuple[str, str], float] = field(default_factory=dict)  # seconds per plugin and phase
