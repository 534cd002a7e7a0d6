"""Preempts lower-priority pods for a pod that fits no node.

Runs at PostFilter, and at PreEnqueue while evictions for the pod are in progress. It only decides: the result contains
intents. The component that executes them reports its progress with `on_preemption_started`, `on_waiting_for_victim` and
`on_preemption_finished`. Cost: that of the dry run (`framework.preemption`), on the nodes where evictions can help.

kube-scheduler first reads the pod from its lister again. Here an attempt is not interrupted, so the cycle's pod is
current.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

from bayplan.codec.field_errors import FieldPath, aggregate
from bayplan.errors import ConfigError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint, no_hint_key
from bayplan.framework.api.handle import Handle, PodNominator
from bayplan.framework.api.plugin import PostFilterResult
from bayplan.framework.api.preemption_extender import PreemptionExtender
from bayplan.framework.api.status import SUCCESS, Code, Status, error, unresolvable, unschedulable
from bayplan.framework.preemption.dry_run import (
    DryRun,
    PreemptionSearchResult,
    candidate_count,
    is_terminating_by_preemption,
    nominations_to_clear,
    pick_one_node,
    resolvable_rows,
    victim_evictions,
)
from bayplan.framework.preemption.extenders import (
    ExtenderAnswer,
    ExtenderQuestion,
    RemainingCandidates,
    extender_steps,
    run_steps,
)
from bayplan.framework.preemption.victims import Victims, compile_budgets
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.workloads import PodDisruptionBudget, PodGroup
from bayplan.plugins.default_preemption import args as default_preemption_args
from bayplan.plugins.default_preemption.args import DefaultPreemptionArgs
from bayplan.snapshot.preemption_columns import PreemptionColumns

PREEMPTION_POLICY_NEVER = "not eligible due to preemptionPolicy=Never."
VICTIM_TERMINATING = "not eligible due to a terminating pod on the nominated node."
NO_CANDIDATE = "no candidate node for preemption"
WAITING_FOR_PREEMPTION = "waiting for the preemption for this pod to be finished"
GROUP_WAITING = "waiting for the preemption for this pod group to be finished"
GROUP_PREEMPTS = "not eligible due to workload aware preemption enabled"
GROUP_PLACED = "not eligible due to placement-based pod group scheduling limitation"
NO_GROUP = "pod group for pod not found"
PREFIX = "preemption: "


def never_queue(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """The registration only reactivates gated pods; the hints of the rejecting plugins decide about the rest."""
    return QueueingHint.SKIP


class DefaultPreemption:
    """Finds lower-priority pods whose eviction makes room, and gates the preemptor until the last one terminates."""

    name = "DefaultPreemption"
    ARGS = default_preemption_args.ARGS
    events_to_register = (
        ClusterEventWithHint(EventResource.POD, ActionType.DELETE, never_queue, hint_key=no_hint_key),
    )

    def __init__(self, args: DefaultPreemptionArgs, handle: Handle) -> None:
        self.extenders: Sequence[PreemptionExtender] = ()  # set by the scheduler
        self.groups_preempt = False  # whether pod groups preempt as a whole
        self.groups_placed = False  # whether pod groups are scheduled by placement
        self._args = args
        self._handle = handle
        self._weights = PreemptionColumns()  # follow the snapshot that attempts share
        self._preempting: dict[str, Callable[[], bool] | None] = {}  # uid -> whether the last victim is terminating

    @classmethod
    def factory(cls, args: DefaultPreemptionArgs, handle: Handle) -> DefaultPreemption:
        errors = cls.ARGS.validate(args, FieldPath())
        if errors:
            raise ConfigError(aggregate(errors), stage="profile")
        return cls(args, handle)

    def pre_enqueue(self, pod: Pod) -> Status | None:
        if self.groups_preempt and pod.spec.scheduling_group is not None:
            group = self._pod_group(pod)
            is_waiting = group is not None and self.is_preempting(group.metadata.uid)
            return unresolvable(GROUP_WAITING) if is_waiting else None
        return unresolvable(WAITING_FOR_PREEMPTION) if self.is_preempting(pod.uid) else None

    def _pod_group(self, pod: Pod) -> PodGroup | None:
        name = pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group is not None else ""
        return self._handle.catalog.pod_groups.get(f"{pod.namespace}/{name}")

    def is_preempting(self, uid: str) -> bool:
        """Whether evictions for this pod or group are in progress. The last victim counts only until it is terminating.

        Its deletion may be observed before the delete call returns. A preemptor gated until then would miss the event
        that it waits for.
        """
        if uid not in self._preempting:
            return False
        is_last_terminating = self._preempting[uid]
        return is_last_terminating is None or not is_last_terminating()

    def on_preemption_started(self, preemptor: KubeObject) -> None:
        """Record that evictions for the pod, or for a whole group, have started."""
        self._preempting[preemptor.metadata.uid] = None

    def on_waiting_for_victim(self, preemptor: KubeObject, is_last_terminating: Callable[[], bool]) -> None:
        """Record that only the last victim is left.

        `is_last_terminating` returns whether it is terminating or deleted.
        """
        if preemptor.metadata.uid in self._preempting:
            self._preempting[preemptor.metadata.uid] = is_last_terminating

    def on_preemption_finished(self, preemptor: KubeObject) -> None:
        """Record that all evictions have succeeded or failed."""
        self._preempting.pop(preemptor.metadata.uid, None)

    def post_filter(self, cycle: Cycle, diagnosis: Diagnosis) -> PostFilterResult:
        return run_steps(self.post_filter_steps(cycle, diagnosis))

    def post_filter_steps(
        self, cycle: Cycle, diagnosis: Diagnosis
    ) -> Generator[ExtenderQuestion, ExtenderAnswer, PostFilterResult]:
        """Run PostFilter, and yield a question for each extender."""
        candidates = self.candidates(cycle, diagnosis)
        if isinstance(candidates, PostFilterResult):
            return candidates
        remaining = yield from extender_steps(candidates, cycle.pod, self.extenders, cycle.snapshot.nodes)
        return self.select_node(cycle, remaining)

    def candidates(self, cycle: Cycle, diagnosis: Diagnosis) -> Mapping[str, Victims] | PostFilterResult:
        """Return victims by node, or the result if there is no candidate."""
        reason = self._group_ineligibility_reason(cycle.pod) or _ineligibility_reason(
            cycle, diagnosis, self._handle.nominator
        )
        if reason:
            return _result_without_victims(unschedulable(reason))
        found = self._search(cycle, diagnosis)
        if found.candidates:
            return found.candidates
        if found.errors:
            return _result_without_victims(error(found.errors))
        return _result_without_victims(unschedulable(found.sentence(diagnosis.names)), nominate="")

    def _group_ineligibility_reason(self, pod: Pod) -> str:
        """Return why a pod of a group does not preempt: each placement would preempt again, or the group preempts as a
        whole.
        """
        if pod.spec.scheduling_group is None:
            return ""
        if self.groups_placed:
            group = self._pod_group(pod)
            if group is None:
                return NO_GROUP
            if group.spec.scheduling_constraints is not None:
                return GROUP_PLACED
        return GROUP_PREEMPTS if self.groups_preempt else ""

    def select_node(self, cycle: Cycle, candidates: RemainingCandidates) -> PostFilterResult:
        """Choose one of the remaining candidates, and return the intents."""
        if isinstance(candidates, Status):
            return _result_without_victims(candidates)
        if not candidates:
            return _result_without_victims(unschedulable(NO_CANDIDATE))
        node_name = pick_one_node(candidates, cycle.snapshot, self._handle.clock.now())
        victims = candidates[node_name]
        nominations = self._handle.nominator
        writes: tuple[object, ...] = ()
        if not all(victim.terminating for victim in victims.pods):  # otherwise nothing must be written
            terminating = nominations.terminating_victims_on(node_name)
            evictions = victim_evictions(cycle.pod, node_name, victims, self.name, terminating)
            writes = (*nominations_to_clear(cycle.pod, nominations.on_node(node_name)), *evictions)
        return PostFilterResult(SUCCESS, nominated_node_name=node_name, victims=victims.pods, writes=writes)

    def _search(self, cycle: Cycle, diagnosis: Diagnosis) -> PreemptionSearchResult:
        rows = resolvable_rows(diagnosis, cycle.snapshot)
        if not rows:
            return PreemptionSearchResult()
        handle, args = self._handle, self._args
        max_candidates = candidate_count(
            len(rows), percentage=args.min_candidate_nodes_percentage, absolute=args.min_candidate_nodes_absolute
        )
        budgets = compile_budgets(handle.catalog.table(PodDisruptionBudget).values())
        terminating_victims_on, refused_on = handle.nominator.terminating_victims_on, handle.nominator.refused_on
        dry_run = DryRun(
            cycle, handle.filter_runner, budgets, handle.clock.now(), self._weights, terminating_victims_on, refused_on
        )
        return dry_run.search(rows, max_candidates=max_candidates, offset=handle.random.randrange(len(rows)))


def _ineligibility_reason(cycle: Cycle, diagnosis: Diagnosis, nominations: PodNominator) -> str:
    """Return why the pod may not preempt; empty if it may.

    A victim counts as terminating once its deletion is sent: the watch shows it, and the nomination of the preemptor,
    only later.
    """
    pod, nodes = cycle.pod, cycle.snapshot.nodes
    if pod.spec.preemption_policy == "Never":
        return PREEMPTION_POLICY_NEVER
    nominated = pod.status.nominated_node_name or nominations.node_of(pod.uid)
    if not nominated:
        return ""
    row = nodes.index.get(nominated)
    status = diagnosis.absent if row is None else diagnosis.status(row)
    if row is None or status.code is Code.UNRESOLVABLE:  # the nomination failed: the pod may try other nodes
        return ""
    terminating = nominations.terminating_victims_on(nominated)
    lower_priority = (info for info in nodes.pods[row] if info.priority < cycle.info.priority)
    has_victims = any(info.uid in terminating or is_terminating_by_preemption(info.pod) for info in lower_priority)
    return VICTIM_TERMINATING if has_victims else ""


def _result_without_victims(status: Status, *, nominate: str | None = None) -> PostFilterResult:
    """Build a result without victims. The prefix shows in the event that preemption wrote the message."""
    return PostFilterResult(Status(status.code, (f"{PREFIX}{status.message}",)), nominated_node_name=nominate)
