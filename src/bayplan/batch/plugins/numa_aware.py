"""Does a pod that owns its CPUs get them from NUMA nodes that are close together, and where from the fewest?

Concerns pods of the class Guaranteed, and nodes whose resource exporter has written a Numatopology with a static CPU
manager. Which CPUs a pod would get is worked out as the node will do it (`batch.numa`); what is given away in a session
is taken from what is free on the node, and for bound pods it stays taken until the node reports anew.

Cost: a lookup a node for nodes of the same make and state; the working out only once for all of them.
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
    """What a pod asks of NUMA: the policy of its annotation, and CPUs by container."""

    policy: str
    containers: tuple[ContainerCpuRequest, ...]

    @property
    def requires_policy(self) -> bool:
        """Whether the pod insists on nodes with its policy."""
        return self.policy not in _NO_POLICY


class NumaRejection(NamedTuple):
    """Why a node is not fit for a pod. The code Error is upstream's for nodes of the wrong kind."""

    reason: str
    code: Code = Code.ERROR


@dataclass(slots=True)
class NumaNode:
    """One node: how it is built, and which of its CPUs are free. None: it says nothing of CPUs."""

    report: Numatopology
    topology: NumaTopology
    free: int | None

    def update_report(self, report: Numatopology, topology: NumaTopology) -> None:
        """A new report. With as many free CPUs as the last one, or more, it is the truth; with fewer, only if they
        are not more than what is thought free: else pods that were bound meanwhile are not in it yet."""
        before, now = _read_report(self.report), _read_report(report)
        grown = before is not None and before.bit_count() <= (now or 0).bit_count()
        if grown or self.free is None or (now is not None and self.free.bit_count() >= now.bit_count()):
            self.free = now
        self.report, self.topology = report, topology


class NumaNodes:
    """What outlives sessions: nodes by name, and the makes of nodes among them."""

    def __init__(self) -> None:
        self.nodes: dict[str, NumaNode] = {}
        self._makes: dict[bytes, NumaTopology] = {}
        self._revision = -1

    def refresh(self, catalog: Catalog) -> None:
        revision = catalog.revision(Numatopology)
        if revision == self._revision:
            return
        self._revision = revision
        reports = {report.metadata.name: report for report in catalog.table(Numatopology).values()}
        self.nodes = {name: node for name, node in self.nodes.items() if name in reports}
        for name, report in reports.items():
            known = self.nodes.get(name)
            if known is None:
                self.nodes[name] = NumaNode(report, self._make(report), _read_report(report))
            elif known.report is not report:
                known.update_report(report, self._make(report))
        used = {id(node.topology) for node in self.nodes.values()}
        self._makes = {key: make for key, make in self._makes.items() if id(make) in used}

    def _make(self, report: Numatopology) -> NumaTopology:
        spec = report.spec
        key = msgspec.json.encode((spec.policies, spec.res_reserved, spec.cpu_detail), order="sorted")
        found = self._makes.get(key)
        if found is None:
            found = self._makes[key] = NumaTopology(spec)
        return found


