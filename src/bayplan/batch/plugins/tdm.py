"""The `tdm` (time division multiplexing) plugin: revocable nodes, which are available for some hours of the day.

The label `volcano.sh/revocable-zone` assigns a node to a zone. An argument such as
`tdm.revocable-zone.rz1: 10:00-21:00` sets the hours of a zone, in the local time of the scheduler. An upstream quirk is
kept unless its fix is on: hours that cross midnight begin today, so the zone counts as closed after midnight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

import numpy as np

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.config.volcano_quirk_fixes import QuirkFix
from bayplan.batch.evaluation.node_points import ROW_LOCAL, ScoredRows
from bayplan.batch.handle import BatchHandle
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import Nodes
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task, parse_int
from bayplan.batch.session.combine_rules import Vote
from bayplan.batch.session.session import Session
from bayplan.batch.session.victim_hints import VictimDependence, VictimHints
from bayplan.codec.go_duration import DurationError, parse_duration
from bayplan.codec.go_text import quote
from bayplan.framework.api.plugin import Rejection
from bayplan.snapshot import BoolVector

ZONE_PREFIX = "tdm.revocable-zone."
EVICT_PERIOD = "tdm.evict.period"
NOT_ALLOWED = "not allow to dispatch to revocable node"
DEFAULT_VICTIMS = 1
MAX_SCORE = 100.0


@dataclass(slots=True)
class _EvictionTimer:
    """Time of the last eviction; outlives sessions."""

    evicted_at: datetime | None = None


class TdmPlugin:
    """Places revocable tasks on revocable nodes during their hours, and evicts them step by step afterwards."""

    name = "tdm"
    takes: ClassVar[tuple[Argument, ...]] = (
        Argument(f"{ZONE_PREFIX}<zone>", str),
        Argument(EVICT_PERIOD, timedelta, "1m"),
    )

    def __init__(self, arguments: Arguments, timer: _EvictionTimer | None = None) -> None:
        self.arguments = arguments
        self._timer = timer or _EvictionTimer()
        self._hours = dict(_zones(arguments))
        self._period = _evict_period(arguments)

    @classmethod
    def factory(cls, arguments: Arguments, handle: BatchHandle) -> TdmPlugin:
        return cls(arguments, handle.keep(cls.name, _EvictionTimer))

    def on_session_open(self, session: Session) -> None:
        self._session = session
        self._now = session.clock.now()
        self._zones = _rows_by_zone(session.nodes)
        self._closed = {zone: self.closed_reason(zone) for zone in {*self._zones, *self._hours}}
        session.add_predicate_nodes_fn(self.name, self._reject, signature=_revocable, depends_on=ROW_LOCAL)
        session.add_node_order_nodes_fn(self.name, self._score, signature=_revocable, depends_on=ROW_LOCAL)
        session.add_preemptable_fn(self.name, self._preemptable, VictimHints(VictimDependence.JOBS))
        session.add_victim_tasks_fns(self.name, [self._tasks_in_closed_zones])
        session.add_job_order_fn(self.name, lambda left, right: left.preemptable - right.preemptable)
        session.add_job_pipelined_fn(self.name, lambda job: Vote.PERMIT if job.is_pipelined() else Vote.REJECT)
        session.add_job_starving_fn(self.name, lambda job: not job.preemptable and bool(job.pending))

    def closed_reason(self, zone: str) -> str:
        """Reason why nodes of the zone cannot be used now; empty if they can."""
        hours = self._hours.get(zone)
        if hours is None:
            return f"revocable zone {zone} not support"
        try:
            wraps = QuirkFix.TDM_MIDNIGHT in self._session.quirk_fixes
            is_open = _is_open(hours, self._now.astimezone(), wraps=wraps)
        except ValueError as fault:
            return str(fault)
        return "" if is_open else f"current time beyond revocable zone {zone}:{hours}"

    # Nodes

    def _reject(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:
        for zone, zone_rows in self._zones.items():
            reason = self._closed[zone] or ("" if task.revocable_zone else NOT_ALLOWED)
            if reason:
                yield Rejection(zone_rows[nodes.rows], reason, resolvable=False)

    def _score(self, task: Task, nodes: Nodes) -> ScoredRows:
        scores, failed = np.zeros(len(nodes)), np.zeros(len(nodes), dtype=np.bool_)
        for zone, zone_rows in self._zones.items():
            here = zone_rows[nodes.rows]
            if self._closed[zone]:
                failed |= here
            elif task.revocable_zone:
                scores[here] = MAX_SCORE
        return ScoredRows(scores, failed)

    # Victims

    def _preemptable(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]:
        """Victims on non-revocable nodes. A preemptable or revocable preemptor evicts no task."""
        if preemptor.preemptable or preemptor.revocable_zone:
            return []
        return self._within_budgets(
            task
            for task in candidates
            if (node := self._session.node(task.node_name)) is not None and not node.revocable_zone
        )

    def _tasks_in_closed_zones(self, running: Sequence[Task]) -> list[Task]:  # noqa: ARG002
        """Tasks on nodes of closed zones; empty until the eviction period is over."""
        last = self._timer.evicted_at
        if last is not None and last + self._period > self._now:
            return []
        self._timer.evicted_at = self._now
        nodes = self._session.nodes
        victims: list[Task] = []
        for zone in self._hours:
            if self._closed[zone] and zone in self._zones:
                rows = np.flatnonzero(self._zones[zone]).tolist()
                victims += self._within_budgets(task for row in rows for task in nodes.at_row(row).tasks.values())
        return victims

    def _within_budgets(self, tasks: Iterable[Task]) -> list[Task]:
        """Preemptable running tasks, of each job as many as its budget allows."""
        by_job: dict[str, list[Task]] = {}
        for task in tasks:
            if task.preemptable and task.status is TaskStatus.RUNNING:
                by_job.setdefault(task.job, []).append(task)
        jobs = self._session.jobs
        return [task for uid, found in by_job.items() if uid in jobs for task in found[: _max_victims_of(jobs[uid])]]


def _revocable(task: Task) -> bool:
    return bool(task.revocable_zone)


def _rows_by_zone(nodes: Nodes) -> dict[str, BoolVector]:
    found: dict[str, BoolVector] = {}
    for node in nodes:
        zone = node.revocable_zone
        if zone:
            found.setdefault(zone, np.zeros(nodes.accounts.count, dtype=np.bool_))[node.row] = True
    return found


def _zones(arguments: Arguments) -> Iterator[tuple[str, str]]:
    for key in arguments:
        if ZONE_PREFIX not in key:
            continue
        hours = arguments.get_str(key)
        if isinstance(arguments[key], str):
            yield key.replace(ZONE_PREFIX, "", 1), hours


def _evict_period(arguments: Arguments) -> timedelta:
    text = arguments.get_str(EVICT_PERIOD, "1m")
    try:
        return timedelta(seconds=parse_duration(text).seconds)
    except DurationError as fault:
        arguments.warn(f"{EVICT_PERIOD}: {fault}; 1m is used")
        return timedelta(minutes=1)


# Hours


def _is_open(hours: str, now: datetime, *, wraps: bool) -> bool:
    """Whether `now` is within the hours, both ends included. Raises ValueError with Go's text for invalid hours.

    As upstream, hours that cross midnight end at midnight, unless `wraps` is true.
    """
    ends = hours.strip().split("-")
    if len(ends) != 2:
        raise ValueError(f"revocable zone {hours} format error")
    start, end = (_time_of_day(each) for each in ends)
    moment = now.hour * 3600 + now.minute * 60 + now.second
    if wraps and end <= start:
        return start <= moment or moment <= end
    return start <= moment and (end <= start or moment <= end)


def _time_of_day(text: str) -> int:
    """Seconds since midnight of a text such as 9:30; errors are those of Go's `time.Parse`."""
    hour = re.match("[0-9]{1,2}", text)
    if hour is None:
        raise _unparsable(text, text, "15")
    if int(hour[0]) > 23:
        raise ValueError(f"parsing time {quote(text)}: hour out of range")
    rest = text[hour.end() :]
    if not rest.startswith(":"):
        raise _unparsable(text, rest, ":")
    minute = re.match("[0-9]{2}", rest[1:])
    if minute is None:
        raise _unparsable(text, rest[1:], "04")
    if int(minute[0]) > 59:
        raise ValueError(f"parsing time {quote(text)}: minute out of range")
    if len(rest) > 3:
        raise ValueError(f"parsing time {quote(text)}: extra text: {quote(rest[3:])}")
    return int(hour[0]) * 3600 + int(minute[0]) * 60


def _unparsable(text: str, rest: str, element: str) -> ValueError:
    return ValueError(f'parsing time {quote(text)} as "15:04": cannot parse {quote(rest)} as "{element}"')


# Budgets of jobs


def _max_victims_of(job: Job) -> int:
    """Number of tasks that a job can lose at once, from its budget annotations; 1 without any."""
    tasks, running = len(job.tasks), job.count(TaskStatus.RUNNING)
    if job.budget_max_unavailable:
        finished = job.count(TaskStatus.SUCCEEDED, TaskStatus.FAILED)
        return max(_count_or_percentage(job.budget_max_unavailable, tasks) - (tasks - finished - running), 0)
    if job.budget_min_available:
        least = _count_or_percentage(job.budget_min_available, tasks)
        if running >= least:
            return running - least
    return DEFAULT_VICTIMS


def _count_or_percentage(text: str, tasks: int) -> int:
    """A number of tasks, or a percentage of them, rounded up; 0 for any other text."""
    number = parse_int(text, 32)
    if number is not None:
        return number
    percent = parse_int(text[:-1]) if text.endswith("%") else None
    return 0 if percent is None else math.ceil(percent * tasks / 100)
