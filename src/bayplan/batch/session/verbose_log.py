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

from bayplan.batch.evaluation.rejected_rows import Refusal
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
from bayplan.telemetry.logs import Ref, StructuredLog

if TYPE_CHECKING:
    from bayplan.batch.session.session import Session
    from bayplan.batch.session.statement import Operation

log = StructuredLog(__name__)

DECISIONS, DETAILS, STEPS = 3, 4, 5


class Narration:
    """One session, told as far as the verbosity of its opening wants."""

    __slots__ = ("decisions", "details", "steps")

    def __init__(self) -> None:
        self.decisions, self.details, self.steps = (log.enabled(level) for level in (DECISIONS, DETAILS, STEPS))

    # plugins ----------------------------------------------------------------------------------------------------

    def overheard(self, point: str, plugin: str, fn: Any) -> Any:
        """A plugin's function, or its list of functions, each of whose answers is told. Nothing else changes."""
        if isinstance(fn, list | tuple):
            return [self.overheard(point, plugin, each) for each in fn]

        def told(*args: Any) -> Any:
            answer = fn(*args)
            about = [_named(each) for each in args]
            log.info("Plugin answered", v=DETAILS, point=point, plugin=plugin, about=about, answer=_named(answer))
            return answer

        return told

    # the session as a whole -------------------------------------------------------------------------------------

    def opened(self, session: Session) -> Iterator[None]:
        """The session and what plugins made of its queues."""
        if not self.details:
            return
        counts = {"jobs": len(session.jobs), "queues": len(session.queues), "nodes": len(session.nodes)}
        log.info("Open session", v=DETAILS, uid=session.uid, plugins=list(session.plugins), **counts)
        for name, queue in session.queues.items():
            gauges, state = session.queue_gauges.get(name, {}), queue.queue.status.state
            log.info("Queue", v=DETAILS, queue=name, state=state, weight=queue.weight, gauges=gauges)
            yield

    def entering(self, action: str) -> None:
        if self.steps:
            log.info(f"Enter {action.capitalize()} ...", v=STEPS)

    def leaving(self, action: str) -> None:
        if self.steps:
            log.info(f"Leaving {action.capitalize()} ...", v=STEPS)

    def jobs(self, jobs: Iterable[Job]) -> Iterator[None]:
        """Where each job stands after the last action."""
        if not self.details:
            return
        for job in jobs:
            tasks = {status.label: count for status in TaskStatus if (count := job.count(status))}
            values = {"queue": job.queue, "phase": job.phase, "minimum": job.min_available, "priority": job.priority}
            log.info("Job", v=DETAILS, job=Ref(job.uid), tasks=tasks, **values)
            yield

    # statements -------------------------------------------------------------------------------------------------

    def allocated(self, task: Task) -> None:
        if self.details:
            log.info("Allocated task", v=DETAILS, task=Ref(task.key), node=task.node_name)

    def pipelined(self, task: Task) -> None:
        if self.decisions:
            log.info("Pipelined task to a node with room soon", v=DECISIONS, task=Ref(task.key), node=task.node_name)

    def evicting(self, task: Task, reason: str) -> None:
        if self.details:
            log.info("Task is to be evicted", v=DETAILS, task=Ref(task.key), node=task.node_name, reason=reason)

    def discarded(self, operations: Sequence[Operation]) -> None:
        if self.details and operations:
            log.info("Discarded statement", v=DETAILS, tasks=[each.task.key for each in operations])

    def outrun(self, tasks: Sequence[Task]) -> None:
        """What was to be committed no longer fits: others have changed the cluster."""
        if self.decisions:
            log.info("Others took the room meanwhile", v=DECISIONS, tasks=[task.key for task in tasks])

    # searches ---------------------------------------------------------------------------------------------------

    def without_node(self, task: Task, errors: FitErrors) -> None:
        if self.details:
            log.info("Task found no node", v=DETAILS, task=Ref(task.key), job=Ref(task.job), reason=errors.text())

    def refused(self, task: Task, refusals: Iterable[Refusal], names: Sequence[str]) -> None:
        """Which nodes gave which answer."""
        if not self.steps:
            return
        for statuses, rows in refusals:
            reasons, nodes = [status.message for status in statuses], [names[row] for row in rows.tolist()]
            log.info("Nodes refused task", v=STEPS, task=Ref(task.key), reasons=reasons, nodes=nodes)

    def only_candidate(self, task: Task, node: str) -> None:
        if self.steps:
            log.info("One node will do, and is not scored", v=STEPS, task=Ref(task.key), node=node)

    def chosen(self, task: Task, node: str, scores: Mapping[str, float], best: Ranking) -> None:
        """`scores`: of all candidates; `best`: a few of them, with what each plugin gave. Asked where `steps` is on."""
        log.info("Scores of nodes", v=STEPS, task=Ref(task.key), scores=scores, chosen=node)
        for each in best.spelled_out():
            log.info("Scores by plugin", v=STEPS, task=Ref(task.key), node=each.node, plugins=dict(each.by_plugin))


def _named(value: Any) -> Any:
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
            return {str(_named(key)): _named(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_named(each) for each in value]
        case _:
            return type(value).__name__
