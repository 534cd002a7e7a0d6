"""The `nodegroup` plugin: restricts the tasks of a queue to groups of nodes.

The label `volcano.sh/nodegroup-name` defines the group of a node. The affinity of a queue lists required, preferred and
forbidden groups. As upstream, a queue with only forbidden groups cannot use any other group either. The result depends
on the queue and the node label only. Cost: one lookup table over the groups per call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.evaluation.node_points import NODE_STATIC
from bayplan.batch.model.nodes import FloatVector, Nodes
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.status import Code
from bayplan.objects.volcano.types import NodeGroupAffinity, QueueAffinity

GROUP_LABEL = "volcano.sh/nodegroup-name"
ROOT_QUEUE = "root"
BASE_SCORE = 100.0
NO_LABEL = "node group label not found"
NO_AFFINITY = "node group affinity not specified"
UNSATISFIED = "node does not satisfy the node group affinity"

_NONE = NodeGroupAffinity()


@dataclass(frozen=True, slots=True)
class QueueGroupAffinity:
    affinity: NodeGroupAffinity
    anti_affinity: NodeGroupAffinity

    @classmethod
    def of(cls, affinity: QueueAffinity) -> QueueGroupAffinity:
        return cls(affinity.node_group_affinity or _NONE, affinity.node_group_anti_affinity or _NONE)

    def __bool__(self) -> bool:
        return any(
            (self.affinity.required, self.affinity.preferred, self.anti_affinity.required, self.anti_affinity.preferred)
        )

    def allow(self, group: str) -> bool:
        if group in self.anti_affinity.preferred:
            return True
        return group not in self.anti_affinity.required and group in (*self.affinity.required, *self.affinity.preferred)

    def score(self, group: str, *, ordered: bool) -> float:
        if group in self.anti_affinity.preferred:
            return -1.0
        score = BASE_SCORE if group in self.affinity.required else 0.0
        if group in self.affinity.preferred:
            score += self._rank(group) if ordered else 0.5 * BASE_SCORE
        return score

    def _rank(self, group: str) -> float:
        """Half of BASE_SCORE for the first preferred group, and less for each following one."""
        rank_by_group = {name: rank for rank, name in enumerate(self.affinity.preferred)}
        return 0.5 * BASE_SCORE * (len(rank_by_group) - rank_by_group[group]) / len(rank_by_group)


class NodeGroupPlugin:
    """Filters and scores nodes by the node group affinity of the task's queue."""

    name = "nodegroup"
    takes: ClassVar[tuple[Argument, ...]] = (
        Argument("strict", bool, True),
        Argument("enablePreferredOrder", bool, False),
    )

    def __init__(self, arguments: Arguments) -> None:
        self._strict = arguments.get_bool("strict", True)
        self._ordered = arguments.get_bool("enablePreferredOrder", False)

    def on_session_open(self, session: Session) -> None:
        self._session = session
        self._affinities = _affinity_by_queue(session, inherit=session.hierarchy_enabled(self.name))
        labels = [node.labels.get(GROUP_LABEL) for node in session.nodes]
        self._groups = sorted({label for label in labels if label is not None})
        numbers = {group: number for number, group in enumerate(self._groups)}
        self._group_of = np.array([-1 if label is None else numbers[label] for label in labels], dtype=np.intp)
        session.add_predicate_nodes_fn(self.name, self._reject, signature=self._queue, depends_on=NODE_STATIC)
        session.add_node_order_nodes_fn(self.name, self._score, signature=self._queue, depends_on=NODE_STATIC)

    def _queue(self, task: Task) -> tuple[str, str]:
        """Signature: the task's queue. For a task without a job, the job name, because the rejection contains it."""
        job = self._session.job_of(task)
        return (job.queue, "") if job is not None else ("", task.job)

    def _reject(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:
        groups = self._group_of[nodes.rows]
        queue, orphan = self._queue(task)
        if orphan:
            everywhere = np.ones(len(nodes), dtype=np.bool_)
            yield Rejection(everywhere, f"job {orphan} not found in session", code=Code.ERROR)
            return
        affinity = self._affinities.get(queue)
        unlabelled = groups < 0
        if self._strict or affinity:
            yield Rejection(unlabelled, NO_LABEL, resolvable=False)
        if not affinity:
            yield Rejection(~unlabelled, NO_AFFINITY, resolvable=False)
            return
        allowed = np.array([*(affinity.allow(group) for group in self._groups), True])  # last entry: no group
        yield Rejection(~allowed[groups], UNSATISFIED, resolvable=False)

    def _score(self, task: Task, nodes: Nodes) -> FloatVector:
        affinity = self._affinities.get(self._queue(task)[0])
        if affinity is None:
            return np.zeros(len(nodes))
        scores = np.array([*(affinity.score(group, ordered=self._ordered) for group in self._groups), 0.0])
        return scores[self._group_of[nodes.rows]]


def _affinity_by_queue(session: Session, *, inherit: bool) -> dict[str, QueueGroupAffinity]:
    """The affinity of each queue. If inheritance is on, a queue without one uses that of its nearest ancestor."""
    own = {
        name: QueueGroupAffinity.of(queue.queue.spec.affinity)
        for name, queue in session.queues.items()
        if queue.queue.spec.affinity is not None
    }
    if not inherit:
        return own
    found = {}
    for name in session.queues:
        source = next((each for each in _queue_ancestors(session, name) if each in own), None)
        if source is not None:
            found[name] = own[source]
    return found


def _queue_ancestors(session: Session, name: str) -> Iterator[str]:
    """The queue and its ancestors; a cycle is walked once."""
    seen: set[str] = set()
    while name in session.queues and name not in seen:
        yield name
        seen.add(name)
        if name == ROOT_QUEUE:
            return
        name = session.queues[name].parent or ROOT_QUEUE
