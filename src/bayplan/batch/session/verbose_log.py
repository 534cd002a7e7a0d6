"""What does a session say while it works? Volcano's levels of `-v`, over what all plugins and actions pass through.

    3    decisions and results: also a line a session, a bound pod, an eviction (`live`)
    4    objects and plugins: what each plugin answered at each point, the steps of statements, why a task found no node
    5    the way through: actions entered and left, the score of each candidate, nodes by what refused them

The verbosity is looked at when a session opens, so that below level 4 a session costs what it always did: no function
of a plugin is wrapped, and a step asks one attribute. At these levels lines are many; one file's worth of them is
filtered with `--vmodule`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from bayplan.batch.evaluation.rejected_rows import RejectedRows
from bayplan.batch.model.fit_errors import FitErrors
from bayplan.batch.model.hypernodes import HyperNode
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import Node
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.sub_jobs import SubJob
from bayplan.batch.model.tasks import Task
from bayplan.framework.api.status import Status
from bayplan.telemetry.decisions import Ranking
from bayplan.telemetry.logs import ObjectRef, StructuredLog

if TYPE_CHECKING:
    from bayplan.batch.session.session import Session
    from bayplan.batch.session.statement import Operation

log = StructuredLog(__name__)

DECISIONS, DETAILS, TRACE = 3, 4, 5


class VerboseLog:
    """One session, told as far as the verbosity of its opening wants."""

    __slots__ = ("decisions", "details", "steps")

    def __init__(self) -> None:
        self.decisions, self.details, self.steps = (log.enabled(level) for level in (DECISIONS, DETAILS, TRACE))

    # plugins ----------------------------------------------------------------------------------------------------

    def logged_function(self, point: str, plugin: str, fn: Any) -> Any:
        """A plugin's function, or its list of functions, each of whose answers is told. Nothing else changes."""
        if isinstance(fn, list | tuple):
            return [self.logged_function(point, plugin, each) for each in fn]

        def told(*args: Any) -> Any:
            answer = fn(*args)
            about = [_log_value(each) for each in args]
            log.info("Plugin answered", v=DETAILS, point=point, plugin=plugin, about=about, answer=_log_value(answer))
            return answer

        return told

    # the session as a whole -------------------------------------------------------------------------------------

    def log_open(self, session: Session) -> Iterator[None]:
        """The session and what plugins made of its queues."""
        if not self.details:
            return
        counts = {"jobs": len(session.jobs), "queues": len(session.queues), "nodes": len(session.nodes)}
        log.info("Open session", v=DETAILS, uid=session.uid, plugins=list(session.plugins), **counts)
        for name, queue in session.queues.items():
            gauges, state = session.queue_gauges.get(name, {}), queue.queue.status.state
            log.info("Queue", v=DETAILS, queue=name, state=state, weight=queue.weight, gauges=gauges)
            yield

    def log_enter_action(self, action: str) -> None:
        if self.steps:
            log.info(f"Enter {action.capitalize()} ...", v=TRACE)

    def log_leave_action(self, action: str) -> None:
        if self.steps:
            log.info(f"Leaving {action.capitalize()} ...", v=TRACE)

    def log_jobs(self, jobs: Iterable[Job]) -> Iterator[None]:
        """Where each job stands after the last action."""
        if not self.details:
            return
        for job in jobs:
            tasks = {status.label: count for status in TaskStatus if (count := job.count(status))}
            values = {"queue": job.queue, "phase": job.phase, "minimum": job.min_available, "priority": job.priority}
            log.info("Job", v=DETAILS, job=ObjectRef(job.uid), tasks=tasks, **values)
            yield

    # statements -------------------------------------------------------------------------------------------------

    def log_allocated(self, task: Task) -> None:
        if self.details:
            log.info("Allocated task", v=DETAILS, task=ObjectRef(task.key), node=task.node_name)

    def log_pipelined(self, task: Task) -> None:
        if self.decisions:
            log.info(
                "Pipelined task to a node with room soon", v=DECISIONS, task=ObjectRef(task.key), node=task.node_name
            )

    def log_evicted(self, task: Task, reason: str) -> None:
        if self.details:
            log.info("Task is to be evicted", v=DETAILS, task=ObjectRef(task.key), node=task.node_name, reason=reason)

    def log_discarded(self, operations: Sequence[Operation]) -> None:
        if self.details and operations:
            log.info("Discarded statement", v=DETAILS, tasks=[each.task.key for each in operations])

    def log_commit_conflict(self, tasks: Sequence[Task]) -> None:
        """What was to be committed no longer fits: others have changed the cluster."""
        if self.decisions:
            log.info("Others took the room meanwhile", v=DECISIONS, tasks=[task.key for task in tasks])

    # searches ---------------------------------------------------------------------------------------------------

    def log_fit_errors(self, task: Task, errors: FitErrors) -> None:
        if self.details:
            log.info(
                "Task found no node", v=DETAILS, task=ObjectRef(task.key), job=ObjectRef(task.job), reason=errors.text()
            )

    def log_rejections(self, task: Task, refusals: Iterable[RejectedRows], names: Sequence[str]) -> None:
        """Which nodes gave which answer."""
        if not self.steps:
            return
        for statuses, rows in refusals:
            reasons, nodes = [status.message for status in statuses], [names[row] for row in rows.tolist()]
            log.info("Nodes refused task", v=TRACE, task=ObjectRef(task.key), reasons=reasons, nodes=nodes)

    def log_only_candidate(self, task: Task, node: str) -> None:
        if self.steps:
            log.info("One node will do, and is not scored", v=TRACE, task=ObjectRef(task.key), node=node)

    def log_scores(self, task: Task, node: str, scores: Mapping[str, float], best: Ranking) -> None:
        """`scores`: of all candidates; `best`: a few of them, with what each plugin gave. Asked where `steps` is on."""
        log.info("Scores of nodes", v=TRACE, task=ObjectRef(task.key), scores=scores, chosen=node)
        for each in best.scored_nodes():
            log.info(
                "Scores by plugin", v=TRACE, task=ObjectRef(task.key), node=each.node, plugins=dict(each.by_plugin)
            )


def _log_value(value: Any) -> Any:
    """What was asked about, or answered, in words that a line can hold. Nothing is used up: it is still wanted."""
    match value:
        case Job() | SubJob() | Queue():
            return value.uid
        case Task():
            return value.key
        case Node() | HyperNode():
            return value.name
        case Status():
            return value.message or value.code.name
        case Enum():
            return value.name
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(_log_value(key)): _log_value(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_log_value(each) for each in value]
        case _:
            return type(value).__name__
