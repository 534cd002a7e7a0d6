"""Results of a scheduling cycle: the decision, and the assumed pod with the results of Reserve and Permit.

Made once a pod. A decision that a class of equal pods shares is filled in only when its details are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from bayplan.cache import Cache
from bayplan.errors import UsageError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.status import SUCCESS, Code, Status
from bayplan.framework.equivalence.class_evaluation import ClassEvaluation
from bayplan.framework.runtime.framework import Framework
from bayplan.framework.runtime.scoring import TotalScores
from bayplan.objects.core import Pod
from bayplan.snapshot import NodeTable

_NO_WAITS: Mapping[str, float] = MappingProxyType({})


@dataclass(slots=True)
class SchedulingDecision:
    """The outcome of one attempt."""

    node: str | None = None
    status: Status = SUCCESS
    diagnosis: Diagnosis | None = None
    nodes: NodeTable | None = None  # the feasible ones
    scores: TotalScores | None = None  # None: there was only one candidate, or none
    nominated_node_name: str | None = None  # None: leave the nomination, "": clear it
    victims: tuple[str, ...] = ()
    writes: tuple[object, ...] = ()
    # the shared evaluation of this decision, until the next decision; the fields above are empty then
    class_evaluation: ClassEvaluation | None = None
    row: int = -1  # row of the node in the shared evaluation
    is_stale: bool = False  # the shared evaluation has changed since the decision

    def release(self) -> None:
        """Drop the shared evaluation: the next decision is about to change it."""
        if self.class_evaluation is not None:
            self.class_evaluation, self.is_stale = None, True

    def with_details(self) -> SchedulingDecision:
        """The decision with all fields filled in from the shared evaluation. Call it before the next decision."""
        if self.is_stale:
            raise UsageError(
                f"the details of the decision for {self.node} are gone: pods of one class share them, and a later "
                "decision has changed them; call with_details() before the next decision, or read the record"
            )
        evaluation = self.class_evaluation
        if evaluation is None or self.node is None:
            return self
        nodes = evaluation.snapshot.table.restricted_to(evaluation.feasible)
        scores = evaluation.scores() if len(nodes) > 1 else None
        return replace(self, diagnosis=evaluation.diagnosis(), nodes=nodes, scores=scores, class_evaluation=None)

    @property
    def rejectors(self) -> tuple[frozenset[str], frozenset[str]]:
        """Plugins that rejected the pod, and those that wait for an external event; both empty after an error."""
        if not self.status.rejected:
            return frozenset(), frozenset()
        if self.diagnosis is None:
            return frozenset(filter(None, (self.status.plugin,))), frozenset()
        return frozenset(self.diagnosis.unschedulable_plugins), frozenset(self.diagnosis.pending_plugins)

    @property
    def message(self) -> str:
        """The text of the FailedScheduling event."""
        return self.status.message


class AssumedPod:
    """A pod that is counted on its node, with what the scheduler needs to bind or unreserve it."""

    __slots__ = ("cycle", "framework", "pod")

    def __init__(self, framework: Framework, cycle: Cycle, pod: Pod) -> None:
        self.framework = framework
        self.cycle = cycle
        self.pod = pod  # with spec.nodeName set

    def unreserve_and_forget(self, cache: Cache) -> bool:
        """Undo Reserve and assume. False: the API server shows the pod on a node, so the pod stays counted there."""
        self.framework.binding_points.unreserve(self.cycle, self.pod.spec.node_name)
        if cache.pod(self.pod.uid) is not None and not cache.is_assumed(self.pod.uid):
            return False
        cache.forget(self.pod)
        return True

    def end_trial(self, cache: Cache) -> None:
        """The same for a pod that was assumed in this attempt only. No other pod can wait for it, so none is woken."""
        with cache.devices.trial(), cache.volumes.trial():
            self.unreserve_and_forget(cache)


class ScheduleResult:
    """A decision with the results of assume, Reserve and Permit.

    A pod that Permit delays has a node and is counted there. It counts as placed only when
    `PodEngine.settle_waiting_pods` returns it."""

    __slots__ = ("assumed", "decision", "permit_timeouts_s", "status")

    def __init__(
        self,
        decision: SchedulingDecision,
        status: Status,
        permit_timeouts_s: Mapping[str, float] = _NO_WAITS,
        assumed: AssumedPod | None = None,
    ) -> None:
        self.decision = decision
        self.status = status
        self.permit_timeouts_s = permit_timeouts_s
        self.assumed = assumed  # what was assumed and reserved for the pod; None if nothing was

    @property
    def node(self) -> str | None:
        return self.decision.node if self.status.ok else None

    @property
    def waiting(self) -> bool:
        return bool(self.permit_timeouts_s)

    @property
    def rejectors(self) -> tuple[frozenset[str], frozenset[str]]:
        """Plugins that rejected the pod, and those of them that wait for an external event. The queue needs both."""
        if self.status is self.decision.status or not self.status.rejected:
            return self.decision.rejectors
        plugin = frozenset(filter(None, (self.status.plugin,)))
        return plugin, plugin if self.status.code is Code.PENDING else frozenset()


def single_node_status(status: Status) -> Status:
    """A refusal after the node was chosen, in kube-scheduler's words for a pod with one candidate node."""
    if not status.rejected:
        return status
    counts = ", ".join(sorted(f"1 {reason}" for reason in status.reasons))
    return Status(status.code, (f"0/1 nodes are available: {counts}.",), plugin=status.plugin)
