"""Why was a task put on its node? Noted when the node is chosen, recorded when the task is bound.

Between the two lies the rest of a gang, and maybe a trial that is undone: a choice that comes to nothing leaves no
record. Asked by the session for every task that finds a node. Cost: five looks for the largest of all totals, and one
small record.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from bayplan.batch.model.nodes import FloatVector
from bayplan.batch.model.tasks import Task
from bayplan.clock import Clock
from bayplan.telemetry.decisions import (
    BEST_NODES,
    FLOATS,
    MAX_RECORD_BYTES,
    NO_RANKING,
    DecisionRecord,
    DecisionRing,
    Ranking,
)

_MAX_PENDING_CHOICES = 50_000
"""So many choices of one session are kept until they are bound: a topology is tried out place by place."""
_RANKING_BYTES = MAX_RECORD_BYTES // 2


def best_rows(totals: FloatVector, first: int) -> list[int]:
    """The rows with the highest totals, `first` at their head, none that is minus infinity. Eats the totals."""
    found = [first]
    totals[first] = -np.inf
    for _ in range(min(BEST_NODES, len(totals)) - 1):
        row = int(totals.argmax())
        if totals.item(row) == -np.inf:
            break
        found.append(row)
        totals[row] = -np.inf
    return found


class DecisionRecorder:
    """The choices of one session."""

    def __init__(self, records: DecisionRing, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._noted: dict[tuple[str, str], tuple[int, Ranking]] = {}  # by uid and node: of how many, and the best

    def note_choice(self, task: Task, node: str, feasible: int, ranking: Ranking = NO_RANKING) -> None:
        """A node was chosen among so many; another one of the same task may be chosen yet."""
        if len(self._noted) >= _MAX_PENDING_CHOICES:
            del self._noted[next(iter(self._noted))]
        self._noted[task.uid, node] = feasible, ranking

    def record_decision(self, task: Task, nodes: int) -> None:
        """The task is bound to its node, of so many that there are."""
        feasible, ranking = self._noted.pop((task.uid, task.node_name), (0, NO_RANKING))
        kept = task.pod.status.nominated_node_name
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
                nominated=kept if kept == task.node_name else "",
            )
        )


def make_ranking(names: tuple[str, ...], plugins: tuple[str, ...], scores: Sequence[float]) -> Ranking:
    """The best nodes; `scores`: of each its total, then what each plugin gave to it."""
    return Ranking.fit(_RANKING_BYTES, names, plugins, array(FLOATS, scores).tobytes(), FLOATS)
