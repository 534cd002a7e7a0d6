"""The `shuffle` action: evicts the running tasks that plugins select, to balance nodes or when revocable hours end."""

from __future__ import annotations

from typing import ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.session.session import Session

REASON = "shuffle"


class Shuffle:
    """Collects victims among all running tasks and evicts them immediately, without a statement."""

    name = "shuffle"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def initialize(self) -> None:
        """Do nothing."""

    def uninitialize(self) -> None:
        """Do nothing."""

    def execute(self, session: Session) -> None:
        running = [task for job in session.jobs.values() for task in job.with_status(TaskStatus.RUNNING)]
        for victim in session.victim_tasks(running):
            session.evict(victim, REASON)
