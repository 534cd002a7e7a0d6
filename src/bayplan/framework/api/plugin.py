"""The contract between the framework and its plugins.

A plugin is any object with a `name`. The points that it extends follow from its methods. Filter and Score have two
forms: for one node (`filter`, `score`, the simple form) and for all rows of a table at once (`filter_nodes`,
`score_nodes`, the form of the shipped plugins). The framework calls one-node plugins only for rows that all other
plugins accept.

Optional everywhere: `traits` (what the answers depend on; see `plugin_traits`), `events_to_register` (events after
which a rejected pod may fit; without it every event counts), `signature(pod)` (what the answers depend on in the pod;
None: the pod shares no answers), `close()` (release resources). A factory gets `(args, handle)`; see `registry`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.status import Code, Status
from bayplan.objects.core import Pod
from bayplan.snapshot import BoolVector, IntVector, NodeInfo, NodeTable, PodInfo

MAX_SCORE = 100


@dataclass(frozen=True, slots=True)
class Rejection:
    """Nodes that a filter rejects for one reason. A filter may yield several; a node collects all its reasons.

    `resolvable`: whether removing pods can help. A node with an unresolvable rejection is unresolvable.
    `code` overrides both, for a filter that returns Pending, or Error because its own state is missing.
    """

    mask: BoolVector
    reason: str
    resolvable: bool = True
    code: Code | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str):
            raise TypeError(f"the reason of a Rejection must be a string, not {self.reason!r}")
        if self.code is Code.SUCCESS:
            raise ValueError("a Rejection cannot have the code Success; leave those nodes out of its mask")

    @classmethod
    def from_error(cls, nodes: NodeTable, reason: str) -> Rejection:
        """Reject every node with an error: the filter's own state is missing or invalid."""
        return cls(np.ones(len(nodes), dtype=np.bool_), reason, code=Code.ERROR)

    @property
    def status_code(self) -> Code:
        if self.code is not None:
            return self.code
        return Code.UNSCHEDULABLE if self.resolvable else Code.UNRESOLVABLE


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """Result of PreFilter that limits the attempt to these nodes."""

    node_names: frozenset[str]

    def __post_init__(self) -> None:
        names = self.node_names
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"PreFilterResult takes a collection of node names, not {names!r}")
        object.__setattr__(self, "node_names", frozenset(names))


@dataclass(frozen=True, slots=True)
class PermitWait:
    """Result of Permit: the pod waits until a plugin allows or rejects it, at most `timeout_s` seconds."""

    timeout_s: float
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.timeout_s, int | float) or not 0 <= self.timeout_s < float("inf"):
            raise ValueError(f"PermitWait takes a finite, non-negative number of seconds, not {self.timeout_s!r}")


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """Result of PostFilter. `nominated_node_name`: None leaves the nomination unchanged, "" clears it.

    `writes` are intents that the engine executes (deallocate a claim, evict a victim). The plugin executes none.
    """

    status: Status
    nominated_node_name: str | None = None
    victims: tuple[Pod, ...] = ()
    writes: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.status, Status):
            raise TypeError(f"the status of a PostFilterResult must be a Status, not {self.status!r}")
        if not isinstance(self.nominated_node_name, str | None):
            raise TypeError(
                f"the nominated node of a PostFilterResult must be a node name, not {self.nominated_node_name!r}"
            )
        if not all(isinstance(victim, Pod) for victim in self.victims):
            raise TypeError(f"the victims of a PostFilterResult must be pods, not {self.victims!r}")
        object.__setattr__(self, "writes", tuple(self.writes))


@dataclass(frozen=True, slots=True)
class PreBindPreFlightResult:
    """PreBind has work to do for this pod. `allow_parallel`: it may run in parallel with other PreBind plugins."""

    allow_parallel: bool = False


class QueuedPod(Protocol):
    """A pod as QueueSort plugins see it."""

    @property
    def pod(self) -> Pod: ...
    @property
    def timestamp(self) -> datetime: ...


