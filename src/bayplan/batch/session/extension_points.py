"""The extension points of a session as a table: name, switches in the configuration file, combining rule.

`Session.add_<name>_fn(plugin, fn)` registers at a point; `Session.<name>(...)` calls it. A plugin is called if one of
the point's switches is on for it, or if the point has no switch. Points about nodes (predicates and node scores) have
no rule here: `task_class_evaluation` calls them for all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Generic, Protocol, TypeVar

from bayplan.batch.model.hypernodes import HyperNode
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import Node
from bayplan.batch.session import combine_rules
from bayplan.framework.api.status import Status

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class InvalidJob:
    """Why a job is skipped."""

    reason: str
    message: str


class PluginSwitches(Protocol):
    """A plugin entry of a tier: its name and its switches."""

    @property
    def name(self) -> str: ...

    def enabled(self, key: str) -> bool:
        """Whether the file's flag with this name is on; unset is off."""
        ...


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity, because it is a dictionary key in every call
class SessionPoint(Generic[R]):
    """One extension point. R is the type of its result."""

    name: str
    switches: tuple[str, ...] = ()  # keys of the file; one of them must be on; empty: always called
    rule: Callable[..., R] | None = None
    is_valid_answer: Callable[..., bool] | None = None  # (answer, *arguments); None if the rule checks answers itself
    expected_answer: str = ""  # description of a valid answer, for the fault message

    def is_enabled_for(self, plugin: PluginSwitches) -> bool:
        return not self.switches or any(plugin.enabled(key) for key in self.switches)


def _is_status(answer: Any, *_: Any) -> bool:
    return isinstance(answer, Status)


def _is_fit_answer(answer: Any, *_: Any) -> bool:
    return _is_status(answer) or (isinstance(answer, list | tuple) and all(map(_is_status, answer)))


def _is_candidate(answer: Any, task: Any, by_score: Mapping[float, Any]) -> bool:  # noqa: ARG001
    return isinstance(answer, Node) and any(answer in nodes for nodes in by_score.values())


def _are_gradients(answer: Any, *_: Any) -> bool:
    return isinstance(answer, list | tuple) and all(
        isinstance(each, list | tuple) and all(isinstance(hypernode, HyperNode) for hypernode in each)
        for each in answer
    )


def _are_scores(answer: Any, *_: Any) -> bool:
    return isinstance(answer, Mapping) and all(isinstance(score, Real) for score in answer.values())


_STATUS_ANSWER = (_is_status, "a Status, or None to accept,")
_FIT_ANSWER = (_is_fit_answer, "a Status, several, or None to accept,")
_PREEMPTABLE_OR_ALLOCATABLE = ("enablePreemptable", "enabledAllocatable")
_GRADIENTS_ANSWER = (_are_gradients, "a list of lists of hypernodes")


JOB_ORDER = SessionPoint("job_order", ("enableJobOrder",), combine_rules.first_nonzero)
SUB_JOB_ORDER = SessionPoint("sub_job_order", ("enabledSubJobOrder",), combine_rules.first_nonzero)
QUEUE_ORDER = SessionPoint("queue_order", ("enableQueueOrder",), combine_rules.first_nonzero)
VICTIM_QUEUE_ORDER = SessionPoint("victim_queue_order", (), combine_rules.first_nonzero)
CLUSTER_ORDER = SessionPoint("cluster_order", ("EnabledClusterOrder",), combine_rules.first_nonzero)
TASK_ORDER = SessionPoint("task_order", ("enableTaskOrder",), combine_rules.first_nonzero)
NAMESPACE_ORDER = SessionPoint("namespace_order", (), combine_rules.first_nonzero)

