"""The `numa-aware` plugin: NUMA placement of pods with exclusive CPUs.

It applies to Guaranteed pods, and to nodes whose resource exporter writes a Numatopology with a static CPU manager.
`batch.devices.numa` computes the CPUs that the kubelet will assign. CPUs assigned in a session are subtracted from the
free CPUs of the node. For bound pods they stay subtracted until the node reports again.

Cost: one lookup per node; nodes with equal topology and free CPUs share one computation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.devices.numa import ContainerCpuRequest, NumaTopology, parse_cpus
from bayplan.batch.evaluation.node_points import ROW_LOCAL
from bayplan.batch.handle import BatchHandle
from bayplan.batch.model.nodes import FloatVector, Nodes
from bayplan.batch.model.qos import Qos, qos_of
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.extension_points import PREDICATE
from bayplan.batch.session.session import Session
from bayplan.codec.quantity import parse_quantity
from bayplan.framework.api.plugin import MAX_SCORE, Rejection
from bayplan.framework.api.status import Code
from bayplan.objects.core import Container
from bayplan.objects.resources import CPU
from bayplan.objects.volcano.types import Numatopology
from bayplan.snapshot import Catalog

POLICY = "volcano.sh/numa-topology-policy"
STATIC = "static"
NO_INFO = "numa info is empty"
NOT_STATIC = "cpu manager policy isn't static"
NO_CPUS = "cpu allocatable map is empty"

_NO_POLICY = ("", "none")


class NumaRequest(NamedTuple):
    """The NUMA request of a pod: the policy of its annotation, and CPUs by container."""

    policy: str
    containers: tuple[ContainerCpuRequest, ...]

    @property
    def requires_policy(self) -> bool:
        return self.policy not in _NO_POLICY


class NumaRejection(NamedTuple):
    """Reason why a node is rejected. As upstream, the code is Error for nodes without a matching CPU manager."""

    reason: str
    code: Code = Code.ERROR


@dataclass(slots=True)
class NumaNode:
    """Topology of one node, and the bit mask of its free CPUs; None if the report has no CPUs."""

    report: Numatopology
    topology: NumaTopology
    free: int | None

    def update_report(self, report: Numatopology, topology: NumaTopology) -> None:
        """Store a new report.

        A report with at least as many free CPUs as the last one is trusted. A report with fewer is trusted only if it
        has at most as many as assumed; otherwise it does not include pods that were bound in the meantime.
        """
        previous, reported = _read_report(self.report), _read_report(report)
        is_trusted = previous is not None and previous.bit_count() <= (reported or 0).bit_count()
        if is_trusted or self.free is None or (reported is not None and self.free.bit_count() >= reported.bit_count()):
            self.free = reported
        self.report, self.topology = report, topology


class NumaNodes:
    """State that outlives sessions: nodes by name, and the distinct topologies among them."""

    def __init__(self) -> None:
        self.nodes: dict[str, NumaNode] = {}
        self._topologies: dict[bytes, NumaTopology] = {}
        self._revision = -1

    def refresh(self, catalog: Catalog) -> None:
        revision = catalog.revision(Numatopology)
        if revision == self._revision:
            return
        self._revision = revision
        reports = {report.metadata.name: report for report in catalog.table(Numatopology).values()}
        self.nodes = {name: node for name, node in self.nodes.items() if name in reports}
        for name, report in reports.items():
            node = self.nodes.get(name)
            if node is None:
                self.nodes[name] = NumaNode(report, self._topology_for(report), _read_report(report))
            elif node.report is not report:
                node.update_report(report, self._topology_for(report))
        used = {id(node.topology) for node in self.nodes.values()}
        self._topologies = {key: topology for key, topology in self._topologies.items() if id(topology) in used}

    def _topology_for(self, report: Numatopology) -> NumaTopology:
        spec = report.spec
        key = msgspec.json.encode((spec.policies, spec.res_reserved, spec.cpu_detail), order="sorted")
        found = self._topologies.get(key)
        if found is None:
            found = self._topologies[key] = NumaTopology(spec)
        return found


class NumaAwarePlugin:
    """Places Guaranteed pods where their CPUs fit the node's topology policy, on as few NUMA nodes as possible."""

    name = "numa-aware"
    takes: ClassVar[tuple[Argument, ...]] = (Argument("weight", int, 1),)

    def __init__(self, arguments: Arguments, numa_nodes: NumaNodes | None = None) -> None:
        self._weight = arguments.get_int("weight", 1)
        self._numa_nodes = numa_nodes or NumaNodes()
        self._requests: dict[str, NumaRequest | None] = {}
        self._rows: list[tuple[NumaTopology, int | None] | None] = []  # topology and free CPUs of each row
        self._placed: dict[str, tuple[Task, dict[str, int]]] = {}  # tasks of this session and their CPUs by node
        self._previously_placed: set[str] = set()  # tasks that had a node before the session

    @classmethod
    def factory(cls, arguments: Arguments, handle: BatchHandle) -> NumaAwarePlugin:
        return cls(arguments, handle.keep(cls.name, NumaNodes))

    def on_session_open(self, session: Session) -> None:
        self._numa_nodes.refresh(session.catalog)
        self._index = session.snapshot.nodes.index
        self._rows = [None] * len(session.nodes)
        for name, node in self._numa_nodes.nodes.items():
            row = self._index.get(name)
            if row is not None:
                self._rows[row] = (node.topology, node.free)
        session.add_predicate_nodes_fn(self.name, self._reject, signature=self._signature, depends_on=ROW_LOCAL)
        if any(PREDICATE.is_enabled_for(each) for tier in session.tiers for each in tier if each.name == self.name):
            # As upstream, scores and counts need the results of the predicate.
            session.add_batch_node_order_nodes_fn(self.name, self._score, signature=self._signature)
            session.add_event_handler(self.name, allocate=self._on_allocate, deallocate=self._on_deallocate)

    def on_session_close(self, session: Session) -> None:  # noqa: ARG002
        """Subtract the CPUs of pods that are being bound, for later sessions."""
        for task, assigned in self._placed.values():
            node = self._numa_nodes.nodes.get(task.node_name)
            if task.status is TaskStatus.BINDING and node is not None and node.free is not None:
                node.free &= ~assigned.get(task.node_name, 0)

    # Requests

    def _request_of(self, task: Task) -> NumaRequest | None:
        """The NUMA request of a task; None if the pod is not Guaranteed."""
        if task.uid not in self._requests:
            self._requests[task.uid] = _read_request(task)
        return self._requests[task.uid]

    def _signature(self, task: Task) -> NumaRequest | tuple[()]:
        return self._request_of(task) or ()

    def _fit_on_row(self, request: NumaRequest, row: int) -> int | NumaRejection | None:
        """The CPUs that the row would assign, or a rejection; None if CPUs do not matter for this pod and row."""
        found = self._rows[row]
        if found is None:
            return NumaRejection(NO_INFO) if request.requires_policy else None
        topology, free = found
        if topology.manager != STATIC:
            return NumaRejection(NOT_STATIC) if request.requires_policy else None
        if not request.requires_policy:
            if topology.policy in _NO_POLICY:
                return None
        elif request.policy != topology.policy:
            return NumaRejection(f"task topology policy[{request.policy}] is different with node[{topology.policy}]")
        elif not free:
            return NumaRejection(NO_CPUS)
        assigned = topology.assign(free, request.containers)
        if isinstance(assigned, str):
            return NumaRejection(f"container {assigned} cannot be assigned by numa", Code.UNRESOLVABLE)
        return assigned

    # Nodes

    def _reject(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:
        request = self._request_of(task)
        if request is None:
            return
        rows_by_rejection: dict[NumaRejection, list[int]] = {}
        for position, row in enumerate(nodes.rows.tolist()):
            result = self._fit_on_row(request, row)
            if isinstance(result, NumaRejection):
                rows_by_rejection.setdefault(result, []).append(position)
        for rejection, positions in rows_by_rejection.items():
            mask = np.zeros(len(nodes), dtype=np.bool_)
            mask[positions] = True
            yield Rejection(mask, rejection.reason, code=rejection.code)

    def _score(self, task: Task, nodes: Nodes) -> FloatVector:
        """Fewer NUMA nodes score higher, for pods that require a policy."""
        request = self._request_of(task)
        if request is None or not request.requires_policy or not len(nodes):
            return np.zeros(len(nodes))
        counts = np.array([self._spread(request, row) for row in nodes.rows.tolist()], dtype=np.int64)
        scores = MAX_SCORE - MAX_SCORE * counts // max(int(counts.max()), 1)
        return (scores * self._weight).astype(np.float64)

    def _spread(self, request: NumaRequest, row: int) -> int:
        """Number of NUMA nodes over which the pod would be spread on this row."""
        found, assigned = self._rows[row], self._fit_on_row(request, row)
        return found[0].numa_nodes_of(assigned) if found is not None and isinstance(assigned, int) else 0

    # Events

    def _on_allocate(self, task: Task) -> None:
        request, row = self._request_of(task), self._index.get(task.node_name)
        if request is None or row is None or task.uid in self._previously_placed:
            return
        assigned = self._fit_on_row(request, row)
        _, by_node = self._placed.setdefault(task.uid, (task, {}))
        if isinstance(assigned, int):
            by_node[task.node_name] = assigned
            self._set_free(row, taken=assigned)

    def _on_deallocate(self, task: Task) -> None:
        row = self._index.get(task.node_name)
        placed = self._placed.get(task.uid)
        if placed is None:
            self._previously_placed.add(task.uid)
        elif row is not None:
            self._set_free(row, returned=placed[1].pop(task.node_name, 0))

    def _set_free(self, row: int, *, taken: int = 0, returned: int = 0) -> None:
        found = self._rows[row]
        if found is not None and found[1] is not None:
            self._rows[row] = (found[0], (found[1] | returned) & ~taken)


def _read_request(task: Task) -> NumaRequest | None:
    if qos_of(task.pod) is not Qos.GUARANTEED:
        return None
    containers = tuple(ContainerCpuRequest(each.name, _whole_cpus(each)) for each in task.pod.spec.containers)
    return NumaRequest(task.pod.metadata.annotations.get(POLICY, ""), containers)


def _whole_cpus(container: Container) -> int:
    """Exclusive CPUs of the container; 0 if it requests a fraction."""
    quantity = parse_quantity(container.resources.requests.get(CPU, "0"))
    return quantity.value() if quantity.value() * 1000 == quantity.milli_value() else 0


def _read_report(report: Numatopology) -> int | None:
    cpus = report.spec.numares.get(CPU)
    return None if cpus is None else parse_cpus(cpus.allocatable)
