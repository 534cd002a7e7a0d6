"""The contract between the framework and its plugins.

A plugin is any object with a `name`; the points it extends follow from the methods it has. Filter and Score exist in
two forms: about one node (`filter`, `score`: the simple form anyone can write) and about all rows of a table at once
(`filter_nodes`, `score_nodes`: what shipped plugins use). The framework asks one-node plugins only about rows that
survived the others. A plugin that sets `per_row = True` walks over nodes itself inside its whole-table form and is
therefore given only the rows that are left.

Answers about pods that are alike are shared (`standing`). For that a plugin states what else its answers depend on:
`depends_on(cycle)`, a value that changes whenever an answer about an untouched row may (`depends_on = row_local` where
nothing else matters); `looks_at_pods = False` if it sees of a row only the node; `compares_candidates = True` if its
scores depend on which nodes are candidates. A plugin that says nothing is asked in full for every pod.
A plugin that often skips both PreFilter and PreScore may say so at once (`sits_out(cycle)`: both would, and it has
nothing else to say of this pod). One whose scores depend on more than its filter does says that apart
(`scores_depend_on(cycle)`, asked while it scores; `depends_on` then speaks for its filter, and for PreScore while that
skips). One that compares candidates may give scores by groups of rows (`score_groups`, for a whole table; None: ask
`score_nodes`).

A plugin that reserves nothing for pods that it skips at PreFilter says `reserves_what_it_filters = True`, and is spared
the call. One that must not bind where its own filter would not let a pod go says `filters_where_it_binds = True`: a
profile that has it at Bind has it at PreFilter and Filter, too, whatever is listed there. One that never skips at Bind
says `binds_every_pod = True`: whoever is listed behind it waits in vain, which is told.

Optional everywhere: `cured_by` (events after which a rejected pod may fit; a plugin without it is woken by
everything), `signature(pod)` (what its answers depend on in the pod; None: never share answers), `close()` (release
what the plugin holds). A factory gets `(args, handle)`; see `registry`. A signature is asked for once a pod; a plugin
that may see a pod differently later, though nothing of the pod has changed, says `signs_anew = True`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.status import Code, Status
from bayplan.objects.core import Pod
from bayplan.snapshot import BoolVector, IntVector, NodeInfo, NodeTable, PodInfo, RowVector

MAX_SCORE = 100


@dataclass(frozen=True, slots=True)
class Rejection:
    """Nodes that a filter turns down, for one reason. A filter may yield several; a node collects all its reasons.

    `resolvable` says whether removing pods could help. A node with any unresolvable rejection is unresolvable.
    `code` overrides both, for a filter that must say Pending, or Error because its own state is missing.
    """

    mask: BoolVector
    reason: str
    resolvable: bool = True
    code: Code | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str):
            raise TypeError(f"the reason of a Rejection is a text, not {self.reason!r}")
        if self.code is Code.SUCCESS:
            raise ValueError("a Rejection cannot have the code Success; leave those nodes out of its mask")

    @classmethod
    def from_error(cls, nodes: NodeTable, reason: str) -> Rejection:
        """The filter itself cannot answer, on any node: its own state is missing or makes no sense."""
        return cls(np.ones(len(nodes), dtype=np.bool_), reason, code=Code.ERROR)

    @property
    def status_code(self) -> Code:
        if self.code is not None:
            return self.code
        return Code.UNSCHEDULABLE if self.resolvable else Code.UNRESOLVABLE


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """PreFilter's way to say: only these nodes need to be looked at."""

    node_names: frozenset[str]

    def __post_init__(self) -> None:
        names = self.node_names
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"NarrowTo takes the names of nodes, not {names!r}")
        object.__setattr__(self, "node_names", frozenset(names))


@dataclass(frozen=True, slots=True)
class PermitWait:
    """Permit's way to say: not yet, ask again when someone allows it, at most so long."""

    timeout_s: float
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.timeout_s, int | float) or not 0 <= self.timeout_s < float("inf"):
            raise ValueError(f"Wait takes a number of seconds, not {self.timeout_s!r}")


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """What PostFilter found. `nominated_node_name`: None leaves the nomination as it is, "" clears it.

    `writes` are intents that the engine carries out (deallocate a claim, evict a victim): the plugin performs none.
    """

    status: Status
    nominated_node_name: str | None = None
    victims: tuple[Pod, ...] = ()
    writes: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.status, Status):
            raise TypeError(f"the status of a PostFilterAnswer is a Status, not {self.status!r}")
        if not isinstance(self.nominated_node_name, str | None):
            raise TypeError(f"a PostFilterAnswer nominates a node by its name, not {self.nominated_node_name!r}")
        if not all(isinstance(victim, Pod) for victim in self.victims):
            raise TypeError(f"the victims of a PostFilterAnswer are pods, not {self.victims!r}")
        object.__setattr__(self, "writes", tuple(self.writes))


@dataclass(frozen=True, slots=True)
class PreBindPreFlightResult:
    """PreBind will have work to do; `allow_parallel`: it may run beside its neighbours."""

    allow_parallel: bool = False


def row_local(plugin: object, cycle: Cycle) -> Hashable:  # noqa: ARG001
    """`depends_on = row_local`: what the plugin says of a row depends on the pod and on that row, on nothing else."""
    return ()


def amounts_local(plugin: object, cycle: Cycle) -> Hashable:  # noqa: ARG001
    """The same, and of the row on what it has and what is asked of it: rows with equal amounts get equal answers."""
    return ()


class ScoreGroups(NamedTuple):
    """Final scores of a table whose rows fall into few groups that score alike."""

    scores: Sequence[int] | IntVector  # of each group, normalised
    of_row: RowVector  # the group of each row
    lowest: int  # of the groups that some row is in
    highest: int


class QueuedPod(Protocol):
    """A pod as the queue's order sees it."""

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
    """A QueueSort whose order is that of a value, too: then `less` need not be called at every comparison."""

    name: str

    def sort_key(self, queued: QueuedPod) -> Any: ...


@runtime_checkable
class PreFilterPlugin(Protocol):
    name: str

    def pre_filter(self, cycle: Cycle) -> PreFilterResult | Status | None: ...


@runtime_checkable
class PreFilterExtensionsPlugin(Protocol):
    """A PreFilter whose state depends on pods: told when preemption or a nomination tries one more or one less."""

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
    """A set of nodes that a pod group may be tried on as a whole."""

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
    """A PlacementScore whose scores are comparable only once all placements have one."""

    name: str

    def normalize_placements(self, cycle: Cycle, group: Any, scores: Sequence[int]) -> Sequence[int] | Status: ...
