"""The `pdb` plugin: allows as victims only tasks whose disruption budgets permit it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.config.volcano_quirk_fixes import QuirkFix
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.batch.session.victim_hints import VictimDependence, VictimHints
from bayplan.framework.preemption.victims import CompiledBudget, compile_budgets


class PdbPlugin:
    """Selects victims among the candidates, in the given order, as long as every matching budget has disruptions left.

    Two upstream quirks are kept; a quirk fix disables the first. Pods without labels, which no budget covers, are
    never victims. For the action `shuffle` the plugin proposes every running task that its budgets permit.
    """

    name = "pdb"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        self._allows_unlabelled = QuirkFix.PDB_UNLABELLED in session.quirk_fixes
        self._budgets = compile_budgets(session.catalog.pod_disruption_budgets.values())
        session.add_victim_tasks_fns(self.name, [self._filter_allowed])
        session.add_reclaimable_fn(self.name, self._allowed_victims, VictimHints(VictimDependence.JOBS))
        session.add_preemptable_fn(self.name, self._allowed_victims, VictimHints(VictimDependence.JOBS))

    def _allowed_victims(self, evictor: Task, candidates: Sequence[Task]) -> list[Task]:  # noqa: ARG002
        return self._filter_allowed(candidates)

    def _filter_allowed(self, candidates: Sequence[Task]) -> list[Task]:
        remaining = {budget: budget.allowed for budget in self._budgets}
        unlabelled = self._allows_unlabelled
        return [task for task in candidates if (unlabelled or task.pod.labels) and _use_disruption(remaining, task)]


def _use_disruption(remaining: dict[CompiledBudget, int], task: Task) -> bool:
    """Subtract one disruption from every budget that covers the task. True if all of them had one left."""
    allowed = True
    for budget in remaining:
        if budget.covers(task.pod):
            remaining[budget] -= 1
            allowed = allowed and remaining[budget] >= 0
    return allowed
