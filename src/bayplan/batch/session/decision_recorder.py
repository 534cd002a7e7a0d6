"""Decision records: noted when a node is chosen, recorded when the task is bound.

In between, the rest of the gang is placed, or a trial is undone: a choice without a bind leaves no record. Called by
the session for every task that finds a node. Cost: one small record for each.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from bayplan.batch.model.tasks import Task
from bayplan.clock import Clock
from bayplan.telemetry.decisions import FLOATS, MAX_RECORD_BYTES, NO_RANKING, DecisionRecord, DecisionRing, Ranking

_MAX_PENDING_CHOICES = 50_000
"""Choices of one session kept until the bind. A network topology is tried hypernode by hypernode, which adds up."""
_RANKING_BYTES = MAX_RECORD_BYTES // 2


class DecisionRecorder:
    """The choices of one session."""

    def __init__(self, records: DecisionRing, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        # by uid and node: number of feasible nodes, and the ranking
        self._pending: dict[tuple[str, str], tuple[int, Ranking]] = {}

    def note_choice(self, task: Task, node: str, feasible: int, ranking: Ranking = NO_RANKING) -> None:
        """Note the choice of a node. A later choice for the same task is possible."""
        if len(self._pending) >= _MAX_PENDING_CHOICES:
            del self._pending[next(iter(self._pending))]
        self._pending[task.uid, node] = feasible, ranking

    def record_decision(self, task: Task, nodes: int) -> None:
        """Record that the task is bound to its node. `nodes` is the number of nodes in the cluster."""
        feasible, ranking = self._pending.pop((task.uid, task.node_name), (0, NO_RANKING))
        nominated = task.pod.status.nominated_node_name
        self._records.add(
            DecisionRecord(
                self._clock.now(),
                task.key,
                task.uid,
                task.pod.scheduler_name,
                task.node_name,
                "scheduled",
                "",
                nodes=nodes,
                feasible=feasible,
                ranking=ranking,
                nominated=nominated if nominated == task.node_name else "",
            )
        )


def make_ranking(names: tuple[str, ...], plugins: tuple[str, ...], scores: Sequence[float]) -> Ranking:
    """The best nodes; `scores` holds each node's total, followed by the score of each plugin."""
    return Ranking.fit(_RANKING_BYTES, names, plugins, array(FLOATS, scores).tobytes(), FLOATS)
