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
from bayplan.batch.config.volcano_quirk_fixes import Mend
from bayplan.batch.devices.device_pools import DevicePool
from bayplan.batch.diagnostics.plugin_faults import Nonsense
from bayplan.batch.evaluation.bind_failure_filter import GivenUp
from bayplan.batch.evaluation.node_sampling import Share
from bayplan.batch.evaluation.shard_filter import Fence
from bayplan.batch.evaluation.task_class_evaluation import Prospect, Prospects
from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.fit_errors import FitErrors
from bayplan.batch.model.hypernodes import HyperNodes
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import FloatVector, Node, Nodes
from bayplan.batch.model.pod_templates import Templates
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.snapshot_changes import ClusterView, LiveView
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import ShownTask, Task
from bayplan.batch.session.decision_recorder import Choices, best_rows
from bayplan.batch.session.extension_calls import Questions
from bayplan.batch.session.extension_points import Switches
from bayplan.batch.session.last_choices import LastChoices
from bayplan.batch.session.pre_bind_state import PreBinding
from bayplan.batch.session.statement import Statement
from bayplan.clock import Clock
from bayplan.framework.api.status import Status, error
from bayplan.framework.runtime.bind_request_factory import BindRequestDesk
from bayplan.framework.runtime.bind_request_mutation import MutateFailed
from bayplan.framework.runtime.plugin_call import FAULTS
from bayplan.objects.volcano.types import PodGroupCondition
from bayplan.snapshot import BoolVector, Catalog, RowVector, Snapshot
from bayplan.snapshot.journal import Journal
from bayplan.telemetry.decisions import DecisionRing

LiveCheck = Callable[[LiveView, Sequence[Task]], bool]

_WITHOUT_DEVICES = (None, TaskStatus.RELEASING, TaskStatus.PIPELINED)


class Cluster(Protocol):
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

    def promise(self, task: Task) -> None:
        """Others are to leave the task the room that is being released for it."""
        ...

    def still_fits(self, tasks: Sequence[Task]) -> bool:
        """Whether all of these fit the cluster of this moment, which others change too: now, or soon if they wait."""
        ...

    @property
    def live(self) -> LiveView | None:
        """The cluster of the last `still_fits`; None where nobody else has changed it since the session opened."""
        ...


