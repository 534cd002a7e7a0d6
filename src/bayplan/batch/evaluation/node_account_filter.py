"""Which nodes have room for a pod as sessions count room? Their rule as a filter, to be asked between sessions.

Asked by whoever explains why a pod waits. It differs from the pod engine's: cpu and memory are compared whatever a pod
asks for, so that a node which holds more than it has takes nobody; what is lent on top counts; a pod that asks for
nothing is backfilled, and where nobody does that it stays. The room is looked at when it is bound, if not before.
Room that others were promised is theirs.

What is idle is read off columns, so that a fork with pods that come and go is judged as well. Columns round up once a
pod, sessions once a container: they differ where somebody asks for parts of a milli-CPU or of a byte. Cost of an
answer: one pass over the nodes; then some vector operations a look, and a pass over the pods for a pod with volumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from bayplan.batch.engine import BatchEngine
from bayplan.batch.evaluation.shard_filter import NOT_IN_SHARD, NOT_SELECTED
from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.fit_errors import POD_NUMBER_EXCEEDED, insufficient_reason
from bayplan.batch.model.node_accounts import FloatVector, first_insufficient, is_sufficient
from bayplan.batch.model.pod_amounts import pod_amounts
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.model.volume_counts import ATTACHABLE_VOLUMES_PREFIX
from bayplan.codec.quantity import QuantityError
from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.plugin import Rejection
from bayplan.objects.core import Node, Pod
from bayplan.objects.resources import CPU, MEMORY, PODS
from bayplan.snapshot import BoolVector, NodeColumns, NodeTable

_TASK: StateKey[Task] = StateKey("PreFilterSessionRoom")
_BACKFILL = "backfill"
_MILLI = 1000.0


class NodeAccountFilter:
    """Keeps pods off nodes on which no session would put them for want of room."""

    name = "room"

    def __init__(self, engine: BatchEngine) -> None:
        self._ledger, self._handle = engine.cluster_state, engine.handle
        self._backfills = _BACKFILL in engine.configuration.actions
        self._offered = _OfferedColumns([], [])

    def pre_filter(self, cycle: Cycle) -> None:
        cycle.put(_TASK, self._ledger.as_task(cycle.pod))

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        task = cycle.get(_TASK)
        offered, idle = self._offered_amounts(nodes.columns), self._idle(nodes, task)
        for name, short in first_insufficient(_compared_amounts(task.resreq), idle):
            never = short & ~is_sufficient(task.resreq.get(name), offered.column(name)[nodes.rows])
            yield Rejection(never, insufficient_reason([name]), resolvable=False)
            yield Rejection(short & ~never, insufficient_reason([name]))
        yield from self._reject_outside_shard(nodes)
        yield Rejection(offered.most_pods[nodes.rows] <= nodes.pod_count, POD_NUMBER_EXCEEDED)

    def is_never_tried(self, pod: Pod) -> bool:
        """Whether no session tries the pod: it asks for nothing, and nobody backfills."""
        if self._backfills:
            return False
        try:
            return self._ledger.as_task(pod).best_effort
        except QuantityError:  # it asks for something, whatever that is
            return False

    def shortages(
        self, pod: Pod, requests: Mapping[str, int], lowest: Mapping[str, int], columns: NodeColumns
    ) -> Callable[[int], dict[str, int]]:
        """By how much less the pod would have to ask for on a row; nothing where that does not help, or is not needed.

        A node that holds more than it has takes nobody, however little they ask for."""
        task = self._ledger.as_task(pod)
        idle = self._idle(NodeTable(columns, np.arange(columns.count)), task)
        asked = [(name, amount, idle(name)) for name, amount in _compared_amounts(task.resreq)]
        told = [
            (
                name,
                is_sufficient(amount, have).tolist(),
                is_sufficient(0.0, have).tolist(),
                (have // _unit(name)).tolist(),
            )
            for name, amount, have in asked
        ]

        def of(row: int) -> dict[str, int]:
            short: dict[str, int] = {}
            for name, fits, is_in_bounds, free in told:
                if fits[row]:
                    continue
                left = int(free[row])
                if not is_in_bounds[row] or name not in requests or left < lowest.get(name, 0):
                    return {}  # places for pods and volumes are nothing that a pod could ask less of
                short[name] = requests[name] - left
            return short

        return of

    # what nodes have ----------------------------------------------------------------------------------------------

    def _offered_amounts(self, columns: NodeColumns) -> _OfferedColumns:
        """Of all rows. Worked out once an answer, as long as the nodes are the same objects."""
        if self._offered.nodes != columns.nodes:
            self._offered = _OfferedColumns(
                list(columns.nodes), [self._ledger.offered_amounts(node) for node in columns.nodes]
            )
        return self._offered

    def _idle(self, nodes: NodeTable, task: Task) -> Callable[[str], FloatVector]:
        offered, promised = self._offered_amounts(nodes.columns), self._nominated_amounts(nodes, task)

        def idle(name: str) -> FloatVector:
            have: FloatVector = offered.column(name)[nodes.rows] - self._used(nodes, name)
            for place, (going, coming) in promised.items():
                have[place] = min(have[place], have[place] + going.get(name) - coming.get(name))
            return have

        return idle

    def _used(self, nodes: NodeTable, name: str) -> FloatVector:
        if name == PODS:
            return nodes.pod_count.astype(np.float64)
        if name.startswith(ATTACHABLE_VOLUMES_PREFIX):
            pods, counted = nodes.columns.pods, self._ledger.task_of_pod
            sums = (sum(counted(info).resreq.get(name) for info in pods[row]) for row in nodes.rows.tolist())
            return np.fromiter(sums, np.float64, len(nodes))
        used: FloatVector = nodes.requested(name).astype(np.float64) * _unit(name)
        return used

    def _nominated_amounts(self, nodes: NodeTable, task: Task) -> dict[int, tuple[Amounts, Amounts]]:
        """By place in the table: what is being released there, and what others wait for."""
        found: dict[int, tuple[Amounts, Amounts]] = {}
        nominations, ledger = self._handle.nominator, self._ledger
        if not nominations.nodes():
            return found
        for place, row in enumerate(nodes.rows.tolist()):
            guests = nominations.on_node(nodes.columns.names[row])
            coming = Amounts(scalars={})
            for guest in guests:
                if guest.uid != task.uid and ledger.task(guest.uid) is None:
                    coming.add(pod_amounts(guest.pod))
            if coming.is_empty():
                continue
            going = Amounts(scalars={})
            for info in nodes.columns.pods[row]:
                other = ledger.task_of_pod(info)
                if other.status is TaskStatus.RELEASING:
                    going.add(other.resreq)
            found[place] = going, coming
        return found

    def _reject_outside_shard(self, nodes: NodeTable) -> Iterator[Rejection]:
        manages, shard = self._ledger.manages, self._handle.shard
        if manages is not None:
            ours = [manages(nodes.columns.nodes[row]) for row in nodes.rows.tolist()]
            yield Rejection(~np.array(ours, dtype=np.bool_), NOT_SELECTED, resolvable=False)
        if shard is not None and shard.is_hard:
            inside: BoolVector = np.array([name in shard.names for name in nodes.names], dtype=np.bool_)
            yield Rejection(~inside, NOT_IN_SHARD, resolvable=False)


class _OfferedColumns:
    """What some nodes offer, by resource; each is read off them when it is first asked for."""

    def __init__(self, nodes: list[Node], offers: list[Amounts]) -> None:
        self.nodes = nodes
        self.most_pods = np.fromiter((offer.max_task_num for offer in offers), np.int64, len(offers))
        self._offers = offers
        self._columns: dict[str, FloatVector] = {}

    def column(self, name: str) -> FloatVector:
        found = self._columns.get(name)
        if found is None:
            amounts = (offer.get(name) for offer in self._offers)
            found = self._columns[name] = np.fromiter(amounts, np.float64, len(self._offers))
        return found


def _compared_amounts(amounts: Amounts) -> list[tuple[str, float]]:
    """What is compared, in a session's order: cpu and memory in any case."""
    scalars = amounts.scalars or {}
    return [(CPU, amounts.milli_cpu), (MEMORY, amounts.memory), *((name, scalars[name]) for name in sorted(scalars))]


def _unit(name: str) -> float:
    """What one of a resource as nodes and pods count it is in amounts."""
    return 1.0 if name in (CPU, MEMORY) else _MILLI
