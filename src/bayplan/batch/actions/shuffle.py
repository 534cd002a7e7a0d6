"""Evicts what plugins say should run elsewhere, or not now: to level nodes, or because lent hours are over."""

from __future__ import annotations

from typing import ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.session.session import Session

REASON = "shuffle"


class Shuffle:
    """Asks for victims among all running tasks and evicts them at once."""

    name = "shuffle"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def initialize(self) -> None:
        """Nothing to prepare."""

    def uninitialize(self) -> None:
        """Nothing to give back."""

    def execute(self, session: Session) -> None:
        running = [task for job in session.jobs.values() for task in job.with_status(TaskStatus.RUNNING)]
        for victim in session.victim_tasks(running):
            session.evict(victim, REASON)