PRE_PREDICATE: SessionPoint[Status | None] = SessionPoint(
    "pre_predicate", ("enablePredicate",), combine_rules.first_answer, *_STATUS_ANSWER
)
PREDICATE: SessionPoint[None] = SessionPoint("predicate", ("enablePredicate",))
BEST_NODE: SessionPoint[Node | None] = SessionPoint(
    "best_node",
    ("enableBestNode",),
    combine_rules.first_answer,
    _is_candidate,
    "one of the nodes, or None for no opinion,",
)
NODE_ORDER: SessionPoint[None] = SessionPoint("node_order", ("enableNodeOrder",))
BATCH_NODE_ORDER: SessionPoint[None] = SessionPoint("batch_node_order", ("enableNodeOrder",))
NODE_MAP: SessionPoint[None] = SessionPoint("node_map", ("enableNodeOrder",))
NODE_REDUCE: SessionPoint[None] = SessionPoint("node_reduce", ("enableNodeOrder",))
HYPER_NODE_ORDER = SessionPoint(
    "hyper_node_order",
    ("enabledHyperNodeOrder",),
    combine_rules.answers_by_plugin,
    _are_scores,
    "a number for each name",
)
HYPER_NODE_GRADIENT_FOR_JOB = SessionPoint(
    "hyper_node_gradient_for_job", ("enabledHyperNodeGradient",), combine_rules.first_registered, *_GRADIENTS_ANSWER
)
HYPER_NODE_GRADIENT_FOR_SUB_JOB = SessionPoint(
    "hyper_node_gradient_for_sub_job", ("enabledHyperNodeGradient",), combine_rules.first_registered, *_GRADIENTS_ANSWER
)

PREEMPTABLE = SessionPoint("preemptable", ("enablePreemptable",), combine_rules.victims_of_tier)
RECLAIMABLE = SessionPoint("reclaimable", ("enableReclaimable",), combine_rules.victims_of_tier)
UNIFIED_EVICTABLE = SessionPoint("unified_evictable", (), combine_rules.victims_of_tier)
VICTIM_TASKS = SessionPoint("victim_tasks", ("enabledVictim",), combine_rules.union_of_tier)

JOB_VALID: SessionPoint[InvalidJob | None] = SessionPoint(
    "job_valid",
    (),
    combine_rules.first_answer,
    lambda answer, _: isinstance(answer, InvalidJob),
    "an InvalidJob, or None for a valid job,",
)
JOB_ENQUEUEABLE = SessionPoint("job_enqueueable", ("enableJobEnqueued",), combine_rules.vote)
JOB_ENQUEUED = SessionPoint("job_enqueued", ("enableJobEnqueued",), combine_rules.call_all)
JOB_READY = SessionPoint("job_ready", ("enableJobReady",), combine_rules.unanimous)
SUB_JOB_READY = SessionPoint("sub_job_ready", ("enabledSubJobReady",), combine_rules.unanimous)
JOB_PIPELINED = SessionPoint("job_pipelined", ("enableJobPipelined",), combine_rules.vote)
SUB_JOB_PIPELINED = SessionPoint("sub_job_pipelined", ("enabledSubJobPipelined",), combine_rules.vote)
JOB_STARVING = SessionPoint("job_starving", ("enableJobStarving",), combine_rules.unanimous_in_first_tier)
OVERUSED = SessionPoint("overused", ("enabledOverused",), combine_rules.any_true)
PREEMPTIVE = SessionPoint("preemptive", ("enablePreemptive",), combine_rules.unanimous)
ALLOCATABLE = SessionPoint("allocatable", ("enabledAllocatable",), combine_rules.unanimous)
TARGET_JOB: SessionPoint[Any] = SessionPoint(
    "target_job",
    ("enableTargetJob",),
    combine_rules.first_registered,
    lambda answer, _: isinstance(answer, Job),
    "a Job, or None for no job,",
)
RESERVED_NODES = SessionPoint("reserved_nodes", ("enableReservedNodes",), combine_rules.call_all)

SIMULATE_ADD_TASK = SessionPoint(
    "simulate_add_task", _PREEMPTABLE_OR_ALLOCATABLE, combine_rules.first_answer, *_FIT_ANSWER
)
SIMULATE_REMOVE_TASK = SessionPoint(
    "simulate_remove_task", _PREEMPTABLE_OR_ALLOCATABLE, combine_rules.first_answer, *_FIT_ANSWER
)
SIMULATE_PREDICATE = SessionPoint("simulate_predicate", ("enablePredicate",), combine_rules.first_answer, *_FIT_ANSWER)
SIMULATE_ALLOCATABLE = SessionPoint("simulate_allocatable", ("enabledAllocatable",), combine_rules.unanimous)

POINTS: tuple[SessionPoint[Any], ...] = tuple(value for value in vars().values() if isinstance(value, SessionPoint))
"""Every point, in the order of this module."""
