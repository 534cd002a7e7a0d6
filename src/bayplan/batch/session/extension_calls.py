"""What actions ask a session: every point by name, answered by its rule, with Volcano's answer if nobody speaks."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from bayplan.batch.config.volcano_quirk_fixes import Mend
from bayplan.batch.diagnostics.plugin_faults import Complaints
from bayplan.batch.evaluation.bind_failure_filter import GivenUp
from bayplan.batch.evaluation.node_points import Blame, NodeFn, scores_by_row
from bayplan.batch.evaluation.shard_filter import Fence
from bayplan.batch.model.hypernodes import HyperNode
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import FloatVector, Node, Nodes
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.sub_jobs import SubJob
from bayplan.batch.model.tasks import Task, default_task_order
from bayplan.batch.session import extension_points
from bayplan.batch.session.combine_rules import NOBODY, Asked
from bayplan.batch.session.extension_points import Invalid, Point, Switches
from bayplan.batch.session.outcome import Standstill
from bayplan.batch.session.priority_queue import PriorityQueue
from bayplan.batch.session.registration import EvictionContext, Purpose, Registrations
from bayplan.batch.session.simulation import Simulation
from bayplan.batch.session.verbose_log import Narration
from bayplan.batch.session.victim_hints import NO_FORESIGHT, Foresight
from bayplan.framework.api.status import Status
from bayplan.framework.runtime.plugin_call import FAULTS
from bayplan.snapshot import BoolVector

log = logging.getLogger(__name__)

R = TypeVar("R")

_NODE_POINTS = {
    point.name: point
    for point in (
        extension_points.PREDICATE,
        extension_points.NODE_ORDER,
        extension_points.BATCH_NODE_ORDER,
        extension_points.NODE_MAP,
    )
}


class Questions(Registrations):
    """A session, as far as asking plugins goes."""

    jobs: dict[str, Job]
    queues: dict[str, Queue]
    nodes: Nodes
    told_before: Set[str] = frozenset()
    """What the session before complained of: it is in the log already."""

    def __init__(
        self,
        tiers: Sequence[Sequence[Switches]],
        mends: Set[Mend] = frozenset(),
        fence: Fence | None = None,
        given_up: GivenUp | None = None,
    ) -> None:
        super().__init__()
        self._fence = fence
        self._given_up = given_up
        self.narration = Narration()
        self.mends = mends
        self.tiers = tiers
        self.listed = frozenset(plugin.name for tier in tiers for plugin in tier)
        self._complaints = Complaints()
        self.faults = self._complaints.sentences  # what plugins did wrong in this session, a sentence each
        self.standstills: list[Standstill] = []
        self._asked: dict[Point[Any], Asked] = {}
        self._node_fns: dict[str, list[NodeFn]] = {}

    def registered(self, point: Point[Any]) -> None:
        self._asked.pop(point, None)
        self._node_fns.clear()

    def _answering(self, point: Point[Any]) -> Asked:
        asked = self._asked.get(point)
        if asked is None:
            fns = self._fns[point]
            tiers = [
                [(plugin.name, fns[plugin.name]) for plugin in tier if plugin.name in fns and point.open_to(plugin)]
                for tier in self.tiers
            ]
            if self.narration.details and point.rule is not None:
                tell = self.narration.overheard
                tiers = [[(name, tell(point.name, name, fn)) for name, fn in tier] for tier in tiers]
            asked = self._asked[point] = Asked(
                tiers,
                self.blaming(point.name),
                accepts=point.accepts,
                wanted=point.wanted,
                veto_is_final=Mend.VICTIMS_VETO in self.mends,
            )
        return asked

    def ask(self, point: Point[R], *args: Any) -> R:
        """The answer at a point, by its rule."""
        rule = point.rule
        assert rule is not None, f"{point.name} is asked by rows"
        return rule(self._asked.get(point) or self._answering(point), *args)

    def node_fns(self, point: str) -> list[NodeFn]:
        """The functions about nodes at a point, in the order in which they are asked."""
        found = self._node_fns.get(point)
        if found is None:
            fns: list[Any] = [fn for _, fn in self._answering(_NODE_POINTS[point]).flat]
            if point == extension_points.PREDICATE.name:
                fns = [*self._own_predicates(), *fns]
            found = self._node_fns[point] = fns
        return found

    def _own_predicates(self) -> Iterator[NodeFn]:
        """What a session asks whatever plugins there are."""
        if self._fence is not None:
            yield from self._fence.predicates()
        if self._given_up is not None:
            yield self._given_up.predicate()

    def in_turn(self, rows: BoolVector) -> Iterable[BoolVector]:
        """Candidates for a task, those that are to be tried first by themselves."""
        return (rows,) if self._fence is None else self._fence.in_turn(rows)

    def blame(self, plugin: str, what: BaseException | str, point: str = "") -> None:
        """A plugin broke, or answered nonsense: say so once, not in every session, and go on without its answer."""
        sentence = self._complaints.about(plugin, what, point)
        if sentence is not None and sentence not in self.told_before:
            log.warning(sentence, exc_info=what if isinstance(what, BaseException) else None)

    def blaming(self, point: str) -> Blame:
        return lambda plugin, what: self.blame(plugin, what, point)

    def report(self, plugin: str, sentence: str) -> None:
        """Something that a plugin has found wrong, and that a person should mend: it goes into the faults, once."""
        told = self._complaints.by(plugin, sentence)
        if told is not None and told not in self.told_before:
            log.warning("%s", told)

    def complain(self, plugin: str, sentence: str) -> None:
        """Something that a plugin objects to, in the course of its work."""
        log.info('plugin "%s": %s', plugin, sentence)

    def stand_still(self, why: Standstill) -> None:
        """A plugin gives queues nothing: who must mend something is told, and everybody who waits for it."""
        self.standstills.append(why)
        self.faults.append(why.sentence)

    # orders -----------------------------------------------------------------------------------------------------

    def compare_jobs(self, left: Job, right: Job) -> int:
        """What plugins say; 0 where nobody has an opinion."""
        return self.ask(extension_points.JOB_ORDER, left, right)

    def job_order(self, left: Job, right: Job) -> bool:
        """Whether the left comes first: by plugins, then by age, then by name."""
        order = self.compare_jobs(left, right)
        if order:
            return order < 0
        return (left.created, left.uid) < (right.created, right.uid)

    def sub_job_order(self, left: SubJob, right: SubJob) -> bool:
        order = self.ask(extension_points.SUB_JOB_ORDER, left, right)
        if order:
            return order < 0
        return (left.match_index, left.uid) < (right.match_index, right.uid)

    def queue_order(self, left: Queue, right: Queue) -> bool:
        order = self.ask(extension_points.QUEUE_ORDER, left, right)
        if order:
            return order < 0
        return (left.created, left.uid) < (right.created, right.uid)

    def victim_queue_order(self, left: Queue, right: Queue, preemptor: Queue) -> bool:
        """Whether the left loses tasks first: unless plugins say, the queue that would be served last."""
        order = self.ask(extension_points.VICTIM_QUEUE_ORDER, left, right, preemptor)
        return order < 0 if order else not self.queue_order(left, right)

    def compare_tasks(self, left: Task, right: Task) -> int:
        return self.ask(extension_points.TASK_ORDER, left, right)

    def task_order(self, left: Task, right: Task) -> bool:
        order = self.compare_tasks(left, right)
        return order < 0 if order else default_task_order(left, right)

    def victims_queue(self, victims: Iterable[Task], preemptor: Task) -> PriorityQueue[Task]:
        """Victims in the order in which they are evicted: the least important first."""

        def job_then_task(left_job: Job, right_job: Job, left: Task, right: Task) -> bool:
            order = self.compare_jobs(left_job, right_job)
            return order > 0 if order else not self.task_order(left, right)

        def goes_first(left: Task, right: Task) -> bool:
            if left.job == right.job:
                return not self.task_order(left, right)
            left_job, right_job = self.jobs.get(left.job), self.jobs.get(right.job)
            if left_job is None or right_job is None:
                if left_job is None and right_job is None:
                    return not self.task_order(left, right)
                return left_job is None
            mine = self.jobs.get(preemptor.job)
            if mine is not None and left_job.queue != right_job.queue:
                queues = self.queues
                return self.victim_queue_order(queues[left_job.queue], queues[right_job.queue], queues[mine.queue])
            return job_then_task(left_job, right_job, left, right)

        return PriorityQueue(goes_first, victims)

    # victims ----------------------------------------------------------------------------------------------------

    def preemptable(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]:
        return self.ask(extension_points.PREEMPTABLE, preemptor, candidates)

    def reclaimable(self, reclaimer: Task, candidates: Sequence[Task]) -> list[Task]:
        return self.ask(extension_points.RECLAIMABLE, reclaimer, candidates)

    def foresight(self, point: Point[list[Task]]) -> list[list[Foresight]]:
        """Tier by tier, what plugins that name victims say about them in advance."""
        known = self._foresight[point]
        return [
            [self._guarded(plugin, point, known.get(plugin, NO_FORESIGHT)) for plugin, _ in tier]
            for tier in self._answering(point).tiers
        ]

    def _guarded(self, plugin: str, point: Point[Any], foresight: Foresight) -> Foresight:
        spares = foresight.spares
        if spares is None:
            return foresight

        def spares_or_breaks(job: Job, task: Task) -> bool:
            try:
                return bool(spares(job, task))
            except FAULTS as fault:
                self.blame(plugin, fault, point.name)
                return False

        return replace(foresight, spares=spares_or_breaks)

    def unified_evictable(self, context: EvictionContext, candidates: Sequence[Task]) -> list[Task]:
        return self.ask(extension_points.UNIFIED_EVICTABLE, context, candidates)

    def victim_tasks(self, running: Sequence[Task]) -> list[Task]:
        return self.ask(extension_points.VICTIM_TASKS, running)

    # jobs and queues --------------------------------------------------------------------------------------------

    def job_invalid(self, job: Job) -> Invalid | None:
        """Why the job is not looked at; None for a valid one."""
        return self.ask(extension_points.JOB_VALID, job)

    def job_enqueueable(self, job: Job) -> bool:
        return self.ask(extension_points.JOB_ENQUEUEABLE, job)

    def job_enqueued(self, job: Job) -> None:
        self.ask(extension_points.JOB_ENQUEUED, job)

    def job_ready(self, job: Job) -> bool:
        return self.ask(extension_points.JOB_READY, job)

    def job_pipelined(self, job: Job) -> bool:
        return self.ask(extension_points.JOB_PIPELINED, job)

    def job_starving(self, job: Job) -> bool:
        return self.ask(extension_points.JOB_STARVING, job)

    def sub_job_ready(self, job: Job, sub_job: SubJob) -> bool:
        """Without sub-group policies this is about the whole job."""
        if not job.has_sub_job_policy:
            return self.job_ready(job)
        return self.ask(extension_points.SUB_JOB_READY, sub_job)

    def sub_job_pipelined(self, job: Job, sub_job: SubJob) -> bool:
        if not job.has_sub_job_policy:
            return self.job_pipelined(job)
        return self.ask(extension_points.SUB_JOB_PIPELINED, sub_job)

    def overused(self, queue: Queue) -> bool:
        return self.ask(extension_points.OVERUSED, queue)

    def preemptive(self, queue: Queue, tasks: Sequence[Task]) -> bool:
        return self.ask(extension_points.PREEMPTIVE, queue, tasks)

    def allocatable(self, queue: Queue, task: Task) -> bool:
        return self.ask(extension_points.ALLOCATABLE, queue, task)

    def target_job(self, jobs: Sequence[Job]) -> Job | None:
        found = self.ask(extension_points.TARGET_JOB, jobs)
        return None if found is NOBODY else found

    def reserved_nodes(self) -> None:
        self.ask(extension_points.RESERVED_NODES)

    # nodes and hypernodes ---------------------------------------------------------------------------------------

    def pre_predicate(self, task: Task) -> Status | None:
        """What speaks against the task before any node is looked at."""
        refused = self._given_up.objection(task) if self._given_up is not None else None
        return refused if refused is not None else self.ask(extension_points.PRE_PREDICATE, task)

    def best_node(self, task: Task, by_score: Mapping[float, Sequence[Node]]) -> Node | None:
        return self.ask(extension_points.BEST_NODE, task, by_score)

    @property
    def has_best_node_fns(self) -> bool:
        return bool(self._answering(extension_points.BEST_NODE).flat)

    def reduced_scores(self, task: Task, candidates: BoolVector) -> FloatVector | Status | None:
        """What plugins that map and reduce give; None where there are none, a Status where no node can be chosen."""
        reducing = self._answering(extension_points.NODE_REDUCE).flat
        if not reducing:
            return None
        total = np.zeros(len(candidates))
        maps = dict(self._answering(extension_points.NODE_MAP).flat)
        nodes = self.nodes.only(np.flatnonzero(candidates))
        for plugin, reduce in reducing:
            try:
                raw = {node.name: math.floor(maps[plugin](task, node)) for node in nodes} if plugin in maps else {}
                final = reduce(task, raw)
                if isinstance(final, Status):
                    return final
                total += scores_by_row(final, self.nodes)
            except FAULTS as fault:
                self.blame(plugin, fault, "node_reduce")
        return total

    def hyper_node_scores(self, sub_job: SubJob, candidates: Mapping[str, Nodes]) -> dict[str, float]:
        """The sum of what plugins give each hypernode."""
        total = dict.fromkeys(candidates, 0.0)
        for scores in self.ask(extension_points.HYPER_NODE_ORDER, sub_job, candidates).values():
            for name, score in scores.items():
                if name in total:
                    total[name] += score
        return total

    def hyper_node_gradient_for_job(
        self, job: Job, hyper_node: HyperNode, purpose: Purpose
    ) -> Sequence[Sequence[HyperNode]]:
        """Hypernodes to try, list by list; the one given where nobody decides."""
        found = self.ask(extension_points.HYPER_NODE_GRADIENT_FOR_JOB, job, hyper_node, purpose)
        return [[hyper_node]] if found is NOBODY else found or []

    def hyper_node_gradient_for_sub_job(
        self, sub_job: SubJob, hyper_node: HyperNode, purpose: Purpose
    ) -> Sequence[Sequence[HyperNode]]:
        found = self.ask(extension_points.HYPER_NODE_GRADIENT_FOR_SUB_JOB, sub_job, hyper_node, purpose)
        return [[hyper_node]] if found is NOBODY else found or []

    # simulation -------------------------------------------------------------------------------------------------

    def simulate_add_task(self, simulation: Simulation, task: Task) -> Any:
        return self.ask(extension_points.SIMULATE_ADD_TASK, simulation, task)

    def simulate_remove_task(self, simulation: Simulation, task: Task) -> Any:
        return self.ask(extension_points.SIMULATE_REMOVE_TASK, simulation, task)

    def simulate_predicate(self, simulation: Simulation) -> Any:
        return self.ask(extension_points.SIMULATE_PREDICATE, simulation)

    def simulate_allocatable(self, simulation: Simulation, queue: Queue) -> bool:
        return self.ask(extension_points.SIMULATE_ALLOCATABLE, simulation, queue)