class Plugin(Protocol):
    name: str


@runtime_checkable
class PreEnqueuePlugin(Protocol):
    name: str

    def pre_enqueue(self, pod: Pod) -> Status | None: ...


@runtime_checkable
class QueueSortPlugin(Protocol):
    name: str

    def less(self, first: QueuedPod, second: QueuedPod) -> bool: ...


@runtime_checkable
class SortKeyPlugin(Protocol):
    """A QueueSort plugin whose order is also the order of a key. The queue then does not call `less`."""

    name: str

    def sort_key(self, queued: QueuedPod) -> Any: ...


@runtime_checkable
class PreFilterPlugin(Protocol):
    name: str

    def pre_filter(self, cycle: Cycle) -> PreFilterResult | Status | None: ...


@runtime_checkable
class PreFilterExtensionsPlugin(Protocol):
    """A PreFilter plugin whose state depends on pods. Preemption and nominations add and remove single pods."""

    name: str

    def add_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> Status | None: ...
    def remove_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> Status | None: ...


@runtime_checkable
class NodeFilterPlugin(Protocol):
    name: str

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None: ...


@runtime_checkable
class TableFilterPlugin(Protocol):
    name: str

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterable[Rejection]: ...


@runtime_checkable
class PostFilterPlugin(Protocol):
    name: str

    def post_filter(self, cycle: Cycle, diagnosis: Diagnosis) -> PostFilterResult | Status: ...


@runtime_checkable
class PreScorePlugin(Protocol):
    name: str

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None: ...


@runtime_checkable
class NodeScorePlugin(Protocol):
    name: str

    def score(self, cycle: Cycle, node: NodeInfo) -> int | Status: ...


@runtime_checkable
class TableScorePlugin(Protocol):
    name: str

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector | Status: ...


@runtime_checkable
class NormalizePlugin(Protocol):
    name: str

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector | Status: ...


@runtime_checkable
class ReservePlugin(Protocol):
    name: str

    def reserve(self, cycle: Cycle, node_name: str) -> Status | None: ...
    def unreserve(self, cycle: Cycle, node_name: str) -> None: ...


@runtime_checkable
class PermitPlugin(Protocol):
    name: str

    def permit(self, cycle: Cycle, node_name: str) -> PermitWait | Status | None: ...


@runtime_checkable
class PreBindPlugin(Protocol):
    name: str

    def pre_bind_preflight(self, cycle: Cycle, node_name: str) -> PreBindPreFlightResult | Status: ...
    async def pre_bind(self, cycle: Cycle, node_name: str) -> Status | None: ...


@runtime_checkable
class BindPlugin(Protocol):
    name: str

    async def bind(self, cycle: Cycle, node_name: str) -> Status | None: ...


@runtime_checkable
class PostBindPlugin(Protocol):
    name: str

    async def post_bind(self, cycle: Cycle, node_name: str) -> None: ...


@runtime_checkable
class SignPlugin(Protocol):
    name: str

    def signature(self, pod: Pod) -> Hashable | None: ...


@dataclass(frozen=True, slots=True)
class Placement:
    """A set of nodes on which the scheduler tries to place a whole pod group."""

    name: str
    node_names: frozenset[str]


@runtime_checkable
class PlacementGeneratePlugin(Protocol):
    name: str

    def generate_placements(self, cycle: Cycle, group: Any) -> Iterable[Placement] | Status: ...


@runtime_checkable
class PlacementScorePlugin(Protocol):
    name: str

    def score_placement(self, cycle: Cycle, group: Any, placement: Placement, assigned: Mapping[str, str]) -> int: ...


@runtime_checkable
class NormalizePlacementsPlugin(Protocol):
    """A PlacementScore plugin that normalizes the scores of all placements together."""

    name: str

    def normalize_placements(self, cycle: Cycle, group: Any, scores: Sequence[int]) -> Sequence[int] | Status: ...
