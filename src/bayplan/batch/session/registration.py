"""Registration of plugin functions in a session: one typed `add_*_fn` per extension point.

A plugin registers in `on_session_open`. Each plugin name has one function per point; a later registration replaces it.
Event handlers add up. See `extension_points` for the rules that combine answers, and `node_points` for the three forms
of functions about nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from bayplan.batch.evaluation.node_points import (
    DependsOn,
    NodeFunction,
    NodePredicate,
    NodeScore,
    NodesPredicate,
    NodesScore,
    RowPredicateResults,
    RowScores,
    Signature,
    no_signature,
)
from bayplan.batch.model.fit_errors import FitAnswer
from bayplan.batch.model.hypernodes import HyperNode
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import Node, Nodes
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.sub_jobs import SubJob
from bayplan.batch.model.tasks import Task
from bayplan.batch.session import extension_points
from bayplan.batch.session.combine_rules import Vote
from bayplan.batch.session.extension_points import InvalidJob, SessionPoint
from bayplan.batch.session.simulation import Simulation
from bayplan.batch.session.victim_hints import NO_VICTIM_HINTS, VictimHints
from bayplan.errors import PluginError
from bayplan.framework.api.status import Status
from bayplan.framework.runtime.bind_request_mutation import SKIP, Mutator


class RegistrationError(PluginError):
    """A plugin registered a function that would never be called, or something that is not callable."""


class EvictionKind(Enum):
    """The kind of eviction that asks `unified_evictable` for victims."""

    GANG_PREEMPT = "GangPreempt"
    GANG_RECLAIM = "GangReclaim"
    TASK_PREEMPT = "TaskPreempt"
    TASK_RECLAIM = "TaskReclaim"


class SearchPurpose(Enum):
    ALLOCATE = "Allocate"
    EVICT = "Evict"


@dataclass(frozen=True, slots=True)
class EvictionContext:
    """The job, and the place, that needs victims. `task` is set only for the kinds that evict for one task."""

    kind: EvictionKind
    job: Job
    task: Task | None = None
    hyper_node: str = ""


@dataclass(frozen=True, slots=True)
class EventHandler:
    """Handlers of a plugin for a task that gets or loses a node. A Status other than ok undoes the placement."""

    plugin: str
    allocate: Callable[[Task], Status | None] | None = None
    deallocate: Callable[[Task], None] | None = None


JobOrderFn = Callable[[Job, Job], int]
SubJobOrderFn = Callable[[SubJob, SubJob], int]
QueueOrderFn = Callable[[Queue, Queue], int]
VictimQueueOrderFn = Callable[[Queue, Queue, Queue], int]
TaskOrderFn = Callable[[Task, Task], int]
EvictableFn = Callable[[Task, Sequence[Task]], Sequence[Task] | None]
UnifiedEvictableFn = Callable[[EvictionContext, Sequence[Task]], Sequence[Task] | None]
VictimTasksFn = Callable[[Sequence[Task]], Iterable[Task]]
JobVoteFn = Callable[[Job], Vote]
GradientFn = Callable[[Any, HyperNode, SearchPurpose], Sequence[Sequence[HyperNode]] | None]
BindRequestMutateFn = Callable[[Task, str], Mapping[str, str] | None]
HyperNodeOrderFn = Callable[[SubJob, Mapping[str, Nodes]], Mapping[str, float]]


class Registrations:
    def __init__(self) -> None:
        self._fns: dict[SessionPoint[Any], dict[str, Any]] = {point: {} for point in extension_points.POINTS}
        self._victim_hints: dict[SessionPoint[Any], dict[str, VictimHints]] = {
            extension_points.PREEMPTABLE: {},
            extension_points.RECLAIMABLE: {},
        }
        self.event_handlers: list[EventHandler] = []
        self.bind_request_mutate_fns: list[Mutator] = []
        self.opening_plugin = ""  # the plugin whose `on_session_open` runs
        self.listed: frozenset[str] = frozenset()  # the plugin names in the tiers

    def _add(self, point: SessionPoint[Any], plugin: str, fn: Any) -> None:
        self._reject_misuse(point.name, plugin, *(fn.callables if isinstance(fn, NodeFunction) else (fn,)))
        self._fns[point][plugin] = fn
        self.invalidate_point(point)

    def _reject_misuse(self, point: str, plugin: str, *fns: object) -> None:
        """Reject functions that would never be called, or are not callable, at registration."""
        if self.opening_plugin and plugin != self.opening_plugin:
            raise RegistrationError(
                f'it registers at {point} as "{plugin}", but its name is "{self.opening_plugin}"; pass self.name'
            )
        if self.listed and plugin not in self.listed:
            raise RegistrationError(f'"{plugin}" registers at {point}, but no tier lists a plugin of that name')
        for fn in fns:
            if not callable(fn):
                raise RegistrationError(f"it registers {fn!r} at {point}, which is not callable; pass a function")

    def add_bind_request_mutate_fn(self, fn: BindRequestMutateFn, *, on_error: str = SKIP) -> None:
        """Call `fn(task, node_name)` for the annotations of each bind request before it is created. Functions add up.

        `on_error`: "skip" leaves out the annotations of a failing function; "fail" does not bind the task.
        """
        if not callable(fn):
            raise RegistrationError(f"it registers {fn!r} for bind requests, which is not callable; pass a function")
        self.bind_request_mutate_fns.append(Mutator(self.opening_plugin, fn, on_error))

    def points_of(self, plugin: str) -> list[str]:
        """The points at which a plugin registered, in the order of the table; includes `events` if it has a handler."""
        handles = any(handler.plugin == plugin for handler in self.event_handlers)
        return [point.name for point, fns in self._fns.items() if plugin in fns] + ["events"] * handles

    def invalidate_point(self, point: SessionPoint[Any]) -> None:
        """Hook after each registration: discards results computed for the point before."""

    # Order functions: negative if the left comes first, 0 for no preference

    def add_job_order_fn(self, plugin: str, fn: JobOrderFn) -> None:
        self._add(extension_points.JOB_ORDER, plugin, fn)

    def add_sub_job_order_fn(self, plugin: str, fn: SubJobOrderFn) -> None:
        self._add(extension_points.SUB_JOB_ORDER, plugin, fn)

    def add_queue_order_fn(self, plugin: str, fn: QueueOrderFn) -> None:
        self._add(extension_points.QUEUE_ORDER, plugin, fn)

    def add_victim_queue_order_fn(self, plugin: str, fn: VictimQueueOrderFn) -> None:
        """(left, right, queue of the preemptor): negative if the left loses tasks first."""
        self._add(extension_points.VICTIM_QUEUE_ORDER, plugin, fn)

    def add_task_order_fn(self, plugin: str, fn: TaskOrderFn) -> None:
        self._add(extension_points.TASK_ORDER, plugin, fn)

    def add_cluster_order_fn(self, plugin: str, fn: Callable[[str, str], int]) -> None:
        self._add(extension_points.CLUSTER_ORDER, plugin, fn)

    def add_namespace_order_fn(self, plugin: str, fn: Callable[[str, str], int]) -> None:
        self._add(extension_points.NAMESPACE_ORDER, plugin, fn)

    # Node functions

    def add_pre_predicate_fn(self, plugin: str, fn: Callable[[Task], Status | None]) -> None:
        """Runs before any node is examined. A Status other than ok ends the search for the task."""
        self._add(extension_points.PRE_PREDICATE, plugin, fn)

    def add_predicate_fn(self, plugin: str, fn: NodePredicate) -> None:
        """Filter for one node: None if the task can run there, else one or several Status values."""
        self._add(extension_points.PREDICATE, plugin, NodeFunction(plugin, per_node=fn))

    def add_predicate_nodes_fn(
        self,
        plugin: str,
        fn: NodesPredicate,
        *,
        signature: Signature = no_signature,
        depends_on: DependsOn | None = None,
    ) -> None:
        """Filter for many nodes at once: yields one Rejection per reason, with a mask of one entry per node."""
        self._add(
            extension_points.PREDICATE,
            plugin,
            NodeFunction(plugin, for_nodes=fn, signature=signature, depends_on=depends_on),
        )

    def add_predicate_factory(
        self, plugin: str, make: Callable[[Task], RowPredicateResults], signature: Signature
    ) -> None:
        """Filter by an object that serves one class of tasks and updates itself incrementally."""
        self._add(extension_points.PREDICATE, plugin, NodeFunction(plugin, factory=make, signature=signature))

    def add_best_node_fn(self, plugin: str, fn: Callable[[Task, Mapping[float, Sequence[Node]]], Node | None]) -> None:
        """Overrides the best score: gets the nodes by score and returns the chosen one (None: no preference)."""
        self._add(extension_points.BEST_NODE, plugin, fn)

    def add_node_order_fn(self, plugin: str, fn: NodeScore) -> None:
        """Score of one node for a task. A Status sets the node's score from all per-node functions to zero."""
        self._add(extension_points.NODE_ORDER, plugin, NodeFunction(plugin, per_node=fn))

    def add_node_order_nodes_fn(
        self, plugin: str, fn: NodesScore, *, signature: Signature = no_signature, depends_on: DependsOn | None = None
    ) -> None:
        """Scores of many nodes at once: a float vector with one entry per node."""
        self._add(
            extension_points.NODE_ORDER,
            plugin,
            NodeFunction(plugin, for_nodes=fn, signature=signature, depends_on=depends_on),
        )

    def add_batch_node_order_fn(self, plugin: str, fn: Callable[[Task, Nodes], Mapping[str, float] | Status]) -> None:
        """Scores of all candidates together, by name. A Status aborts the choice of a node."""
        self._add(extension_points.BATCH_NODE_ORDER, plugin, NodeFunction(plugin, per_node=fn))

    def add_batch_node_order_nodes_fn(
        self, plugin: str, fn: NodesScore, *, signature: Signature = no_signature, depends_on: DependsOn | None = None
    ) -> None:
        """Scores of all candidates: a float vector with one entry per candidate."""
        node_fn = NodeFunction(plugin, for_nodes=fn, signature=signature, depends_on=depends_on)
        self._add(extension_points.BATCH_NODE_ORDER, plugin, node_fn)

    def add_batch_node_order_factory(
        self, plugin: str, make: Callable[[Task], RowScores], signature: Signature
    ) -> None:
        """Scores by an object that serves one class of tasks and updates itself incrementally."""
        self._add(extension_points.BATCH_NODE_ORDER, plugin, NodeFunction(plugin, factory=make, signature=signature))

    def add_node_map_fn(self, plugin: str, fn: Callable[[Task, Node], float]) -> None:
        """A raw score per node, truncated to an integer, which `node_reduce` of the same plugin normalizes."""
        self._add(extension_points.NODE_MAP, plugin, fn)

    def add_node_reduce_fn(
        self, plugin: str, fn: Callable[[Task, dict[str, int]], Mapping[str, float] | Status]
    ) -> None:
        """Converts raw scores by node name to final scores."""
        self._add(extension_points.NODE_REDUCE, plugin, fn)

    # Hypernode functions

    def add_hyper_node_order_fn(self, plugin: str, fn: HyperNodeOrderFn) -> None:
        self._add(extension_points.HYPER_NODE_ORDER, plugin, fn)

    def add_hyper_node_gradient_for_job_fn(self, plugin: str, fn: GradientFn) -> None:
        """(job, hypernode, purpose): lists of hypernodes; those of one list are tried together, list by list."""
        self._add(extension_points.HYPER_NODE_GRADIENT_FOR_JOB, plugin, fn)

    def add_hyper_node_gradient_for_sub_job_fn(self, plugin: str, fn: GradientFn) -> None:
        self._add(extension_points.HYPER_NODE_GRADIENT_FOR_SUB_JOB, plugin, fn)

    # Victim functions: the tasks that can be evicted; an empty list vetoes the tier, None abstains

    def add_preemptable_fn(self, plugin: str, fn: EvictableFn, victim_hints: VictimHints = NO_VICTIM_HINTS) -> None:
        self._add(extension_points.PREEMPTABLE, plugin, fn)
        self._victim_hints[extension_points.PREEMPTABLE][plugin] = victim_hints

    def add_reclaimable_fn(self, plugin: str, fn: EvictableFn, victim_hints: VictimHints = NO_VICTIM_HINTS) -> None:
        self._add(extension_points.RECLAIMABLE, plugin, fn)
        self._victim_hints[extension_points.RECLAIMABLE][plugin] = victim_hints

    def add_unified_evictable_fn(self, plugin: str, fn: UnifiedEvictableFn) -> None:
        self._add(extension_points.UNIFIED_EVICTABLE, plugin, fn)

    def add_victim_tasks_fns(self, plugin: str, fns: Sequence[VictimTasksFn]) -> None:
        """Each function gets all running tasks and returns those to evict for its own reasons."""
        if not isinstance(fns, list | tuple):
            raise RegistrationError(
                f"it registers {fns!r} at {extension_points.VICTIM_TASKS.name}; pass a list of functions"
            )
        self._reject_misuse(extension_points.VICTIM_TASKS.name, plugin, *fns)
        self._fns[extension_points.VICTIM_TASKS][plugin] = list(fns)
        self.invalidate_point(extension_points.VICTIM_TASKS)

    # Job and queue functions

    def add_job_valid_fn(self, plugin: str, fn: Callable[[Job], InvalidJob | None]) -> None:
        self._add(extension_points.JOB_VALID, plugin, fn)

    def add_job_enqueueable_fn(self, plugin: str, fn: JobVoteFn) -> None:
        self._add(extension_points.JOB_ENQUEUEABLE, plugin, fn)

    def add_job_enqueued_fn(self, plugin: str, fn: Callable[[Job], None]) -> None:
        self._add(extension_points.JOB_ENQUEUED, plugin, fn)

    def add_job_ready_fn(self, plugin: str, fn: Callable[[Job], bool]) -> None:
        self._add(extension_points.JOB_READY, plugin, fn)

    def add_sub_job_ready_fn(self, plugin: str, fn: Callable[[SubJob], bool]) -> None:
        self._add(extension_points.SUB_JOB_READY, plugin, fn)

    def add_job_pipelined_fn(self, plugin: str, fn: JobVoteFn) -> None:
        self._add(extension_points.JOB_PIPELINED, plugin, fn)

    def add_sub_job_pipelined_fn(self, plugin: str, fn: Callable[[SubJob], Vote]) -> None:
        self._add(extension_points.SUB_JOB_PIPELINED, plugin, fn)

    def add_job_starving_fn(self, plugin: str, fn: Callable[[Job], bool]) -> None:
        self._add(extension_points.JOB_STARVING, plugin, fn)

    def add_overused_fn(self, plugin: str, fn: Callable[[Queue], bool]) -> None:
        self._add(extension_points.OVERUSED, plugin, fn)

    def add_preemptive_fn(self, plugin: str, fn: Callable[[Queue, Sequence[Task]], bool]) -> None:
        """Whether the queue may take resources from other queues for these tasks."""
        self._add(extension_points.PREEMPTIVE, plugin, fn)

    def add_allocatable_fn(self, plugin: str, fn: Callable[[Queue, Task], bool]) -> None:
        """Whether the queue may have this task placed."""
        self._add(extension_points.ALLOCATABLE, plugin, fn)

    def add_target_job_fn(self, plugin: str, fn: Callable[[Sequence[Job]], Job | None]) -> None:
        self._add(extension_points.TARGET_JOB, plugin, fn)

    def add_reserved_nodes_fn(self, plugin: str, fn: Callable[[], None]) -> None:
        self._add(extension_points.RESERVED_NODES, plugin, fn)

    # Functions that simulate changes on one node

    def add_simulate_add_task_fn(self, plugin: str, fn: Callable[[Simulation, Task], FitAnswer]) -> None:
        """A task was added to the simulated node; update the plugin's state in `simulation`."""
        self._add(extension_points.SIMULATE_ADD_TASK, plugin, fn)

    def add_simulate_remove_task_fn(self, plugin: str, fn: Callable[[Simulation, Task], FitAnswer]) -> None:
        self._add(extension_points.SIMULATE_REMOVE_TASK, plugin, fn)

    def add_simulate_predicate_fn(self, plugin: str, fn: Callable[[Simulation], FitAnswer]) -> None:
        """Whether the task to schedule fits the simulated node in its current state."""
        self._add(extension_points.SIMULATE_PREDICATE, plugin, fn)

    def add_simulate_allocatable_fn(self, plugin: str, fn: Callable[[Simulation, Queue], bool]) -> None:
        self._add(extension_points.SIMULATE_ALLOCATABLE, plugin, fn)

    # Event handlers

    def add_event_handler(
        self,
        plugin: str,
        *,
        allocate: Callable[[Task], Status | None] | None = None,
        deallocate: Callable[[Task], None] | None = None,
    ) -> None:
        """Register handlers: `allocate` for a task that is allocated, pipelined or un-evicted; `deallocate` for the
        reverse.

        They also run in trials that are undone, so their state changes must be exactly reversible.
        """
        self._reject_misuse("events", plugin, *(each for each in (allocate, deallocate) if each is not None))
        self.event_handlers.append(EventHandler(plugin, allocate, deallocate))