class NumaAwarePlugin:
    """Places Guaranteed pods where their CPUs fit the node's topology policy, on as few NUMA nodes as possible."""

    name = "numa-aware"
    takes: ClassVar[tuple[Argument, ...]] = (Argument("weight", int, 1),)

    def __init__(self, arguments: Arguments, memory: NumaNodes | None = None) -> None:
        self._weight = arguments.get_int("weight", 1)
        self._memory = memory or NumaNodes()
        self._wanted: dict[str, NumaRequest | None] = {}
        self._rows: list[tuple[NumaTopology, int | None] | None] = []  # how each row is built, and what is free there
        self._placed: dict[str, tuple[Task, dict[str, int]]] = {}  # tasks of this session and their CPUs by node
        self._previously_placed: set[str] = set()  # tasks that had their place before

    @classmethod
    def factory(cls, arguments: Arguments, handle: BatchHandle) -> NumaAwarePlugin:
        return cls(arguments, handle.keep(cls.name, NumaNodes))

    def on_session_open(self, session: Session) -> None:
        self._memory.refresh(session.catalog)
        self._index = session.snapshot.nodes.index
        self._rows = [None] * len(session.nodes)
        for name, node in self._memory.nodes.items():
            row = self._index.get(name)
            if row is not None:
                self._rows[row] = (node.topology, node.free)
        session.add_predicate_nodes_fn(self.name, self._reject, signature=self._signature, depends_on=ROW_LOCAL)
        if any(PREDICATE.is_enabled_for(each) for tier in session.tiers for each in tier if each.name == self.name):
            # Upstream scores and counts what the predicate has found, so nothing where that is switched off.
            session.add_batch_node_order_nodes_fn(self.name, self._score, signature=self._signature)
            session.add_event_handler(self.name, allocate=self._allocated, deallocate=self._deallocated)

    def on_session_close(self, session: Session) -> None:  # noqa: ARG002
        """The CPUs of pods that are being bound are gone for later sessions, too."""
        for task, given in self._placed.values():
            node = self._memory.nodes.get(task.node_name)
            if task.status is TaskStatus.BINDING and node is not None and node.free is not None:
                node.free &= ~given.get(task.node_name, 0)

    # what a task wants ------------------------------------------------------------------------------------------

    def _request_of(self, task: Task) -> NumaRequest | None:
        """Nothing, unless the pod is Guaranteed."""
        if task.uid not in self._wanted:
            self._wanted[task.uid] = _read_request(task)
        return self._wanted[task.uid]

    def _signature(self, task: Task) -> NumaRequest | tuple[()]:
        return self._request_of(task) or ()

    def _fit_on_row(self, wanted: NumaRequest, row: int) -> int | NumaRejection | None:
        """The CPUs that the row would give, or why it gives none; None where nobody looks at CPUs."""
        found = self._rows[row]
        if found is None:
            return NumaRejection(NO_INFO) if wanted.requires_policy else None
        topology, free = found
        if topology.manager != STATIC:
            return NumaRejection(NOT_STATIC) if wanted.requires_policy else None
        if not wanted.requires_policy:
            if topology.policy in _NO_POLICY:
                return None
        elif wanted.policy != topology.policy:
            return NumaRejection(f"task topology policy[{wanted.policy}] is different with node[{topology.policy}]")
        elif not free:
            return NumaRejection(NO_CPUS)
        given = topology.assign(free, wanted.containers)
        if isinstance(given, str):
            return NumaRejection(f"container {given} cannot be assigned by numa", Code.UNRESOLVABLE)
        return given

    # nodes ------------------------------------------------------------------------------------------------------

    def _reject(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:
        wanted = self._request_of(task)
        if wanted is None:
            return
        refused: dict[NumaRejection, list[int]] = {}
        for position, row in enumerate(nodes.rows.tolist()):
            verdict = self._fit_on_row(wanted, row)
            if isinstance(verdict, NumaRejection):
                refused.setdefault(verdict, []).append(position)
        for refusal, positions in refused.items():
            mask = np.zeros(len(nodes), dtype=np.bool_)
            mask[positions] = True
            yield Rejection(mask, refusal.reason, code=refusal.code)

    def _score(self, task: Task, nodes: Nodes) -> FloatVector:
        """The fewer NUMA nodes, the better, for pods that insist on a policy."""
        wanted = self._request_of(task)
        if wanted is None or not wanted.requires_policy or not len(nodes):
            return np.zeros(len(nodes))
        counts = np.array([self._spread(wanted, row) for row in nodes.rows.tolist()], dtype=np.int64)
        scores = MAX_SCORE - MAX_SCORE * counts // max(int(counts.max()), 1)
        return (scores * self._weight).astype(np.float64)

    def _spread(self, wanted: NumaRequest, row: int) -> int:
        """Over how many NUMA nodes the pod would be spread on this row."""
        found, given = self._rows[row], self._fit_on_row(wanted, row)
        return found[0].numa_nodes_of(given) if found is not None and isinstance(given, int) else 0

    # events -----------------------------------------------------------------------------------------------------

    def _allocated(self, task: Task) -> None:
        wanted, row = self._request_of(task), self._index.get(task.node_name)
        if wanted is None or row is None or task.uid in self._previously_placed:
            return
        given = self._fit_on_row(wanted, row)
        _, by_node = self._placed.setdefault(task.uid, (task, {}))
        if isinstance(given, int):
            by_node[task.node_name] = given
            self._set_free(row, taken=given)

    def _deallocated(self, task: Task) -> None:
        row = self._index.get(task.node_name)
        placed = self._placed.get(task.uid)
        if placed is None:
            self._previously_placed.add(task.uid)
        elif row is not None:
            self._set_free(row, back=placed[1].pop(task.node_name, 0))

    def _set_free(self, row: int, *, taken: int = 0, back: int = 0) -> None:
        found = self._rows[row]
        if found is not None and found[1] is not None:
            self._rows[row] = (found[0], (found[1] | back) & ~taken)


def _read_request(task: Task) -> NumaRequest | None:
    if qos_of(task.pod) is not Qos.GUARANTEED:
        return None
    containers = tuple(ContainerCpuRequest(each.name, _whole_cpus(each)) for each in task.pod.spec.containers)
    return NumaRequest(task.pod.metadata.annotations.get(POLICY, ""), containers)


def _whole_cpus(container: Container) -> int:
    """CPUs for the container alone; none where it asks for a fraction."""
    asked = parse_quantity(container.resources.requests.get(CPU, "0"))
    return asked.value() if asked.value() * 1000 == asked.milli_value() else 0


def _read_report(report: Numatopology) -> int | None:
    cpus = report.spec.numares.get(CPU)
    return None if cpus is None else parse_cpus(cpus.allocatable)
