"""The `overcommit` plugin: limits the jobs that are Inqueue to what the cluster could run soon."""

from __future__ import annotations

from typing import ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import Nodes
from bayplan.batch.queue_accounts.job_reservations import insufficient_message, reserved_resources
from bayplan.batch.session.combine_rules import Vote
from bayplan.batch.session.session import Session

FACTOR = "overcommit-factor"
DEFAULT_FACTOR = 1.2


class OvercommitPlugin:
    """Admits jobs while their minimums fit the idle resources of the cluster times `overcommit-factor`."""

    name = "overcommit"
    takes: ClassVar[tuple[Argument, ...]] = (Argument(FACTOR, float, DEFAULT_FACTOR),)

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        self._session = session
        self._idle = session.total_resource.clone().multi(self._factor()).sub_unchecked(_total_usage(session.nodes))
        self._inqueue = Amounts()
        for job in session.jobs.values():
            if job.min_resources_given is not None:
                self._inqueue.add(reserved_resources(job))
        session.add_job_enqueueable_fn(self.name, self._enqueueable)
        session.add_job_enqueued_fn(self.name, self._on_enqueued)

    def _factor(self) -> float:
        factor = self.arguments.get_float(FACTOR, DEFAULT_FACTOR)
        if factor < 1.0:
            self.arguments.warn(f"{FACTOR} {factor} is below 1; {DEFAULT_FACTOR} is used")
            return DEFAULT_FACTOR
        return factor

    def _enqueueable(self, job: Job) -> Vote:
        if job.min_resources_given is None:
            return Vote.PERMIT
        wanted = job.min_resources()
        names = self._inqueue.clone().add(wanted).requested_names_above(self._idle, wanted)
        if not names:
            return Vote.PERMIT
        text = insufficient_message("resource in cluster is overused", "overused", names)
        self._session.record_event(job, "Normal", "Unschedulable", text)
        return Vote.REJECT

    def _on_enqueued(self, job: Job) -> None:
        if job.min_resources_given is not None:
            self._inqueue.add(job.deduct_gated(job.min_resources()))


def _total_usage(nodes: Nodes) -> Amounts:
    """What all pods use in total, including pods of other schedulers."""
    cpu, memory, *scalars = nodes.accounts.dimensions.names
    scalar_amounts = {name: float(nodes.used(name).sum()) for name in scalars}
    return Amounts(float(nodes.used(cpu).sum()), float(nodes.used(memory).sum()), scalar_amounts)
