"""Which groups of nodes belong to a task's queue?

A node is of the group that its label `volcano.sh/nodegroup-name` says; a queue says with which groups it wants to be
(required or preferred) and from which it stays away. A queue that names only groups to stay away from can use no other
group either, as upstream has it. Answers depend on the queue and the node's label alone: one table of groups a queue.
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
    """What a queue says about groups."""

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
        """Half the base for the first of the preferred groups, and less for each that follows."""
        places = {name: place for place, name in enumerate(self.affinity.preferred)}
        return 0.5 * BASE_SCORE * (len(places) - places[group]) / len(places)


class NodeGroupPlugin:
    """Sends the tasks of a queue to the groups of nodes that it asks for."""

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
        self._wishes = _affinity_by_queue(session, inherited=session.hierarchy_enabled(self.name))
        labels = [node.labels.get(GROUP_LABEL) for node in session.nodes]
        self._groups = sorted({label for label in labels if label is not None})
        numbers = {group: number for number, group in enumerate(self._groups)}
        self._group_of = np.array([-1 if label is None else numbers[label] for label in labels], dtype=np.intp)
        session.add_predicate_nodes_fn(self.name, self._reject, signature=self._queue, depends_on=NODE_STATIC)
        session.add_node_order_nodes_fn(self.name, self._score, signature=self._queue, depends_on=NODE_STATIC)

    def _queue(self, task: Task) -> tuple[str, str]:
        """What answers depend on: the queue; for a task whose job is gone, the job, which is named in the answer."""
        job = self._session.job_of(task)
        return (job.queue, "") if job is not None else ("", task.job)

    def _reject(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:
        groups = self._group_of[nodes.rows]
        queue, orphan = self._queue(task)
        if orphan:
            everywhere = np.ones(len(nodes), dtype=np.bool_)
            yield Rejection(everywhere, f"job {orphan} not found in session", code=Code.ERROR)
            return
        wishes = self._wishes.get(queue)
        unlabelled = groups < 0
        if self._strict or wishes:
            yield Rejection(unlabelled, NO_LABEL, resolvable=False)
        if not wishes:
            yield Rejection(~unlabelled, NO_AFFINITY, resolvable=False)
            return
        allowed = np.array([*(wishes.allow(group) for group in self._groups), True])  # the last: no group
        yield Rejection(~allowed[groups], UNSATISFIED, resolvable=False)

    def _score(self, task: Task, nodes: Nodes) -> FloatVector:
        wishes = self._wishes.get(self._queue(task)[0])
        if wishes is None:
            return np.zeros(len(nodes))
        scores = np.array([*(wishes.score(group, ordered=self._ordered) for group in self._groups), 0.0])
        return scores[self._group_of[nodes.rows]]


def _affinity_by_queue(session: Session, *, inherited: bool) -> dict[str, QueueGroupAffinity]:
    """What each queue wishes; a queue that says nothing takes over what its nearest ancestor says, if that is on."""
    own = {
        name: QueueGroupAffinity.of(queue.queue.spec.affinity)
        for name, queue in session.queues.items()
        if queue.queue.spec.affinity is not None
    }
    if not inherited:
        return own
    found = {}
    for name in session.queues:
        speaker = next((each for each in _queue_ancestors(session, name) if each in own), None)
        if speaker is not None:
            found[name] = own[speaker]
    return found


def _queue_ancestors(session: Session, name: str) -> Iterator[str]:
    """A queue and those above it; a circle is walked once."""
    seen: set[str] = set()
    while name in session.queues and name not in seen:
        yield name
        seen.add(name)
        if name == ROOT_QUEUE:
            return
        name = session.queues[name].parent or ROOT_QUEUE