class Session(Questions):
    """What plugins and actions work on."""

    def __init__(
        self,
        *,
        uid: str,
        tiers: Sequence[Sequence[Switches]],
        actions: Sequence[str],
        arguments: Mapping[str, Arguments],
        jobs: dict[str, Job],
        queues: dict[str, Queue],
        nodes: Nodes,
        hyper_nodes: HyperNodes,
        catalog: Catalog,
        cluster: Cluster,
        clock: Clock,
        chance: random.Random,
        view: ClusterView,
        templates: Templates,
        mends: Set[Mend] = frozenset(),
        share: Share | None = None,
        fence: Fence | None = None,
        favourites: Mapping[str, str] | None = None,
        last_choices: LastChoices | None = None,
        desk: BindRequestDesk | None = None,
        queues_admit: bool = False,
        records: DecisionRing,
    ) -> None:
        super().__init__(tiers, mends, fence, GivenUp(desk.failures) if desk is not None else None)
        self.uid = uid
        self.jobs = jobs
        self.queues = queues
        self.nodes = nodes
        self.hyper_nodes = hyper_nodes
        self.catalog = catalog
        self.view = view
        self.templates = templates
        self.waiting_templates: dict[int, Task] = {}  # of what was pending when it opened, each with one of its tasks
        self.share = share
        self.favourites = favourites or {}  # by pod key: the node to take where several are equally good
        self.last_choices = last_choices or LastChoices()
        self.last_choices.begin_session()
        self.clock = clock
        self.chance = chance
        self.total_resource: Amounts = nodes.room.total()
        self.actions = tuple(actions)
        self.plugins: dict[str, Any] = {}
        self.queue_gauges: dict[str, dict[str, float]] = {}
        self.job_shares: dict[str, float] = {}  # by uid: dominant shares, where a plugin counts them
        self.events: list[tuple[str, str, str, str]] = []  # (job, type, reason, text) of pod groups
        self.annotations: dict[str, dict[str, str]] = {}  # (pod key) what plugins patch onto pods
        self.request_annotations: dict[str, dict[str, str]] = {}  # (pod key) what they hand to the binder
        self._noted: dict[str, dict[str, str]] = {}  # (uid of the task) the same before it is sent
        self.pre_binds: dict[str, PreBinding] = {}  # by uid: what was reserved for tasks that have a node
        self.dirty_jobs: set[str] = set()
        self.moved: dict[str, tuple[Task, TaskStatus | None]] = {}  # tasks that were moved, and how their node had them
        self.device_pools: list[DevicePool] = []
        self.live_checks: dict[str, LiveCheck] = {}  # by plugin: whether a statement may be, once others have been busy
        self.prospects = Prospects(self)
        self.choices = Choices(records, clock)
        self._of_this_action: list[Statement] = []
        self._arguments = arguments
        self._cluster = cluster
        self._desk = desk
        self._queues_admit = queues_admit

    def end(self) -> None:
        """Let go of everything: a session and the functions of its plugins hold each other, and with them whatever the
        plugins counted. Left to the collector of garbage, a large one would hold the loop for a tenth of a second."""
        vars(self).clear()

    # what is there ----------------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot:
        """The nodes and pods as the framework's plugins see them."""
        return self.nodes.snapshot

    @property
    def touched(self) -> Journal:
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

    def misfits_of_arguments(self) -> list[str]:
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
        self._of_this_action.append(statement)
        return statement

    def begin_action(self) -> None:
        self._of_this_action.clear()

    def undo_action(self) -> None:
        """Undo what the action has neither committed nor discarded: half a gang would else count as started."""
        for statement in reversed(self._of_this_action):
            statement.discard()

    def allocate(self, task: Task, node: Node) -> Status | None:
        """Place a task at once and, when its job is ready, bind all that it has; a Status where that fails.

        What handlers of events object is not heard."""
        if not self.put(task, node.name, TaskStatus.ALLOCATED):
            return error(f"task <{task.key}> already on node <{node.name}>")
        self.tell_allocated(task)
        job = self.jobs[task.job]
        if self.job_ready(job):
            waiting = list(job.with_status(TaskStatus.ALLOCATED))
            if not self.still_fits(waiting):
                self.statement().un_pipeline(task)
                return error(f"task <{task.key}> no longer fits node <{node.name}>: others took its room meanwhile")
            unasked = self.ask_for_annotations(waiting)
            for ready in waiting:
                if ready.uid in unasked:
                    self.statement().un_pipeline(ready)
            if unasked and not self.job_ready(job):
                return error(next(iter(unasked.values())))
            for ready in waiting:
                refused = None if ready.uid in unasked else self.send_binding(ready)
                if refused is not None:
                    return refused
        return None

    def evict(self, task: Task, reason: str) -> bool:
        """Evict at once."""
        if not self.send_eviction(task, reason):
            return False
        self.move(task, TaskStatus.RELEASING)
        self.recount(task)
        self.tell_deallocated(task)
        return True

    # where to ---------------------------------------------------------------------------------------------------

    def prospect(self, task: Task) -> Prospect:
        """What is known about where tasks like this one can go."""
        return self.prospects.of(task)

    def predicate(self, task: Task, node: Node) -> tuple[Status, ...]:
        """What the predicates say of one node; nothing where the task may go there."""
        return self.prospect(task).statuses(task, node.row)

    def scores(self, task: Task, candidates: BoolVector) -> FloatVector | None:
        """Totals by row, for these candidates; None where scoring failed as a whole."""
        return self.prospect(task).scores(task, candidates)

    def choose(self, task: Task, candidates: BoolVector, prospect: Prospect | None = None) -> Node | None:
        """The best of the candidates; the only one is taken unscored. None: no score can be compared."""
        first = int(candidates.argmax()) if len(candidates) else 0
        if not candidates[first + 1 :].any():
            if not candidates[first : first + 1].any():
                return None
            self.choices.note(task, self.snapshot.nodes.names[first], feasible=1)
            self.narration.only_candidate(task, self.snapshot.nodes.names[first])
            return self.nodes.at(first)
        prospect = prospect or self.prospect(task)
        totals = prospect.scores(task, candidates)
        if totals is None:
            return None
        ranked = np.where(candidates, totals, -np.inf)
        row = self._best_of(task, candidates, ranked)
        if row is None:
            return None
        best, feasible = prospect.ranking(best_rows(ranked, row), totals), int(np.count_nonzero(candidates))
        name = self.snapshot.nodes.names[row]
        self.choices.note(task, name, feasible, best)
        self.last_choices.note(task.key, name)
        if self.narration.steps:
            self.narration.chosen(task, name, self._by_name(candidates, totals), best)
        return self.nodes.at(row)

    def _by_name(self, candidates: BoolVector, totals: FloatVector) -> dict[str, float]:
        names = self.snapshot.nodes.names
        return {names[row]: totals.item(row) for row in np.flatnonzero(candidates).tolist()}

    def _best_of(self, task: Task, candidates: BoolVector, ranked: FloatVector) -> int | None:
        """The row of the best candidate. Whatever cannot be compared is minus infinity afterwards."""
        overruled = self._overruled(task, candidates, ranked) if self.has_best_node_fns else None
        best = ranked.item(ranked.argmax())
        if not best > -np.inf:  # not a number, or minus infinity: neither is ever the best
            ranked[np.isnan(ranked)] = -np.inf
            best = ranked.max()
        if overruled is not None:
            return overruled.row
        return self.tie_break(task, (ranked == best).nonzero()[0]) if best > -np.inf else None

    def _overruled(self, task: Task, candidates: BoolVector, totals: FloatVector) -> Node | None:
        by_score: dict[float, list[Node]] = {}
        for row in np.flatnonzero(candidates).tolist():
            by_score.setdefault(float(totals[row]), []).append(self.nodes.at(row))
        return self.best_node(task, by_score)

    def tie_break(self, task: Task, rows: RowVector) -> int:
        """One of equally good rows: the task's favourite, else the last choice for it, else any."""
        favourite = self.favourites.get(task.key)
        row = self.last_row(task) if favourite is None else self.snapshot.nodes.index.get(favourite)
        if row is not None and row in rows:
            return row
        return int(rows[0] if len(rows) == 1 else rows[self.chance.randrange(len(rows))])

    def last_row(self, task: Task) -> int | None:
        """The row of the node that the previous session chose for a task at this point."""
        name = self.last_choices.of(task.key)
        return None if name is None else self.snapshot.nodes.index.get(name)

    def hopeful(self, task: Task) -> BoolVector:
        """Rows on which evicting may help the task, as far as an earlier action found out."""
        job = self.jobs.get(task.job)
        errors = job.nodes_fit_errors.get(task.uid) if job is not None else None
        if errors is None or errors.unresolvable is None:
            return np.ones(len(self.nodes), dtype=np.bool_)
        return ~errors.unresolvable

    def record_failure(self, task: Task, errors: FitErrors) -> None:
        """The task found no node in this session; why."""
        self.narration.without_node(task, errors)
        job = self.jobs.get(task.job)
        if job is not None:
            job.record(task, errors)

    # what statements are made of --------------------------------------------------------------------------------

    def move(self, task: Task, status: TaskStatus) -> None:
        """Another status for a task, in its job."""
        if task.uid not in self.moved:
            self.moved[task.uid] = (task, task.held_as)
        job = self.jobs.get(task.job)
        if job is not None and task.uid in job.tasks:
            job.set_status(task, status)
        else:
            task.status = status

    def put(self, task: Task, node_name: str, status: TaskStatus) -> bool:
        """Count a task on a node. False: no such job or node, or it is there already."""
        known = task.job in self.jobs
        self.move(task, status)
        task.node_name = node_name
        row = self.snapshot.nodes.index.get(node_name)
        if row is None or task.uid in self.nodes.room.tasks[row]:
            return False
        self._hold(task, row)
        return known

    def take(self, task: Task) -> None:
        """Take a task off its node."""
        row = self.snapshot.nodes.index.get(task.node_name)
        if row is not None:
            self._free(task, row)

    def recount(self, task: Task) -> None:
        """The task stays on its node under another status."""
        row = self.snapshot.nodes.index.get(task.node_name)
        if row is not None:
            self._free(task, row)
            self._hold(task, row)

    def _hold(self, task: Task, row: int) -> None:
        self.nodes.room.hold(row, task)
        self.touched.note(row)
        if self.device_pools and task.held_as not in _WITHOUT_DEVICES:
            for pool in self.device_pools:
                pool.hold(task, self.nodes.at(row))

    def _free(self, task: Task, row: int) -> None:
        held_as = task.held_as
        self.nodes.room.free(row, task)
        self.touched.note(row)
        if self.device_pools and held_as not in _WITHOUT_DEVICES:
            for pool in self.device_pools:
                pool.free(task, self.nodes.at(row))

    def clear_place(self, task: Task) -> None:
        task.node_name = ""
        task.job_allocated_hyper_node = ""

    def tell_allocated(self, task: Task) -> bool:
        """Tell every handler; False when one of them objects."""
        agreed = True
        for handler in self.event_handlers:
            if handler.allocate is None:
                continue
            try:
                status = handler.allocate(task)
                if status is not None and not isinstance(status, Status):
                    raise Nonsense(status, "a Status, or None where nothing speaks against it,")
            except FAULTS as fault:
                self.blame(handler.plugin, fault, "its allocate handler")
                continue
            if status is not None and not status.ok:
                self.complain(handler.plugin, status.message)
                agreed = False
        return agreed

    def tell_deallocated(self, task: Task) -> None:
        for handler in self.event_handlers:
            if handler.deallocate is None:
                continue
            try:
                handler.deallocate(task)
            except FAULTS as fault:
                self.blame(handler.plugin, fault, "its deallocate handler")

    def still_fits(self, tasks: Sequence[Task]) -> bool:
        """Whether the cluster of this moment has room for them, and nobody who looks at it so objects."""
        if self._given_up is not None and not self._given_up.allows(tasks):
            return False
        if not self._cluster.still_fits(tasks):
            return False
        live = self._cluster.live
        return live is None or all(check(live, tasks) for check in self.live_checks.values())

    def ask_for_annotations(self, tasks: Iterable[Task]) -> dict[str, str]:
        """Have plugins say what the binder is to know of each, where it binds; why not, by the uids of tasks that
        cannot do without. All of a gang are asked about before one is sent: they start together or not at all."""
        refused: dict[str, str] = {}
        for task in tasks if self._desk is not None else ():
            node_name = task.node_name
            try:
                self._noted[task.uid] = self.mutate_bind_request_annotations(task, node_name)
            except MutateFailed as fault:
                refused[task.uid] = self.jobs[task.job].fit_error = str(fault)
            finally:
                task.node_name = node_name  # whatever a plugin has done to a task that it knows from elsewhere
        return refused

    def send_binding(self, task: Task) -> Status | None:
        """Have a task bound; a Status says why it was not taken."""
        noted = self._noted.pop(task.uid, {})
        refused = self._cluster.bind(task)
        if refused is None:
            self.choices.record(task, len(self.nodes))
            if self._desk is not None:
                self.request_annotations[task.key] = noted
            self.move(task, TaskStatus.BINDING)
        return refused

    def mutate_bind_request_annotations(self, task: Task, node_name: str) -> dict[str, str]:
        """What plugins hand to the binder with a task: asked once for each request that is about to be made."""
        if self._desk is None or not self.bind_request_mutate_fns:
            return {}
        return self._desk.mutation.annotations(self.bind_request_mutate_fns, task.key, ShownTask(task), node_name)

    def send_promise(self, task: Task) -> None:
        self._cluster.promise(task)

    def send_admission(self, task: Task) -> None:
        """Its queue has room for a gated task: let it go if it is held for that alone, and asked to be."""
        if self._queues_admit and task.only_queue_gate and task.awaits_queue:
            self._cluster.admit(task)

    def send_eviction(self, task: Task, reason: str) -> bool:
        return task.job in self.jobs and self._cluster.evict(task, reason)

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
