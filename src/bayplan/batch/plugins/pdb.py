"""May this pod go without breaking a disruption budget?"""

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
    """Names as victims the tasks whose budgets still allow it, in the order given.

    Upstream's corners are kept, the first unless it is mended: pods without labels, which no budget covers, are never
    named; and to the action `shuffle` it does not only veto, it proposes every running task that may go.
    """

    name = "pdb"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        self._names_unlabelled = QuirkFix.PDB_UNLABELLED in session.quirk_fixes
        self._budgets = compile_budgets(session.catalog.pod_disruption_budgets.values())
        session.add_victim_tasks_fns(self.name, [self._allowed])
        session.add_reclaimable_fn(self.name, self._allowed_victims, VictimHints(VictimDependence.JOBS))
        session.add_preemptable_fn(self.name, self._allowed_victims, VictimHints(VictimDependence.JOBS))

    def _allowed_victims(self, evictor: Task, candidates: Sequence[Task]) -> list[Task]:  # noqa: ARG002
        return self._allowed(candidates)

    def _allowed(self, candidates: Sequence[Task]) -> list[Task]:
        left = {budget: budget.allowed for budget in self._budgets}
        named = self._names_unlabelled
        return [task for task in candidates if (named or task.pod.labels) and _use_disruption(left, task)]


def _use_disruption(left: dict[CompiledBudget, int], task: Task) -> bool:
    """Count a disruption of the task against every budget that covers it; whether all of them had one left."""
    allowed = True
    for budget in left:
        if budget.covers(task.pod):
            left[budget] -= 1
            allowed = allowed and left[budget] >= 0
    return allowed
