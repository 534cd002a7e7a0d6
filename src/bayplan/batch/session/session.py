"""A session of the batch engine: the cluster as of its opening, and all operations of plugins and actions.

Opened and closed by `engine`. Jobs are the objects of the cluster state; the session records the tasks that it moves,
and they are reset at the end. Node accounts and the snapshot of the framework's plugins are the session's own. Only the
`SessionCommitter`, which gets committed bindings and evictions, changes the cluster.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Protocol

import numpy as np

from bayplan.batch.config.arguments import Arguments
from bayplan.batch.config.volcano_quirk_fixes import QuirkFix
from bayplan.batch.devices.device_pools import DevicePool
from bayplan.batch.diagnostics.plugin_faults import InvalidAnswer
from bayplan.batch.evaluation.bind_failure_filter import BindFailureFilter
from bayplan.batch.evaluation.node_sampling import FeasibleNodeSampling
from bayplan.batch.evaluation.shard_filter import ShardFilter
from bayplan.batch.evaluation.task_class_evaluation import TaskClassEvaluation, TaskClassEvaluations
from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.fit_errors import FitErrors
from bayplan.batch.model.hypernodes import HyperNodeTree
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import FloatVector, Node, Nodes
from bayplan.batch.model.pod_templates import PodTemplateIndex
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.snapshot_changes import LiveSnapshot, SnapshotChanges
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import ReadOnlyTask, Task
from bayplan.batch.session.decision_recorder import DecisionRecorder
from bayplan.batch.session.extension_calls import ExtensionCalls
from bayplan.batch.session.extension_points import PluginSwitches
from bayplan.batch.session.last_choices import LastChoices
from bayplan.batch.session.pre_bind_state import PreBindState
from bayplan.batch.session.statement import Statement
from bayplan.clock import Clock
from bayplan.framework.api.status import Status, error
from bayplan.framework.runtime.bind_request_factory import BindRequestFactory
from bayplan.framework.runtime.bind_request_mutation import MutateBindRequestError
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS
from bayplan.framework.runtime.scoring import top_positions
from bayplan.objects.volcano.types import PodGroupCondition
from bayplan.snapshot import BoolVector, Catalog, RowVector, Snapshot
from bayplan.snapshot.journal import ChangeJournal
from bayplan.telemetry.decisions import BEST_NODES, DecisionRing

LiveCheck = Callable[[LiveSnapshot, Sequence[Task]], bool]

_STATUSES_WITHOUT_DEVICES = (None, TaskStatus.RELEASING, TaskStatus.PIPELINED)


class SessionCommitter(Protocol):
    """Receiver of a session's commits."""

    def bind(self, task: Task) -> Status | None:
        """Bind a task; a Status if its node has no capacity for it any more."""
        ...

    def evict(self, task: Task, reason: str) -> bool:
        """Delete a pod; False if that is not possible."""
        ...

    def admit(self, task: Task) -> None:
        """Remove the gate that holds a pod until its queue has capacity."""
        ...

    def nominate(self, task: Task) -> None:
        """Reserve the resources being released for the task against other engines."""
        ...

    def still_fits(self, tasks: Sequence[Task]) -> bool:
        """Whether all tasks fit the current cluster state: now, or after evictions if they are pipelined."""
        ...

    @property
    def live(self) -> LiveSnapshot | None:
        """The cluster at the last `still_fits`; None if no other engine changed it since the session opened."""
        ...


