"""Which node loses least if it is cleared for this task? Nodes are tried out one by one and compared by their victims.

What kube-scheduler does, on Volcano's terms: victims are removed until the task fits, then given back one by one, the
most important first, as long as it still fits. Nothing of this touches the session.

Cost: a simulation a node, each a few steps a victim. The search stops at as many nodes as are wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from bayplan.batch.actions.victim_search import fits_without
from bayplan.batch.model.nodes import Node
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.batch.session.simulation import Simulation
from bayplan.objects.core import Pod
from bayplan.snapshot import BoolVector, RowVector

_PRIORITY_OFFSET = 2**31  # keeps sums of priorities comparable: every victim more makes a sum larger


@dataclass(frozen=True, slots=True)
class PreemptionCandidate:
    """A node, and who must go."""

    node: Node
    victims: list[Task]


class PreemptionDryRun:
    """One task's search."""

    def __init__(self, session: Session, task: Task, queue: Queue, prey_on: Callable[[int], list[Task]]) -> None:
        self._session = session
        self._task = task
        self._queue = queue
        self._victims_on_row = prey_on

    def best(self, candidates: BoolVector, within: BoolVector, wanted: int) -> PreemptionCandidate | None:
        """The best of the first `wanted` nodes that can be cleared, from anywhere on; only those `within` can be."""
        rows = np.flatnonzero(candidates)
        start = self._start(rows)
        found: list[PreemptionCandidate] = []
        for row in np.roll(rows, -start).tolist():
            if len(found) >= wanted:
                break
            if within[row]:
                node = self._session.nodes.at_row(row)
                victims = self._victims(node)
                if victims:
                    found.append(PreemptionCandidate(node, victims))
        if not found:
            return None
        best = _pick_one_node(found, self._session.clock.now())
        self._session.last_choices.record(self._task.key, best.node.name)
        return best

    def _start(self, rows: RowVector) -> int:
        """Where in the rows the search begins: at the node that the last search chose, else anywhere."""
        last = self._session.previous_row(self._task)
        found = np.flatnonzero(rows == last) if last is not None else rows[:0]
        return int(found[0]) if len(found) else self._session.chance.randrange(len(rows))

    def _victims(self, node: Node) -> list[Task]:
        """Who must go from the node; nobody where it cannot be cleared."""
        session, task = self._session, self._task
        possible = session.preemptable(task, self._victims_on_row(node.row))
        if not fits_without(task, node, possible):
            return []
        trial = Simulation(task, node)
        removed: list[Task] = []
        waiting = session.victims_queue(possible, task)
        while waiting:
            removed.append(waiting.pop())
            if not self._remove(trial, removed[-1]):
                return []
            if self._fits(trial):
                break
        # Whether it fits is not asked here: where the queue never has room, everybody who was removed is a victim.
        if not removed or session.simulate_predicate(trial) is not None:
            return []
        return self._reprieve(trial, removed)

    def _reprieve(self, trial: Simulation, removed: list[Task]) -> list[Task]:
        """Who has to go after all, when the most important are given back first; those come first in it."""
        victims: list[Task] = []
        for each in reversed(removed):
            if not self._add(trial, each):
                return []
            if not self._fits(trial):
                if not self._remove(trial, each):
                    return []
                victims.append(each)
        return victims

    def _fits(self, trial: Simulation) -> bool:
        session = self._session
        return (
            session.simulate_allocatable(trial, self._queue)
            and trial.fits()
            and session.simulate_predicate(trial) is None
        )

    def _remove(self, trial: Simulation, task: Task) -> bool:
        if self._session.simulate_remove_task(trial, task) is not None:
            return False
        trial.remove(task)
        return True

    def _add(self, trial: Simulation, task: Task) -> bool:
        if self._session.simulate_add_task(trial, task) is not None:
            return False
        trial.add(task)
        return True


def _pick_one_node(candidates: list[PreemptionCandidate], now: datetime) -> PreemptionCandidate:
    """Lowest victims first, then fewest, then those that have run for the shortest time; the first of equals."""

    def cost(candidate: PreemptionCandidate) -> tuple[float, ...]:
        pods = [task.pod for task in candidate.victims]
        return (
            priority_of(pods[0]),
            sum(priority_of(pod) + _PRIORITY_OFFSET for pod in pods),
            len(pods),
            -_earliest_start(pods, now).timestamp(),
        )

    return min(candidates, key=cost)


def _earliest_start(pods: list[Pod], now: datetime) -> datetime:
    """When the first of the most important pods started; one that has not started yet starts now."""
    highest = max(priority_of(pod) for pod in pods)
    return min(pod.status.start_time or now for pod in pods if priority_of(pod) == highest)


def priority_of(pod: Pod) -> int:
    return pod.spec.priority or 0
