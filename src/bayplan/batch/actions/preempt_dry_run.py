"""Dry run of preemption: finds the node whose victims cost least, by simulating each candidate node.

This is kube-scheduler's algorithm on Volcano's terms. Victims are removed until the task fits. Then they are reprieved
one by one, the most important first, as long as the task still fits. The session is not changed.

Cost: one simulation per node, with a few steps per victim. The search stops after the requested number of nodes.
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

_PRIORITY_OFFSET = 2**31  # makes every term positive, so that each additional victim increases the sum


@dataclass(frozen=True, slots=True)
class PreemptionCandidate:
    """A node and its victims."""

    node: Node
    victims: list[Task]


class PreemptionDryRun:
    """The search for one task."""

    def __init__(self, session: Session, task: Task, queue: Queue, victims_on_row: Callable[[int], list[Task]]) -> None:
        self._session = session
        self._task = task
        self._queue = queue
        self._victims_on_row = victims_on_row

    def best(self, candidates: BoolVector, within: BoolVector, wanted: int) -> PreemptionCandidate | None:
        """Return the best of the first `wanted` possible nodes; only rows in `within` are simulated."""
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
        """Position at which the search begins: the node that the last search chose, else a random one."""
        last = self._session.previous_row(self._task)
        found = np.flatnonzero(rows == last) if last is not None else rows[:0]
        return int(found[0]) if len(found) else self._session.chance.randrange(len(rows))

    def _victims(self, node: Node) -> list[Task]:
        """The victims on the node; empty if evictions there do not help."""
        session, task = self._session, self._task
        possible = session.preemptable(task, self._victims_on_row(node.row))
        if not fits_without(task, node, possible):
            return []
        trial = Simulation(task, node)
        removed: list[Task] = []
        queue = session.victims_queue(possible, task)
        while queue:
            removed.append(queue.pop())
            if not self._remove(trial, removed[-1]):
                return []
            if self._fits(trial):
                break
        # As upstream, the fit is not tested again: if the queue never allows the task, every removed task is a victim.
        if not removed or session.simulate_predicate(trial) is not None:
            return []
        return self._reprieve(trial, removed)

    def _reprieve(self, trial: Simulation, removed: list[Task]) -> list[Task]:
        """Add victims back, the most important first. Return those that must go, the most important first."""
        victims: list[Task] = []
        for victim in reversed(removed):
            if not self._add(trial, victim):
                return []
            if not self._fits(trial):
                if not self._remove(trial, victim):
                    return []
                victims.append(victim)
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
    """Return the node with the lowest victims, then fewest, then the latest start; the first one of equals."""

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
    """Earliest start of the pods with the highest priority; a pod without a start time counts as started now."""
    highest = max(priority_of(pod) for pod in pods)
    return min(pod.status.start_time or now for pod in pods if priority_of(pod) == highest)


def priority_of(pod: Pod) -> int:
    return pod.spec.priority or 0
