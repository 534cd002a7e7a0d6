"""Base class of GPU pools that pods share, by node.

`deviceshare` creates one pool per session. The cards of a node are read at first use and then follow the session. Fit
results are cached per node and request until the node changes. Cost: some microseconds per node and distinct request,
once, and again after a change of the node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from bayplan.batch.model.nodes import FloatVector, Node, Nodes
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.batch.session.simulation import Simulation
from bayplan.framework.api.status import Status, error, unschedulable
from bayplan.snapshot import BoolVector

_STATUSES_WITHOUT_CARDS = (None, TaskStatus.RELEASING, TaskStatus.PIPELINED)

C = TypeVar("C")
R = TypeVar("R", bound=Hashable)


class CardFit(NamedTuple):
    """Result of a fit check: the rejection reason ("" if it fits) and the score."""

    reason: str
    score: float = 0.0


class CardPool(ABC, Generic[C, R]):
    """The cards of all nodes. C is the type of a node's cards, R that of a pod's request."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._cards: dict[int, C | None] = {}  # by row
        self._fits: dict[int, dict[R, CardFit]] = {}  # by row, until the row changes
        self._requests: dict[str, R | None] = {}  # by uid

    # Implemented by subclasses

    @abstractmethod
    def read_request(self, task: Task) -> R | None:
        """The request of the pod; None if this pool ignores it."""

    @abstractmethod
    def read_cards(self, node: Node) -> C | None:
        """The cards of a node without pods; None if it has none, which disables the check there."""

    @abstractmethod
    def copy_cards(self, cards: C) -> C: ...

    @abstractmethod
    def add_pod(self, cards: C, task: Task) -> None:
        """Count a pod on the cards that its annotation lists."""

    @abstractmethod
    def remove_pod(self, cards: C, task: Task) -> None: ...

    @abstractmethod
    def check_fit(self, cards: C, request: R, *, weighed: bool = True) -> CardFit:
        """Check whether the cards suffice. Changes nothing."""

    def last_score(self, cards: C) -> float:  # noqa: ARG002
        """The score of the last request that fitted these cards."""
        return 0.0

    @abstractmethod
    def assign_cards(self, cards: C, task: Task, request: R) -> dict[str, str] | None:
        """Assign cards. Returns annotations for the pod, an empty dict if it has cards already, None if the cards do
        not suffice."""

    @abstractmethod
    def unassign_cards(self, cards: C, task: Task) -> Iterable[str] | None:
        """Undo an assignment and return the annotations to remove. None: nothing is removed or undone."""

    # Queries

    def request(self, task: Task) -> R | None:
        if task.uid not in self._requests:
            self._requests[task.uid] = self.read_request(task)
        return self._requests[task.uid]

    def cards(self, row: int) -> C | None:
        if row not in self._cards:
            node = self._session.nodes.at_row(row)
            cards = self._cards[row] = self.read_cards(node)
            if cards is not None:
                for task in node.tasks.values():
                    if task.counted_status not in _STATUSES_WITHOUT_CARDS:
                        self.add_pod(cards, task)
        return self._cards[row]

    def fit_on_row(self, request: R, row: int) -> CardFit:
        """Whether the cards of a row suffice in their current state."""
        known = self._fits.setdefault(row, {})
        found = known.get(request)
        if found is None:
            cards = self.cards(row)
            found = known[request] = CardFit("") if cards is None else self.check_fit(cards, request)
        return found

    def scores(self, task: Task, nodes: Nodes) -> FloatVector:
        """The card scores of the nodes from their last fit check; 0 without one."""
        request = self.request(task)
        if request is None:
            return np.zeros(len(nodes))
        return np.array([self._known_score(request, row) for row in nodes.rows.tolist()], dtype=np.float64)

    def _known_score(self, request: R, row: int) -> float:
        known = self._fits.get(row, {}).get(request)
        if known is not None:
            return known.score
        cards = self.cards(row)
        return 0.0 if cards is None else self.last_score(cards)

    # DevicePool -------------------------------------------------------------------------------------------------

    def add_task(self, task: Task, node: Node) -> None:
        cards = self.cards(node.row)
        if cards is not None:
            self.add_pod(cards, task)
            self._mark_changed(node)

    def remove_task(self, task: Task, node: Node) -> None:
        cards = self.cards(node.row)
        if cards is not None:
            self.remove_pod(cards, task)
            self._mark_changed(node)

    def allocate(self, task: Task, node: Node) -> Status | None:
        request, cards = self.request(task), self.cards(node.row)
        if request is None or cards is None:
            return None
        annotations = self.assign_cards(cards, task, request)
        self._mark_changed(node)
        if annotations is None:
            return error(f"the node {node.name} can't place the pod {task.name} in ns {task.namespace}")
        if annotations:
            self._session.annotations.setdefault(task.key, {}).update(annotations)
        return None

    def release(self, task: Task, node: Node) -> bool:
        cards = self.cards(node.row)
        if self.request(task) is None or cards is None:
            return True
        removed_keys = self.unassign_cards(cards, task)
        if removed_keys is None:
            return False
        annotations = self._session.annotations.get(task.key, {})
        for key in removed_keys:
            annotations.pop(key, None)
        if not annotations:
            self._session.annotations.pop(task.key, None)
        self._mark_changed(node)
        return True

    def simulate(self, trial: Simulation) -> Status | None:
        """Whether the cards suffice without the pods that the trial removes."""
        request, cards = self.request(trial.task), self.cards(trial.node.row)
        if request is None or cards is None:
            return None
        cards = self.copy_cards(cards)
        for uid, task in trial.node.tasks.items():
            if uid not in trial.tasks and task.counted_status not in _STATUSES_WITHOUT_CARDS:
                self.remove_pod(cards, task)
        reason = self.check_fit(cards, request, weighed=False).reason
        return unschedulable(reason) if reason else None

    def queue_amounts(self, task: Task) -> Mapping[str, float]:  # noqa: ARG002
        return {}

    def _mark_changed(self, node: Node) -> None:
        self._fits.pop(node.row, None)
        self._session.changed_rows.append(node.row)


class CardPredicateResults(Generic[C, R]):
    """Fit results of a pool for every row, for one distinct request."""

    def __init__(self, pool: CardPool[C, R], count: int) -> None:
        self._pool = pool
        self._request: R | None = None
        self.rejected: BoolVector = np.zeros(count, dtype=np.bool_)
        self.unresolvable: BoolVector = np.zeros(count, dtype=np.bool_)  # always false: evicted pods release cards

    def refresh(self, task: Task, touched: Sequence[int] | None) -> bool:
        self._request = self._pool.request(task)
        if self._request is None:
            return False
        rows = range(len(self.rejected)) if touched is None else touched
        for row in rows:
            self.rejected[row] = bool(self._pool.fit_on_row(self._request, row).reason)
        return touched is None

    def statuses(self, row: int) -> tuple[Status, ...]:
        if self._request is None or not self.rejected[row]:
            return ()
        return (unschedulable(self._pool.fit_on_row(self._request, row).reason),)
