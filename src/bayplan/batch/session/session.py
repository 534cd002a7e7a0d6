"""One pass of the batch engine: the cluster as it was when it opened, and everything plugins and actions do with it.

Opened and closed by `engine`. Jobs are the ledger's own objects; a session notes which tasks it moves and they are set
back at the end. Node accounts and the snapshot that the framework's plugins read are the session's alone. Nothing here
touches the cluster except through `cluster`, which takes bindings and evictions as they are committed.
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
from bayplan.batch.session.decision_recorder import DecisionRecorder, best_rows
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
from bayplan.objects.volcano.types import PodGroupCondition
from bayplan.snapshot import BoolVector, Catalog, RowVector, Snapshot
from bayplan.snapshot.journal import ChangeJournal
from bayplan.telemetry.decisions import DecisionRing

LiveCheck = Callable[[LiveSnapshot, Sequence[Task]], bool]

_STATUSES_WITHOUT_DEVICES = (None, TaskStatus.RELEASING, TaskStatus.PIPELINED)


class SessionCommitter(Protocol):
    """Where a session's decisions go."""

    def bind(self, task: Task) -> Status | None:
        """Hand a task to the binder; a Status: its node has no room for it any more."""
        ...

    def evict(self, task: Task, reason: str) -> bool:
        """Have a pod deleted; False: it cannot be."""
        ...

    def admit(self, task: Task) -> None:
        """Have the gate removed that holds a pod until its queue has room."""
        ...

    def nominate(self, task: Task) -> None:
        """Others are to leave the task the room that is being released for it."""
        ...

    def still_fits(self, tasks: Sequence[Task]) -> bool:
        """Whether all of these fit the cluster of this moment, which others change too: now, or soon if they wait."""
        ...

    @property
    def live(self) -> LiveSnapshot | None:
        """The cluster of the last `still_fits`; None where nobody else has changed it since the session opened."""
        ...


