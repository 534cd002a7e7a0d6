"""The `sla` plugin: bounds the waiting time of jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.model.jobs import Job
from bayplan.batch.session.combine_rules import Vote
from bayplan.batch.session.session import Session
from bayplan.codec.go_duration import DurationError, parse_duration

WAITING_TIME = "sla-waiting-time"


class SlaPlugin:
    """Orders jobs by deadline. After its deadline a job is admitted and keeps its reservations as pipelined."""

    name = "sla"
    takes: ClassVar[tuple[Argument, ...]] = (Argument(WAITING_TIME, timedelta),)

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self._default_waiting_time_s = self._read_waiting_time()

    def on_session_open(self, session: Session) -> None:
        self._now = session.clock.now()
        session.add_job_order_fn(self.name, self._earlier_first)
        session.add_job_enqueueable_fn(self.name, self._vote)
        session.add_job_pipelined_fn(self.name, self._vote)

    def _read_waiting_time(self) -> float | None:
        """The waiting time of jobs without one of their own."""
        text = self.arguments.get_str(WAITING_TIME)
        if not text:
            return None
        try:
            seconds = parse_duration(text).seconds
        except DurationError as fault:
            self.arguments.warn(f"{WAITING_TIME}: {fault}; write it like 1h30m")
            return None
        if seconds <= 0:
            self.arguments.warn(f"{WAITING_TIME} {text} is not above zero and is ignored; write it like 1h30m")
            return None
        return seconds

    def _deadline(self, job: Job) -> datetime | None:
        seconds = job.waiting_time_s if job.waiting_time_s is not None else self._default_waiting_time_s
        return None if seconds is None else job.created + timedelta(seconds=seconds)

    def _earlier_first(self, left: Job, right: Job) -> int:
        left_deadline, right_deadline = self._deadline(left), self._deadline(right)
        if left_deadline is None or right_deadline is None:
            return (left_deadline is None) - (right_deadline is None)
        return (left_deadline > right_deadline) - (left_deadline < right_deadline)

    def _vote(self, job: Job) -> Vote:
        deadline = self._deadline(job)
        return Vote.ABSTAIN if deadline is None or self._now < deadline else Vote.PERMIT
