"""Log output of a session, with Volcano's verbosity levels of `-v`, at points that all plugins and actions pass.

    3    decisions and results: also one line per session, bound pod and eviction (`live`)
    4    objects and plugins: each plugin's answer at each point, operations of statements, why a task found no node
    5    trace: actions entered and left, the score of each candidate, nodes by rejection reason

The verbosity is read when a session opens. Below level 4 a session has no extra cost: plugin functions are not wrapped,
and an operation checks one attribute. Higher levels log many lines; `--vmodule` limits them to one file.
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
    """The log of one session, at the verbosity of its opening."""

    __slots__ = ("decisions", "details", "steps")

    def __init__(self) -> None:
        self.decisions, self.details, self.steps = (log.enabled(level) for level in (DECISIONS, DETAILS, TRACE))

    # Plugins

    def logged_function(self, point: str, plugin: str, fn: Any) -> Any:
        """Wrap a plugin's function, or each function of a list, so that its answers are logged."""
        if isinstance(fn, list | tuple):
            return [self.logged_function(point, plugin, each) for each in fn]

        def logged(*args: Any) -> Any:
            answer = fn(*args)
            about = [_log_value(each) for each in args]
            log.info("Plugin answered", v=DETAILS, point=point, plugin=plugin, about=about, answer=_log_value(answer))
            return answer

        return logged

    # Session

    def log_open(self, session: Session) -> Iterator[None]:
        """Log the session and the metrics that plugins computed for its queues."""
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
        if not self.details:
            return
        for job in jobs:
            tasks = {status.label: count for status in TaskStatus if (count := job.count(status))}
            values = {"queue": job.queue, "phase": job.phase, "minimum": job.min_available, "priority": job.priority}
            log.info("Job", v=DETAILS, job=ObjectRef(job.uid), tasks=tasks, **values)
            yield

    # Statements

    def log_allocated(self, task: Task) -> None:
        if self.details:
            log.info("Allocated task", v=DETAILS, task=ObjectRef(task.key), node=task.node_name)

    def log_pipelined(self, task: Task) -> None:
        if self.decisions:
            log.info(
                "Pipelined task to a node with releasing resources",
                v=DECISIONS,
                task=ObjectRef(task.key),
                node=task.node_name,
            )

    def log_evicted(self, task: Task, reason: str) -> None:
        if self.details:
            log.info("Task is to be evicted", v=DETAILS, task=ObjectRef(task.key), node=task.node_name, reason=reason)

    def log_discarded(self, operations: Sequence[Operation]) -> None:
        if self.details and operations:
            log.info("Discarded statement", v=DETAILS, tasks=[each.task.key for each in operations])

    def log_commit_conflict(self, tasks: Sequence[Task]) -> None:
        """Log a commit that was discarded because another engine changed the cluster."""
        if self.decisions:
            log.info("Discarded commit because the cluster changed", v=DECISIONS, tasks=[task.key for task in tasks])

    # Searches

    def log_fit_errors(self, task: Task, errors: FitErrors) -> None:
        if self.details:
            log.info(
                "Task found no node", v=DETAILS, task=ObjectRef(task.key), job=ObjectRef(task.job), reason=errors.text()
            )

    def log_rejections(self, task: Task, rejections: Iterable[RejectedRows], names: Sequence[str]) -> None:
        if not self.steps:
            return
        for statuses, rows in rejections:
            reasons, nodes = [status.message for status in statuses], [names[row] for row in rows.tolist()]
            log.info("Nodes rejected task", v=TRACE, task=ObjectRef(task.key), reasons=reasons, nodes=nodes)

    def log_only_candidate(self, task: Task, node: str) -> None:
        if self.steps:
            log.info("Only one candidate, not scored", v=TRACE, task=ObjectRef(task.key), node=node)

    def log_scores(self, task: Task, node: str, scores: Mapping[str, float], best: Ranking) -> None:
        """`scores`: of all candidates; `best`: the best ones by plugin. Only called if `steps` is on."""
        log.info("Scores of nodes", v=TRACE, task=ObjectRef(task.key), scores=scores, chosen=node)
        for each in best.scored_nodes():
            log.info(
                "Scores by plugin", v=TRACE, task=ObjectRef(task.key), node=each.node, plugins=dict(each.by_plugin)
            )


def _log_value(value: Any) -> Any:
    """A short form of an argument or answer for the log. Iterators are not consumed, because the caller needs them."""
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
