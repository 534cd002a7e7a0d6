"""The resource rule of sessions as a filter, for use between sessions.

Called to explain why a pod waits. It differs from the pod engine's rule. Cpu and memory are compared even without a
request, so an overcommitted node takes no pod. Oversubscribed amounts count. A pod without requests is backfilled, or
stays pending without that action. Resources are checked at the latest when the pod is bound. Resources reserved for
nominated pods are not available.

Idle amounts are derived from the snapshot's columns, so that a fork with added and removed pods can be evaluated as
well. Columns round up once per pod, sessions once per container; the results differ for fractions of a milli-CPU or of
a byte. Cost of an answer: one pass over the nodes, then some vector operations per call, and a pass over the pods for a
pod with volumes.
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
    """Rejects nodes where sessions would not place the pod for lack of resources."""

    name = "room"

    def __init__(self, engine: BatchEngine) -> None:
        self._cluster_state, self._handle = engine.cluster_state, engine.handle
        self._backfills = _BACKFILL in engine.configuration.actions
        self._offered = _OfferedColumns([], [])

    def pre_filter(self, cycle: Cycle) -> None:
        cycle.put(_TASK, self._cluster_state.as_task(cycle.pod))

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
        """Whether no session tries the pod: it has no requests, and the backfill action is off."""
        if self._backfills:
            return False
        try:
            return self._cluster_state.as_task(pod).best_effort
        except QuantityError:  # it has requests, although invalid ones
            return False

    def shortages(
        self, pod: Pod, requests: Mapping[str, int], lowest: Mapping[str, int], columns: NodeColumns
    ) -> Callable[[int], dict[str, int]]:
        """A function from a row to the amounts by which the pod's requests must shrink to fit there.

        Its result is empty if that is impossible or not needed. An overcommitted node takes no pod, however small its
        requests.
        """
        task = self._cluster_state.as_task(pod)
        idle = self._idle(NodeTable(columns, np.arange(columns.count)), task)
        compared = [(name, amount, idle(name)) for name, amount in _compared_amounts(task.resreq)]
        checks = [
            (
                name,
                is_sufficient(amount, have).tolist(),
                is_sufficient(0.0, have).tolist(),
                (have // _unit(name)).tolist(),
            )
            for name, amount, have in compared
        ]

        def row_shortages(row: int) -> dict[str, int]:
            short: dict[str, int] = {}
            for name, fits, is_in_bounds, free in checks:
                if fits[row]:
                    continue
                remaining = int(free[row])
                if not is_in_bounds[row] or name not in requests or remaining < lowest.get(name, 0):
                    return {}  # a pod cannot request fewer pods or volumes
                short[name] = requests[name] - remaining
            return short

        return row_shortages

    # Node amounts

    def _offered_amounts(self, columns: NodeColumns) -> _OfferedColumns:
        """The amounts of all rows; computed once per answer, while the node objects stay the same."""
        if self._offered.nodes != columns.nodes:
            self._offered = _OfferedColumns(
                list(columns.nodes), [self._cluster_state.offered_amounts(node) for node in columns.nodes]
            )
        return self._offered

    def _idle(self, nodes: NodeTable, task: Task) -> Callable[[str], FloatVector]:
        offered, nominated = self._offered_amounts(nodes.columns), self._nominated_amounts(nodes, task)

        def idle(name: str) -> FloatVector:
            have: FloatVector = offered.column(name)[nodes.rows] - self._used_amounts(nodes, name)
            for position, (releasing, pipelined) in nominated.items():
                have[position] = min(have[position], have[position] + releasing.get(name) - pipelined.get(name))
            return have

        return idle

    def _used_amounts(self, nodes: NodeTable, name: str) -> FloatVector:
        if name == PODS:
            return nodes.pod_count.astype(np.float64)
        if name.startswith(ATTACHABLE_VOLUMES_PREFIX):
            pods, counted = nodes.columns.pods, self._cluster_state.task_of_pod
            sums = (sum(counted(info).resreq.get(name) for info in pods[row]) for row in nodes.rows.tolist())
            return np.fromiter(sums, np.float64, len(nodes))
        used: FloatVector = nodes.requested(name).astype(np.float64) * _unit(name)
        return used

    def _nominated_amounts(self, nodes: NodeTable, task: Task) -> dict[int, tuple[Amounts, Amounts]]:
        """By position in the table: amounts being released there, and amounts of nominated pods."""
        found: dict[int, tuple[Amounts, Amounts]] = {}
        nominations, cluster_state = self._handle.nominator, self._cluster_state
        if not nominations.nodes():
            return found
        for position, row in enumerate(nodes.rows.tolist()):
            nominated_pods = nominations.on_node(nodes.columns.names[row])
            pipelined = Amounts(scalars={})
            for nominated_pod in nominated_pods:
                if nominated_pod.uid != task.uid and cluster_state.task(nominated_pod.uid) is None:
                    pipelined.add(pod_amounts(nominated_pod.pod))
            if pipelined.is_empty():
                continue
            releasing = Amounts(scalars={})
            for info in nodes.columns.pods[row]:
                task_on_node = cluster_state.task_of_pod(info)
                if task_on_node.status is TaskStatus.RELEASING:
                    releasing.add(task_on_node.resreq)
            found[position] = releasing, pipelined
        return found

    def _reject_outside_shard(self, nodes: NodeTable) -> Iterator[Rejection]:
        manages, shard = self._cluster_state.manages, self._handle.shard
        if manages is not None:
            ours = [manages(nodes.columns.nodes[row]) for row in nodes.rows.tolist()]
            yield Rejection(~np.array(ours, dtype=np.bool_), NOT_SELECTED, resolvable=False)
        if shard is not None and shard.is_hard:
            inside: BoolVector = np.array([name in shard.names for name in nodes.names], dtype=np.bool_)
            yield Rejection(~inside, NOT_IN_SHARD, resolvable=False)


class _OfferedColumns:
    """Allocatable amounts of some nodes, by resource; each column is read at first use."""

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
    """The compared amounts in a session's order: always with cpu and memory."""
    scalars = amounts.scalars or {}
    return [(CPU, amounts.milli_cpu), (MEMORY, amounts.memory), *((name, scalars[name]) for name in sorted(scalars))]


def _unit(name: str) -> float:
    """The value of one unit of a node's resource in `Amounts`."""
    return 1.0 if name in (CPU, MEMORY) else _MILLI