class Session(ExtensionCalls):
    """The session that plugins and actions work on."""

    def __init__(
        self,
        *,
        uid: str,
        tiers: Sequence[Sequence[PluginSwitches]],
        actions: Sequence[str],
        arguments: Mapping[str, Arguments],
        jobs: dict[str, Job],
        queues: dict[str, Queue],
        nodes: Nodes,
        hyper_nodes: HyperNodeTree,
        catalog: Catalog,
        committer: SessionCommitter,
        clock: Clock,
        chance: random.Random,
        snapshot_changes: SnapshotChanges,
        templates: PodTemplateIndex,
        quirk_fixes: Set[QuirkFix] = frozenset(),
        node_sampling: FeasibleNodeSampling | None = None,
        shard_filter: ShardFilter | None = None,
        preferred_nodes: Mapping[str, str] | None = None,
        last_choices: LastChoices | None = None,
        bind_request_factory: BindRequestFactory | None = None,
        queue_admission: bool = False,
        records: DecisionRing,
    ) -> None:
        super().__init__(
            tiers,
            quirk_fixes,
            shard_filter,
            BindFailureFilter(bind_request_factory.failures) if bind_request_factory is not None else None,
        )
        self.uid = uid
        self.jobs = jobs
        self.queues = queues
        self.nodes = nodes
        self.hyper_nodes = hyper_nodes
        self.catalog = catalog
        self.snapshot_changes = snapshot_changes
        self.templates = templates
        self.waiting_templates: dict[int, Task] = {}  # templates pending at the opening, each with one of its tasks
        self.node_sampling = node_sampling
        self.preferred_nodes = preferred_nodes or {}  # by pod key: decides between nodes with equal scores
        self.last_choices = last_choices or LastChoices()
        self.last_choices.begin_session()
        self.clock = clock
        self.chance = chance
        self.total_resource: Amounts = nodes.accounts.total()
        self.actions = tuple(actions)
        self.plugins: dict[str, Any] = {}
        self.queue_gauges: dict[str, dict[str, float]] = {}
        self.job_shares: dict[str, float] = {}  # by uid: dominant shares, if a plugin computes them
        self.events: list[tuple[str, str, str, str]] = []  # (job, type, reason, text) of pod groups
        self.annotations: dict[str, dict[str, str]] = {}  # by pod key: annotations that plugins patch onto pods
        self.request_annotations: dict[str, dict[str, str]] = {}  # by pod key: annotations of bind requests
        # by task uid: annotations of bind requests not yet sent
        self._pending_annotations: dict[str, dict[str, str]] = {}
        self.pre_binds: dict[str, PreBindState] = {}  # by uid: reservations for tasks that have a node
        self.dirty_jobs: set[str] = set()
        # by uid: moved tasks, and the status under which their node counted them
        self.moved_tasks: dict[str, tuple[Task, TaskStatus | None]] = {}
        self.device_pools: list[DevicePool] = []
        # by plugin: whether a statement is still valid after changes by another engine
        self.live_checks: dict[str, LiveCheck] = {}
        self.evaluations = TaskClassEvaluations(self)
        self.decision_recorder = DecisionRecorder(records, clock)
        self._action_statements: list[Statement] = []
        self._arguments = arguments
        self._committer = committer
        self._bind_request_factory = bind_request_factory
        self._queue_admission = queue_admission

    def release(self) -> None:
        """Drop all references: the session and its plugins' functions reference each other and all plugin data.

        If the garbage collector freed a large session, it would block the event loop for a tenth of a second.
        """
        vars(self).clear()

    # Lookups

    @property
    def snapshot(self) -> Snapshot:
        """The nodes and pods as the framework's plugins see them."""
        return self.nodes.snapshot

    @property
    def changed_rows(self) -> ChangeJournal:
        """Rows in the order in which this session changed them."""
        return self.nodes.snapshot.touched

    def node(self, name: str) -> Node | None:
        return self.nodes.get(name)

    def job_of(self, task: Task) -> Job | None:
        return self.jobs.get(task.job)

    def action_arguments(self, action: str) -> Arguments:
        """The arguments of an action under `configurations`; empty without an entry."""
        found = self._arguments.get(action)
        return Arguments({}) if found is None else found

    def argument_warnings(self) -> list[str]:
        """Warnings about arguments that actions could not use, one message each."""
        return [message for arguments in self._arguments.values() for message in arguments.warnings]

    def hierarchy_enabled(self, plugin: str) -> bool:
        """`enableHierarchy` of the first entry of a plugin."""
        for tier in self.tiers:
            for each in tier:
                if each.name == plugin:
                    return each.enabled("enableHierarchy")
        return False

    # Placement

    def statement(self) -> Statement:
        """A new statement. If the action fails, its uncommitted operations are undone."""
        statement = Statement(self)
        self._action_statements.append(statement)
        return statement

    def begin_action(self) -> None:
        self._action_statements.clear()

    def undo_action(self) -> None:
        """Undo the operations that the action neither committed nor discarded. Otherwise half a gang would count as
        started."""
        for statement in reversed(self._action_statements):
            statement.discard()

    def allocate(self, task: Task, node: Node) -> Status | None:
        """Place a task at once, and bind all tasks of its job when it is ready. Returns a Status on failure.

        A refusal by an event handler is ignored.
        """
        if not self.add_task_to_node(task, node.name, TaskStatus.ALLOCATED):
            return error(f"task <{task.key}> already on node <{node.name}>")
        self.call_allocate_handlers(task)
        job = self.jobs[task.job]
        if self.job_ready(job):
            allocated = list(job.with_status(TaskStatus.ALLOCATED))
            if not self.still_fits(allocated):
                self.statement().unpipeline(task)
                return error(
                    f"task <{task.key}> no longer fits node <{node.name}>: another engine used its resources meanwhile"
                )
            failures = self.collect_bind_request_annotations(allocated)
            for each in allocated:
                if each.uid in failures:
                    self.statement().unpipeline(each)
            if failures and not self.job_ready(job):
                return error(next(iter(failures.values())))
            for each in allocated:
                refused = None if each.uid in failures else self.bind_task(each)
                if refused is not None:
                    return refused
        return None

    def evict(self, task: Task, reason: str) -> bool:
        """Evict a task at once."""
        if not self.evict_task(task, reason):
            return False
        self.set_task_status(task, TaskStatus.RELEASING)
        self.update_task_on_node(task)
        self.call_deallocate_handlers(task)
        return True

    # Node choice

    def evaluate_class(self, task: Task) -> TaskClassEvaluation:
        """The evaluation of all nodes for tasks of this class."""
        return self.evaluations.of(task)

    def predicate(self, task: Task, node: Node) -> tuple[Status, ...]:
        """The predicates' answers for one node; empty if the task can run there."""
        return self.evaluate_class(task).statuses(task, node.row)

    def scores(self, task: Task, candidates: BoolVector) -> FloatVector | None:
        """Totals by row, for these candidates; None if scoring failed as a whole."""
        return self.evaluate_class(task).scores(task, candidates)

    def choose(self, task: Task, candidates: BoolVector, evaluation: TaskClassEvaluation | None = None) -> Node | None:
        """The best candidate; a single one is not scored. None if no score is comparable."""
        first = int(candidates.argmax()) if len(candidates) else 0
        if not candidates[first + 1 :].any():
            if not candidates[first : first + 1].any():
                return None
            self.decision_recorder.note_choice(task, self.snapshot.nodes.names[first], feasible=1)
            self.verbose_log.log_only_candidate(task, self.snapshot.nodes.names[first])
            return self.nodes.at_row(first)
        evaluation = evaluation or self.evaluate_class(task)
        totals = evaluation.scores(task, candidates)
        if totals is None:
            return None
        ranked = np.where(candidates, totals, -np.inf)
        row = self._best_row(task, candidates, ranked)
        if row is None:
            return None
        best = evaluation.ranking(top_positions(ranked, row, BEST_NODES), totals)
        name = self.snapshot.nodes.names[row]
        self.decision_recorder.note_choice(task, name, int(np.count_nonzero(candidates)), best)
        self.last_choices.record(task.key, name)
        if self.verbose_log.steps:
            self.verbose_log.log_scores(task, name, self._scores_by_name(candidates, totals), best)
        return self.nodes.at_row(row)

    def _scores_by_name(self, candidates: BoolVector, totals: FloatVector) -> dict[str, float]:
        names = self.snapshot.nodes.names
        return {names[row]: totals.item(row) for row in np.flatnonzero(candidates).tolist()}

    def _best_row(self, task: Task, candidates: BoolVector, ranked: FloatVector) -> int | None:
        """The row of the best candidate. Scores that are not comparable become minus infinity."""
        chosen_by_plugin = self._call_best_node(task, candidates, ranked) if self.has_best_node_fns else None
        best = ranked.item(ranked.argmax())
        if not best > -np.inf:  # NaN or minus infinity: neither is ever the best
            ranked[np.isnan(ranked)] = -np.inf
            best = ranked.max()
        if chosen_by_plugin is not None:
            return chosen_by_plugin.row
        return self.tie_break(task, (ranked == best).nonzero()[0]) if best > -np.inf else None

    def _call_best_node(self, task: Task, candidates: BoolVector, totals: FloatVector) -> Node | None:
        by_score: dict[float, list[Node]] = {}
        for row in np.flatnonzero(candidates).tolist():
            by_score.setdefault(float(totals[row]), []).append(self.nodes.at_row(row))
        return self.best_node(task, by_score)

    def tie_break(self, task: Task, rows: RowVector) -> int:
        """One of the rows with equal scores: the preferred node, else the last choice for the task, else random."""
        preferred = self.preferred_nodes.get(task.key)
        row = self.previous_row(task) if preferred is None else self.snapshot.nodes.index.get(preferred)
        if row is not None and row in rows:
            return row
        return int(rows[0] if len(rows) == 1 else rows[self.chance.randrange(len(rows))])

    def previous_row(self, task: Task) -> int | None:
        """The row of the node that the previous session chose for the task at this point."""
        name = self.last_choices.previous(task.key)
        return None if name is None else self.snapshot.nodes.index.get(name)

    def rows_worth_evicting(self, task: Task) -> BoolVector:
        """Rows on which eviction can help the task, as far as an earlier action found out."""
        job = self.jobs.get(task.job)
        errors = job.nodes_fit_errors.get(task.uid) if job is not None else None
        if errors is None or errors.unresolvable is None:
            return np.ones(len(self.nodes), dtype=np.bool_)
        return ~errors.unresolvable

    def record_failure(self, task: Task, errors: FitErrors) -> None:
        """Record why the task found no node in this session."""
        self.verbose_log.log_fit_errors(task, errors)
        job = self.jobs.get(task.job)
        if job is not None:
            job.record_fit_errors(task, errors)

    # Building blocks of statements

    def set_task_status(self, task: Task, status: TaskStatus) -> None:
        """Change the status of a task, in its job as well."""
        if task.uid not in self.moved_tasks:
            self.moved_tasks[task.uid] = (task, task.counted_status)
        job = self.jobs.get(task.job)
        if job is not None and task.uid in job.tasks:
            job.set_status(task, status)
        else:
            task.status = status

    def add_task_to_node(self, task: Task, node_name: str, status: TaskStatus) -> bool:
        """Count a task on a node. False: the job or node does not exist, or the task is there already."""
        known = task.job in self.jobs
        self.set_task_status(task, status)
        task.node_name = node_name
        row = self.snapshot.nodes.index.get(node_name)
        if row is None or task.uid in self.nodes.accounts.tasks[row]:
            return False
        self._count_on_row(task, row)
        return known

    def remove_task_from_node(self, task: Task) -> None:
        """Stop counting a task on its node."""
        row = self.snapshot.nodes.index.get(task.node_name)
        if row is not None:
            self._uncount_on_row(task, row)

    def update_task_on_node(self, task: Task) -> None:
        """Count a task on its node under its new status."""
        row = self.snapshot.nodes.index.get(task.node_name)
        if row is not None:
            self._uncount_on_row(task, row)
            self._count_on_row(task, row)

    def _count_on_row(self, task: Task, row: int) -> None:
        self.nodes.accounts.add_task(row, task)
        self.changed_rows.append(row)
        if self.device_pools and task.counted_status not in _STATUSES_WITHOUT_DEVICES:
            for pool in self.device_pools:
                pool.add_task(task, self.nodes.at_row(row))

    def _uncount_on_row(self, task: Task, row: int) -> None:
        counted_as = task.counted_status
        self.nodes.accounts.remove_task(row, task)
        self.changed_rows.append(row)
        if self.device_pools and counted_as not in _STATUSES_WITHOUT_DEVICES:
            for pool in self.device_pools:
                pool.remove_task(task, self.nodes.at_row(row))

    def clear_node(self, task: Task) -> None:
        task.node_name = ""
        task.job_allocated_hyper_node = ""

    def call_allocate_handlers(self, task: Task) -> bool:
        """Call every allocate handler; False if one of them refuses."""
        accepted = True
        for handler in self.event_handlers:
            if handler.allocate is None:
                continue
            try:
                status = handler.allocate(task)
                if status is not None and not isinstance(status, Status):
                    raise InvalidAnswer(status, "a Status, or None to accept,")
            except PLUGIN_EXCEPTIONS as fault:
                self.record_plugin_fault(handler.plugin, fault, "its allocate handler")
                continue
            if status is not None and not status.ok:
                self.log_plugin_message(handler.plugin, status.message)
                accepted = False
        return accepted

    def call_deallocate_handlers(self, task: Task) -> None:
        for handler in self.event_handlers:
            if handler.deallocate is None:
                continue
            try:
                handler.deallocate(task)
            except PLUGIN_EXCEPTIONS as fault:
                self.record_plugin_fault(handler.plugin, fault, "its deallocate handler")

    def still_fits(self, tasks: Sequence[Task]) -> bool:
        """Whether the tasks fit the current cluster state and all live checks accept them."""
        if self._bind_failure_filter is not None and not self._bind_failure_filter.allows_binding(tasks):
            return False
        if not self._committer.still_fits(tasks):
            return False
        live = self._committer.live
        return live is None or all(check(live, tasks) for check in self.live_checks.values())

    def collect_bind_request_annotations(self, tasks: Iterable[Task]) -> dict[str, str]:
        """Collect the plugins' annotations for the bind requests. Returns errors by uid of tasks that cannot be bound.

        All tasks of a gang are processed before one is sent: they start together or not at all.
        """
        errors: dict[str, str] = {}
        for task in tasks if self._bind_request_factory is not None else ():
            node_name = task.node_name
            try:
                self._pending_annotations[task.uid] = self.mutate_bind_request_annotations(task, node_name)
            except MutateBindRequestError as fault:
                errors[task.uid] = self.jobs[task.job].fit_error = str(fault)
            finally:
                task.node_name = node_name  # undo a change by a plugin that has the original task
        return errors

    def bind_task(self, task: Task) -> Status | None:
        """Bind a task; a Status says why it was refused."""
        annotations = self._pending_annotations.pop(task.uid, {})
        refused = self._committer.bind(task)
        if refused is None:
            self.decision_recorder.record_decision(task, len(self.nodes))
            if self._bind_request_factory is not None:
                self.request_annotations[task.key] = annotations
            self.set_task_status(task, TaskStatus.BINDING)
        return refused

    def mutate_bind_request_annotations(self, task: Task, node_name: str) -> dict[str, str]:
        """The plugins' annotations for a bind request, collected once for each request."""
        if self._bind_request_factory is None or not self.bind_request_mutate_fns:
            return {}
        return self._bind_request_factory.mutation.annotations(
            self.bind_request_mutate_fns, task.key, ReadOnlyTask(task), node_name
        )

    def nominate_task(self, task: Task) -> None:
        self._committer.nominate(task)

    def admit_task(self, task: Task) -> None:
        """Admit a gated task whose queue has capacity, if Volcano's gate is its only one and the pod requests that."""
        if self._queue_admission and task.has_only_queue_gate and task.awaits_queue_admission:
            self._committer.admit(task)

    def evict_task(self, task: Task, reason: str) -> bool:
        return task.job in self.jobs and self._committer.evict(task, reason)

    # Results

    def record_event(self, job: Job, kind: str, reason: str, text: str) -> None:
        """Record an event of the pod group: kind is Normal or Warning."""
        self.events.append((job.uid, kind, reason, text))

    def update_condition(self, job: Job, condition: PodGroupCondition) -> None:
        """Replace the condition of the same type, or append it."""
        for position, old in enumerate(job.conditions):
            if old.type == condition.type:
                job.conditions[position] = condition
                return
        job.conditions.append(condition)

    def set_queue_gauge(self, queue: str, name: str, value: float) -> None:
        self.queue_gauges.setdefault(queue, {})[name] = value

    def mark_job_dirty(self, job: Job) -> None:
        """Mark the job's hypernodes to be saved after the session."""
        self.dirty_jobs.add(job.uid)