class Session(ExtensionCalls):
    """What plugins and actions work on."""

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
        cluster: SessionCommitter,
        clock: Clock,
        chance: random.Random,
        view: SnapshotChanges,
        templates: PodTemplateIndex,
        mends: Set[QuirkFix] = frozenset(),
        share: FeasibleNodeSampling | None = None,
        fence: ShardFilter | None = None,
        favourites: Mapping[str, str] | None = None,
        last_choices: LastChoices | None = None,
        desk: BindRequestFactory | None = None,
        queues_admit: bool = False,
        records: DecisionRing,
    ) -> None:
        super().__init__(tiers, mends, fence, BindFailureFilter(desk.failures) if desk is not None else None)
        self.uid = uid
        self.jobs = jobs
        self.queues = queues
        self.nodes = nodes
        self.hyper_nodes = hyper_nodes
        self.catalog = catalog
        self.snapshot_changes = view
        self.templates = templates
        self.waiting_templates: dict[int, Task] = {}  # of what was pending when it opened, each with one of its tasks
        self.node_sampling = share
        self.preferred_nodes = favourites or {}  # by pod key: the node to take where several are equally good
        self.last_choices = last_choices or LastChoices()
        self.last_choices.begin_session()
        self.clock = clock
        self.chance = chance
        self.total_resource: Amounts = nodes.accounts.total()
        self.actions = tuple(actions)
        self.plugins: dict[str, Any] = {}
        self.queue_gauges: dict[str, dict[str, float]] = {}
        self.job_shares: dict[str, float] = {}  # by uid: dominant shares, where a plugin counts them
        self.events: list[tuple[str, str, str, str]] = []  # (job, type, reason, text) of pod groups
        self.annotations: dict[str, dict[str, str]] = {}  # (pod key) what plugins patch onto pods
        self.request_annotations: dict[str, dict[str, str]] = {}  # (pod key) what they hand to the binder
        self._pending_annotations: dict[str, dict[str, str]] = {}  # (uid of the task) the same before it is sent
        self.pre_binds: dict[str, PreBindState] = {}  # by uid: what was reserved for tasks that have a node
        self.dirty_jobs: set[str] = set()
        self.moved_tasks: dict[
            str, tuple[Task, TaskStatus | None]
        ] = {}  # tasks that were moved, and how their node had them
        self.device_pools: list[DevicePool] = []
        self.live_checks: dict[str, LiveCheck] = {}  # by plugin: whether a statement may be, once others have been busy
        self.evaluations = TaskClassEvaluations(self)
        self.decision_recorder = DecisionRecorder(records, clock)
        self._action_statements: list[Statement] = []
        self._arguments = arguments
        self._committer = cluster
        self._desk = desk
        self._queue_admission = queues_admit

    def release(self) -> None:
        """Let go of everything: a session and the functions of its plugins hold each other, and with them whatever the
        plugins counted. Left to the collector of garbage, a large one would hold the loop for a tenth of a second."""
        vars(self).clear()

    # what is there ----------------------------------------------------------------------------------------------

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
        """What the file says under `configurations` for an action; empty where it says nothing."""
        found = self._arguments.get(action)
        return Arguments({}) if found is None else found

    def argument_warnings(self) -> list[str]:
        """Arguments that actions asked for and could not use, a sentence each."""
        return [sentence for arguments in self._arguments.values() for sentence in arguments.warnings]

    def hierarchy_enabled(self, plugin: str) -> bool:
        """`enableHierarchy` of the first mention of a plugin."""
        for tier in self.tiers:
            for each in tier:
                if each.name == plugin:
                    return each.enabled("enableHierarchy")
        return False

    # placing ----------------------------------------------------------------------------------------------------

    def statement(self) -> Statement:
        """A new one; with what it leaves uncommitted it goes when the action that asked for it breaks off."""
        statement = Statement(self)
        self._action_statements.append(statement)
        return statement

    def begin_action(self) -> None:
        self._action_statements.clear()

    def undo_action(self) -> None:
        """Undo what the action has neither committed nor discarded: half a gang would else count as started."""
        for statement in reversed(self._action_statements):
            statement.discard()

    def allocate(self, task: Task, node: Node) -> Status | None:
        """Place a task at once and, when its job is ready, bind all that it has; a Status where that fails.

        What handlers of events object is not heard."""
        if not self.add_task_to_node(task, node.name, TaskStatus.ALLOCATED):
            return error(f"task <{task.key}> already on node <{node.name}>")
        self.call_allocate_handlers(task)
        job = self.jobs[task.job]
        if self.job_ready(job):
            waiting = list(job.with_status(TaskStatus.ALLOCATED))
            if not self.still_fits(waiting):
                self.statement().unpipeline(task)
                return error(f"task <{task.key}> no longer fits node <{node.name}>: others took its room meanwhile")
            unasked = self.collect_bind_request_annotations(waiting)
            for ready in waiting:
                if ready.uid in unasked:
                    self.statement().unpipeline(ready)
            if unasked and not self.job_ready(job):
                return error(next(iter(unasked.values())))
            for ready in waiting:
                refused = None if ready.uid in unasked else self.bind_task(ready)
                if refused is not None:
                    return refused
        return None

    def evict(self, task: Task, reason: str) -> bool:
        """Evict at once."""
        if not self.evict_task(task, reason):
            return False
        self.set_task_status(task, TaskStatus.RELEASING)
        self.update_task_on_node(task)
        self.call_deallocate_handlers(task)
        return True

    # where to ---------------------------------------------------------------------------------------------------

    def evaluate_class(self, task: Task) -> TaskClassEvaluation:
        """What is known about where tasks like this one can go."""
        return self.evaluations.of(task)

    def predicate(self, task: Task, node: Node) -> tuple[Status, ...]:
        """What the predicates say of one node; nothing where the task may go there."""
        return self.evaluate_class(task).statuses(task, node.row)

    def scores(self, task: Task, candidates: BoolVector) -> FloatVector | None:
        """Totals by row, for these candidates; None where scoring failed as a whole."""
        return self.evaluate_class(task).scores(task, candidates)

    def choose(self, task: Task, candidates: BoolVector, prospect: TaskClassEvaluation | None = None) -> Node | None:
        """The best of the candidates; the only one is taken unscored. None: no score can be compared."""
        first = int(candidates.argmax()) if len(candidates) else 0
        if not candidates[first + 1 :].any():
            if not candidates[first : first + 1].any():
                return None
            self.decision_recorder.note_choice(task, self.snapshot.nodes.names[first], feasible=1)
            self.verbose_log.log_only_candidate(task, self.snapshot.nodes.names[first])
            return self.nodes.at_row(first)
        prospect = prospect or self.evaluate_class(task)
        totals = prospect.scores(task, candidates)
        if totals is None:
            return None
        ranked = np.where(candidates, totals, -np.inf)
        row = self._best_row(task, candidates, ranked)
        if row is None:
            return None
        best, feasible = prospect.ranking(best_rows(ranked, row), totals), int(np.count_nonzero(candidates))
        name = self.snapshot.nodes.names[row]
        self.decision_recorder.note_choice(task, name, feasible, best)
        self.last_choices.record(task.key, name)
        if self.verbose_log.steps:
            self.verbose_log.log_scores(task, name, self._scores_by_name(candidates, totals), best)
        return self.nodes.at_row(row)

    def _scores_by_name(self, candidates: BoolVector, totals: FloatVector) -> dict[str, float]:
        names = self.snapshot.nodes.names
        return {names[row]: totals.item(row) for row in np.flatnonzero(candidates).tolist()}

    def _best_row(self, task: Task, candidates: BoolVector, ranked: FloatVector) -> int | None:
        """The row of the best candidate. Whatever cannot be compared is minus infinity afterwards."""
        overruled = self._call_best_node(task, candidates, ranked) if self.has_best_node_fns else None
        best = ranked.item(ranked.argmax())
        if not best > -np.inf:  # not a number, or minus infinity: neither is ever the best
            ranked[np.isnan(ranked)] = -np.inf
            best = ranked.max()
        if overruled is not None:
            return overruled.row
        return self.tie_break(task, (ranked == best).nonzero()[0]) if best > -np.inf else None

    def _call_best_node(self, task: Task, candidates: BoolVector, totals: FloatVector) -> Node | None:
        by_score: dict[float, list[Node]] = {}
        for row in np.flatnonzero(candidates).tolist():
            by_score.setdefault(float(totals[row]), []).append(self.nodes.at_row(row))
        return self.best_node(task, by_score)

    def tie_break(self, task: Task, rows: RowVector) -> int:
        """One of equally good rows: the task's favourite, else the last choice for it, else any."""
        favourite = self.preferred_nodes.get(task.key)
        row = self.previous_row(task) if favourite is None else self.snapshot.nodes.index.get(favourite)
        if row is not None and row in rows:
            return row
        return int(rows[0] if len(rows) == 1 else rows[self.chance.randrange(len(rows))])

    def previous_row(self, task: Task) -> int | None:
        """The row of the node that the previous session chose for a task at this point."""
        name = self.last_choices.previous(task.key)
        return None if name is None else self.snapshot.nodes.index.get(name)

    def rows_worth_evicting(self, task: Task) -> BoolVector:
        """Rows on which evicting may help the task, as far as an earlier action found out."""
        job = self.jobs.get(task.job)
        errors = job.nodes_fit_errors.get(task.uid) if job is not None else None
        if errors is None or errors.unresolvable is None:
            return np.ones(len(self.nodes), dtype=np.bool_)
        return ~errors.unresolvable

    def record_failure(self, task: Task, errors: FitErrors) -> None:
        """The task found no node in this session; why."""
        self.verbose_log.log_fit_errors(task, errors)
        job = self.jobs.get(task.job)
        if job is not None:
            job.record_fit_errors(task, errors)

    # what statements are made of --------------------------------------------------------------------------------

    def set_task_status(self, task: Task, status: TaskStatus) -> None:
        """Another status for a task, in its job."""
        if task.uid not in self.moved_tasks:
            self.moved_tasks[task.uid] = (task, task.counted_status)
        job = self.jobs.get(task.job)
        if job is not None and task.uid in job.tasks:
            job.set_status(task, status)
        else:
            task.status = status

    def add_task_to_node(self, task: Task, node_name: str, status: TaskStatus) -> bool:
        """Count a task on a node. False: no such job or node, or it is there already."""
        known = task.job in self.jobs
        self.set_task_status(task, status)
        task.node_name = node_name
        row = self.snapshot.nodes.index.get(node_name)
        if row is None or task.uid in self.nodes.accounts.tasks[row]:
            return False
        self._count_on_row(task, row)
        return known

    def remove_task_from_node(self, task: Task) -> None:
        """Take a task off its node."""
        row = self.snapshot.nodes.index.get(task.node_name)
        if row is not None:
            self._uncount_on_row(task, row)

    def update_task_on_node(self, task: Task) -> None:
        """The task stays on its node under another status."""
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
        held_as = task.counted_status
        self.nodes.accounts.remove_task(row, task)
        self.changed_rows.append(row)
        if self.device_pools and held_as not in _STATUSES_WITHOUT_DEVICES:
            for pool in self.device_pools:
                pool.remove_task(task, self.nodes.at_row(row))

    def clear_node(self, task: Task) -> None:
        task.node_name = ""
        task.job_allocated_hyper_node = ""

    def call_allocate_handlers(self, task: Task) -> bool:
        """Tell every handler; False when one of them objects."""
        agreed = True
        for handler in self.event_handlers:
            if handler.allocate is None:
                continue
            try:
                status = handler.allocate(task)
                if status is not None and not isinstance(status, Status):
                    raise InvalidAnswer(status, "a Status, or None where nothing speaks against it,")
            except PLUGIN_EXCEPTIONS as fault:
                self.record_plugin_fault(handler.plugin, fault, "its allocate handler")
                continue
            if status is not None and not status.ok:
                self.log_plugin_message(handler.plugin, status.message)
                agreed = False
        return agreed

    def call_deallocate_handlers(self, task: Task) -> None:
        for handler in self.event_handlers:
            if handler.deallocate is None:
                continue
            try:
                handler.deallocate(task)
            except PLUGIN_EXCEPTIONS as fault:
                self.record_plugin_fault(handler.plugin, fault, "its deallocate handler")

    def still_fits(self, tasks: Sequence[Task]) -> bool:
        """Whether the cluster of this moment has room for them, and nobody who looks at it so objects."""
        if self._bind_failure_filter is not None and not self._bind_failure_filter.allows_binding(tasks):
            return False
        if not self._committer.still_fits(tasks):
            return False
        live = self._committer.live
        return live is None or all(check(live, tasks) for check in self.live_checks.values())

    def collect_bind_request_annotations(self, tasks: Iterable[Task]) -> dict[str, str]:
        """Have plugins say what the binder is to know of each, where it binds; why not, by the uids of tasks that
        cannot do without. All of a gang are asked about before one is sent: they start together or not at all."""
        refused: dict[str, str] = {}
        for task in tasks if self._desk is not None else ():
            node_name = task.node_name
            try:
                self._pending_annotations[task.uid] = self.mutate_bind_request_annotations(task, node_name)
            except MutateBindRequestError as fault:
                refused[task.uid] = self.jobs[task.job].fit_error = str(fault)
            finally:
                task.node_name = node_name  # whatever a plugin has done to a task that it knows from elsewhere
        return refused

    def bind_task(self, task: Task) -> Status | None:
        """Have a task bound; a Status says why it was not taken."""
        noted = self._pending_annotations.pop(task.uid, {})
        refused = self._committer.bind(task)
        if refused is None:
            self.decision_recorder.record_decision(task, len(self.nodes))
            if self._desk is not None:
                self.request_annotations[task.key] = noted
            self.set_task_status(task, TaskStatus.BINDING)
        return refused

    def mutate_bind_request_annotations(self, task: Task, node_name: str) -> dict[str, str]:
        """What plugins hand to the binder with a task: asked once for each request that is about to be made."""
        if self._desk is None or not self.bind_request_mutate_fns:
            return {}
        return self._desk.mutation.annotations(self.bind_request_mutate_fns, task.key, ReadOnlyTask(task), node_name)

    def nominate_task(self, task: Task) -> None:
        self._committer.nominate(task)

    def admit_task(self, task: Task) -> None:
        """Its queue has room for a gated task: let it go if it is held for that alone, and asked to be."""
        if self._queue_admission and task.has_only_queue_gate and task.awaits_queue_admission:
            self._committer.admit(task)

    def evict_task(self, task: Task, reason: str) -> bool:
        return task.job in self.jobs and self._committer.evict(task, reason)

    # what is told afterwards ------------------------------------------------------------------------------------

    def record_event(self, job: Job, kind: str, reason: str, text: str) -> None:
        """An event of the pod group: kind is Normal or Warning."""
        self.events.append((job.uid, kind, reason, text))

    def update_condition(self, job: Job, condition: PodGroupCondition) -> None:
        """Put a condition in the place of the one of its type, or at the end."""
        for position, old in enumerate(job.conditions):
            if old.type == condition.type:
                job.conditions[position] = condition
                return
        job.conditions.append(condition)

    def set_queue_gauge(self, queue: str, name: str, value: float) -> None:
        """A number about a queue for people who watch it."""
        self.queue_gauges.setdefault(queue, {})[name] = value

    def mark_job_dirty(self, job: Job) -> None:
        """What the job was allocated to must be remembered after the session."""
        self.dirty_jobs.add(job.uid)
