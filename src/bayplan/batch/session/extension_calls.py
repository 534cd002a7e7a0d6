"""Calls of extension points by actions: a method per point, with the point's rule and Volcano's default answer."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from bayplan.batch.config.volcano_quirk_fixes import QuirkFix
from bayplan.batch.diagnostics.plugin_faults import PluginFaults
from bayplan.batch.evaluation.bind_failure_filter import BindFailureFilter
from bayplan.batch.evaluation.node_points import FaultRecorder, NodeFunction, scores_by_row
from bayplan.batch.evaluation.shard_filter import ShardFilter
from bayplan.batch.model.hypernodes import HyperNode
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import FloatVector, Node, Nodes
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.sub_jobs import SubJob
from bayplan.batch.model.tasks import Task, default_task_order
from bayplan.batch.session import extension_points
from bayplan.batch.session.combine_rules import NO_FUNCTION, PointFunctions
from bayplan.batch.session.extension_points import InvalidJob, PluginSwitches, SessionPoint
from bayplan.batch.session.outcome import StalledQueue
from bayplan.batch.session.priority_queue import PriorityQueue
from bayplan.batch.session.registration import EvictionContext, Registrations, SearchPurpose
from bayplan.batch.session.simulation import Simulation
from bayplan.batch.session.verbose_log import VerboseLog
from bayplan.batch.session.victim_hints import NO_VICTIM_HINTS, VictimHints
from bayplan.framework.api.status import Status
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS
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


class ExtensionCalls(Registrations):
    """The part of a session that calls plugins."""

    jobs: dict[str, Job]
    queues: dict[str, Queue]
    nodes: Nodes
    previous_faults: Set[str] = frozenset()
    """Faults of the previous session, which are already logged."""

    def __init__(
        self,
        tiers: Sequence[Sequence[PluginSwitches]],
        quirk_fixes: Set[QuirkFix] = frozenset(),
        shard_filter: ShardFilter | None = None,
        bind_failure_filter: BindFailureFilter | None = None,
    ) -> None:
        super().__init__()
        self._shard_filter = shard_filter
        self._bind_failure_filter = bind_failure_filter
        self.verbose_log = VerboseLog()
        self.quirk_fixes = quirk_fixes
        self.tiers = tiers
        self.listed = frozenset(plugin.name for tier in tiers for plugin in tier)
        self._plugin_faults = PluginFaults()
        self.faults = self._plugin_faults.messages  # faults of plugins in this session, one message each
        self.stalled_queues: list[StalledQueue] = []
        self._functions_by_point: dict[SessionPoint[Any], PointFunctions] = {}
        self._node_fns: dict[str, list[NodeFunction]] = {}

    def invalidate_point(self, point: SessionPoint[Any]) -> None:
        self._functions_by_point.pop(point, None)
        self._node_fns.clear()

    def _functions_of(self, point: SessionPoint[Any]) -> PointFunctions:
        functions = self._functions_by_point.get(point)
        if functions is None:
            fns = self._fns[point]
            tiers = [
                [
                    (plugin.name, fns[plugin.name])
                    for plugin in tier
                    if plugin.name in fns and point.is_enabled_for(plugin)
                ]
                for tier in self.tiers
            ]
            if self.verbose_log.details and point.rule is not None:
                logged_function = self.verbose_log.logged_function
                tiers = [[(name, logged_function(point.name, name, fn)) for name, fn in tier] for tier in tiers]
            functions = self._functions_by_point[point] = PointFunctions(
                tiers,
                self.fault_recorder(point.name),
                is_valid_answer=point.is_valid_answer,
                expected_answer=point.expected_answer,
                veto_is_final=QuirkFix.VICTIMS_VETO in self.quirk_fixes,
            )
        return functions

    def call_point(self, point: SessionPoint[R], *args: Any) -> R:
        """Call a point and combine the answers by its rule."""
        rule = point.rule
        assert rule is not None, f"{point.name} is evaluated by rows"
        return rule(self._functions_by_point.get(point) or self._functions_of(point), *args)

    def node_fns(self, point: str) -> list[NodeFunction]:
        """The node functions of a point, in the order of their calls."""
        found = self._node_fns.get(point)
        if found is None:
            fns: list[Any] = [fn for _, fn in self._functions_of(_NODE_POINTS[point]).flat]
            if point == extension_points.PREDICATE.name:
                fns = [*self._built_in_predicates(), *fns]
            found = self._node_fns[point] = fns
        return found

    def _built_in_predicates(self) -> Iterator[NodeFunction]:
        """Predicates that every session has, whatever its plugins."""
        if self._shard_filter is not None:
            yield from self._shard_filter.predicates()
        if self._bind_failure_filter is not None:
            yield self._bind_failure_filter.predicate()

    def candidate_groups(self, rows: BoolVector) -> Iterable[BoolVector]:
        """The candidates of a task in groups, in the order in which the groups are tried."""
        return (rows,) if self._shard_filter is None else self._shard_filter.candidate_groups(rows)

    def record_plugin_fault(self, plugin: str, fault: BaseException | str, point: str = "") -> None:
        """Record a plugin fault. It is logged once, not in every session, and the plugin's answer is ignored."""
        message = self._plugin_faults.record(plugin, fault, point)
        if message is not None and message not in self.previous_faults:
            log.warning(message, exc_info=fault if isinstance(fault, BaseException) else None)

    def fault_recorder(self, point: str) -> FaultRecorder:
        return lambda plugin, fault: self.record_plugin_fault(plugin, fault, point)

    def report_misconfiguration(self, plugin: str, message: str) -> None:
        """Record a configuration error that a plugin found and a user must correct; once per session."""
        recorded = self._plugin_faults.record_from_plugin(plugin, message)
        if recorded is not None and recorded not in self.previous_faults:
            log.warning("%s", recorded)

    def log_plugin_message(self, plugin: str, message: str) -> None:
        """Log a refusal by a plugin."""
        log.info('plugin "%s": %s', plugin, message)

    def stall_queues(self, stalled: StalledQueue) -> None:
        """Record queues that get no resources. The owners of faulty objects and of waiting groups are notified."""
        self.stalled_queues.append(stalled)
        self.faults.append(stalled.message)

    # Orders

    def compare_jobs(self, left: Job, right: Job) -> int:
        """The order by plugins; 0 without a preference."""
        return self.call_point(extension_points.JOB_ORDER, left, right)

    def job_order(self, left: Job, right: Job) -> bool:
        """Whether the left comes first: by plugins, then by age, then by uid."""
        order = self.compare_jobs(left, right)
        if order:
            return order < 0
        return (left.created, left.uid) < (right.created, right.uid)

    def sub_job_order(self, left: SubJob, right: SubJob) -> bool:
        order = self.call_point(extension_points.SUB_JOB_ORDER, left, right)
        if order:
            return order < 0
        return (left.match_index, left.uid) < (right.match_index, right.uid)

    def queue_order(self, left: Queue, right: Queue) -> bool:
        order = self.call_point(extension_points.QUEUE_ORDER, left, right)
        if order:
            return order < 0
        return (left.created, left.uid) < (right.created, right.uid)

    def victim_queue_order(self, left: Queue, right: Queue, preemptor: Queue) -> bool:
        """Whether the left loses tasks first. Default: the queue that would be served last."""
        order = self.call_point(extension_points.VICTIM_QUEUE_ORDER, left, right, preemptor)
        return order < 0 if order else not self.queue_order(left, right)

    def compare_tasks(self, left: Task, right: Task) -> int:
        return self.call_point(extension_points.TASK_ORDER, left, right)

    def task_order(self, left: Task, right: Task) -> bool:
        order = self.compare_tasks(left, right)
        return order < 0 if order else default_task_order(left, right)

    def victims_queue(self, victims: Iterable[Task], preemptor: Task) -> PriorityQueue[Task]:
        """Victims in eviction order: the least important first."""

        def job_then_task(left_job: Job, right_job: Job, left: Task, right: Task) -> bool:
            order = self.compare_jobs(left_job, right_job)
            return order > 0 if order else not self.task_order(left, right)

        def evicted_first(left: Task, right: Task) -> bool:
            if left.job == right.job:
                return not self.task_order(left, right)
            left_job, right_job = self.jobs.get(left.job), self.jobs.get(right.job)
            if left_job is None or right_job is None:
                if left_job is None and right_job is None:
                    return not self.task_order(left, right)
                return left_job is None
            preemptor_job = self.jobs.get(preemptor.job)
            if preemptor_job is not None and left_job.queue != right_job.queue:
                queues = self.queues
                return self.victim_queue_order(
                    queues[left_job.queue], queues[right_job.queue], queues[preemptor_job.queue]
                )
            return job_then_task(left_job, right_job, left, right)

        return PriorityQueue(evicted_first, victims)

    # Victims

    def preemptable(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]:
        return self.call_point(extension_points.PREEMPTABLE, preemptor, candidates)

    def reclaimable(self, reclaimer: Task, candidates: Sequence[Task]) -> list[Task]:
        return self.call_point(extension_points.RECLAIMABLE, reclaimer, candidates)

    def victim_hints(self, point: SessionPoint[list[Task]]) -> list[list[VictimHints]]:
        """The hints of the plugins at a point, tier by tier."""
        known = self._victim_hints[point]
        return [
            [self._catch_hint_faults(plugin, point, known.get(plugin, NO_VICTIM_HINTS)) for plugin, _ in tier]
            for tier in self._functions_of(point).tiers
        ]

    def _catch_hint_faults(self, plugin: str, point: SessionPoint[Any], hints: VictimHints) -> VictimHints:
        never_evicts = hints.never_evicts
        if never_evicts is None:
            return hints

        def never_evicts_or_fault(job: Job, task: Task) -> bool:
            try:
                return bool(never_evicts(job, task))
            except PLUGIN_EXCEPTIONS as fault:
                self.record_plugin_fault(plugin, fault, point.name)
                return False

        return replace(hints, never_evicts=never_evicts_or_fault)

    def unified_evictable(self, context: EvictionContext, candidates: Sequence[Task]) -> list[Task]:
        return self.call_point(extension_points.UNIFIED_EVICTABLE, context, candidates)

    def victim_tasks(self, running: Sequence[Task]) -> list[Task]:
        return self.call_point(extension_points.VICTIM_TASKS, running)

    # Jobs and queues

    def job_invalid(self, job: Job) -> InvalidJob | None:
        """Why the job is invalid; None for a valid job."""
        return self.call_point(extension_points.JOB_VALID, job)

    def job_enqueueable(self, job: Job) -> bool:
        return self.call_point(extension_points.JOB_ENQUEUEABLE, job)

    def job_enqueued(self, job: Job) -> None:
        self.call_point(extension_points.JOB_ENQUEUED, job)

    def job_ready(self, job: Job) -> bool:
        return self.call_point(extension_points.JOB_READY, job)

    def job_pipelined(self, job: Job) -> bool:
        return self.call_point(extension_points.JOB_PIPELINED, job)

    def job_starving(self, job: Job) -> bool:
        return self.call_point(extension_points.JOB_STARVING, job)

    def sub_job_ready(self, job: Job, sub_job: SubJob) -> bool:
        """Whether the sub-job is ready; without sub-group policies, whether the job is."""
        if not job.has_sub_job_policy:
            return self.job_ready(job)
        return self.call_point(extension_points.SUB_JOB_READY, sub_job)

    def sub_job_pipelined(self, job: Job, sub_job: SubJob) -> bool:
        if not job.has_sub_job_policy:
            return self.job_pipelined(job)
        return self.call_point(extension_points.SUB_JOB_PIPELINED, sub_job)

    def overused(self, queue: Queue) -> bool:
        return self.call_point(extension_points.OVERUSED, queue)

    def preemptive(self, queue: Queue, tasks: Sequence[Task]) -> bool:
        return self.call_point(extension_points.PREEMPTIVE, queue, tasks)

    def allocatable(self, queue: Queue, task: Task) -> bool:
        return self.call_point(extension_points.ALLOCATABLE, queue, task)

    def target_job(self, jobs: Sequence[Job]) -> Job | None:
        found = self.call_point(extension_points.TARGET_JOB, jobs)
        return None if found is NO_FUNCTION else found

    def reserved_nodes(self) -> None:
        self.call_point(extension_points.RESERVED_NODES)

    # Nodes and hypernodes

    def pre_predicate(self, task: Task) -> Status | None:
        """The rejection of the task before any node is examined; None if there is none."""
        refused = self._bind_failure_filter.pre_predicate(task) if self._bind_failure_filter is not None else None
        return refused if refused is not None else self.call_point(extension_points.PRE_PREDICATE, task)

    def best_node(self, task: Task, by_score: Mapping[float, Sequence[Node]]) -> Node | None:
        return self.call_point(extension_points.BEST_NODE, task, by_score)

    @property
    def has_best_node_fns(self) -> bool:
        return bool(self._functions_of(extension_points.BEST_NODE).flat)

    def reduced_scores(self, task: Task, candidates: BoolVector) -> FloatVector | Status | None:
        """The sum of map and reduce scores. None without such plugins; a Status if no node can be chosen."""
        reduce_fns = self._functions_of(extension_points.NODE_REDUCE).flat
        if not reduce_fns:
            return None
        total = np.zeros(len(candidates))
        maps = dict(self._functions_of(extension_points.NODE_MAP).flat)
        nodes = self.nodes.select_rows(np.flatnonzero(candidates))
        for plugin, reduce in reduce_fns:
            try:
                raw = {node.name: math.floor(maps[plugin](task, node)) for node in nodes} if plugin in maps else {}
                final = reduce(task, raw)
                if isinstance(final, Status):
                    return final
                total += scores_by_row(final, self.nodes)
            except PLUGIN_EXCEPTIONS as fault:
                self.record_plugin_fault(plugin, fault, "node_reduce")
        return total

    def hyper_node_scores(self, sub_job: SubJob, candidates: Mapping[str, Nodes]) -> dict[str, float]:
        """The sum of the plugins' scores for each hypernode."""
        total = dict.fromkeys(candidates, 0.0)
        for scores in self.call_point(extension_points.HYPER_NODE_ORDER, sub_job, candidates).values():
            for name, score in scores.items():
                if name in total:
                    total[name] += score
        return total

    def hyper_node_gradient_for_job(
        self, job: Job, hyper_node: HyperNode, purpose: SearchPurpose
    ) -> Sequence[Sequence[HyperNode]]:
        """Hypernodes to try, list by list; by default only `hyper_node`."""
        found = self.call_point(extension_points.HYPER_NODE_GRADIENT_FOR_JOB, job, hyper_node, purpose)
        return [[hyper_node]] if found is NO_FUNCTION else found or []

    def hyper_node_gradient_for_sub_job(
        self, sub_job: SubJob, hyper_node: HyperNode, purpose: SearchPurpose
    ) -> Sequence[Sequence[HyperNode]]:
        found = self.call_point(extension_points.HYPER_NODE_GRADIENT_FOR_SUB_JOB, sub_job, hyper_node, purpose)
        return [[hyper_node]] if found is NO_FUNCTION else found or []

    # Simulation

    def simulate_add_task(self, simulation: Simulation, task: Task) -> Any:
        return self.call_point(extension_points.SIMULATE_ADD_TASK, simulation, task)

    def simulate_remove_task(self, simulation: Simulation, task: Task) -> Any:
        return self.call_point(extension_points.SIMULATE_REMOVE_TASK, simulation, task)

    def simulate_predicate(self, simulation: Simulation) -> Any:
        return self.call_point(extension_points.SIMULATE_PREDICATE, simulation)

    def simulate_allocatable(self, simulation: Simulation, queue: Queue) -> bool:
        return self.call_point(extension_points.SIMULATE_ALLOCATABLE, simulation, queue)
