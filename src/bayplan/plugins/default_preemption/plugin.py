"""May a pod that fits nowhere push weaker ones out, and whom?

Asked at PostFilter, and at PreEnqueue while evictions for the pod are under way. Decides only: the answer carries
intents, and whoever performs them tells the plugin by `on_preemption_started`, `on_waiting_for_victim` and
`on_preemption_finished` how far it is. Cost: that of the dry run (`framework.preemption`), on the nodes where removing
pods can help.

kube-scheduler reads the pod anew from its lister first. Here an attempt is not interrupted, so the cycle's is it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

from bayplan.config.field_errors import FieldPath, aggregate
from bayplan.errors import ConfigError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.events import (
    ActionType,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
    no_hint_key,
)
from bayplan.framework.api.handle import Handle, PodNominator
from bayplan.framework.api.plugin import PostFilterResult
from bayplan.framework.api.preemption_extender import PreemptionExtender
from bayplan.framework.api.status import (
    SUCCESS,
    Code,
    Status,
    error,
    unresolvable,
    unschedulable,
)
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
    """The registration lets a gated pod be looked at again; whether it is worth it, those who rejected it say."""
    return QueueingHint.SKIP


class DefaultPreemption:
    """Finds weaker pods whose going makes room, and holds their preemptor back until they were told to go."""

    name = "DefaultPreemption"
    ARGS = default_preemption_args.ARGS
    cured_by = (ClusterEventWithHint(EventResource.POD, ActionType.DELETE, never_queue, hint_key=no_hint_key),)

    def __init__(self, args: DefaultPreemptionArgs, handle: Handle) -> None:
        self.extenders: Sequence[PreemptionExtender] = ()  # set by whoever has some
        self.groups_preempt = False  # set where groups make room for all of them at once
        self.groups_placed = False  # set where groups are tried placement by placement
        self._args = args
        self._handle = handle
        self._weights = PreemptionColumns()  # of the snapshot that attempts share
        self._preempting: dict[str, Callable[[], bool] | None] = {}  # uid -> is the last victim leaving?

    @classmethod
    def factory(cls, args: DefaultPreemptionArgs, handle: Handle) -> DefaultPreemption:
        errors = cls.ARGS.validate(args, FieldPath())
        if errors:
            raise ConfigError(aggregate(errors), stage="profile")
        return cls(args, handle)

    # PreEnqueue -------------------------------------------------------------------------------------------------

    def pre_enqueue(self, pod: Pod) -> Status | None:
        if self.groups_preempt and pod.spec.scheduling_group is not None:
            group = self._group_of(pod)
            waits = group is not None and self.is_preempting(group.metadata.uid)
            return unresolvable(GROUP_WAITING) if waits else None
        return unresolvable(WAITING_FOR_PREEMPTION) if self.is_preempting(pod.uid) else None

    def _group_of(self, pod: Pod) -> PodGroup | None:
        name = pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group is not None else ""
        return self._handle.catalog.pod_groups.get(f"{pod.namespace}/{name}")

    def is_preempting(self, uid: str) -> bool:
        """Whether evictions for this pod or group are under way. The last victim counts only until it is seen leaving.

        Its deletion may be seen before the call that deletes it returns; a preemptor held back until then would sleep
        through the very event that it waits for.
        """
        if uid not in self._preempting:
            return False
        last_leaves = self._preempting[uid]
        return last_leaves is None or not last_leaves()

    def on_preemption_started(self, preemptor: KubeObject) -> None:
        """Evictions for the pod, or for a whole group, have begun."""
        self._preempting[preemptor.metadata.uid] = None

    def on_waiting_for_victim(self, preemptor: KubeObject, last_leaves: Callable[[], bool]) -> None:
        """Only the last victim is left; `last_leaves` says whether it is known to be terminating or gone."""
        if preemptor.metadata.uid in self._preempting:
            self._preempting[preemptor.metadata.uid] = last_leaves

    def on_preemption_finished(self, preemptor: KubeObject) -> None:
        """All of it is done, or given up."""
        self._preempting.pop(preemptor.metadata.uid, None)

    # PostFilter -------------------------------------------------------------------------------------------------

    def post_filter(self, cycle: Cycle, diagnosis: Diagnosis) -> PostFilterResult:
        return run_steps(self.post_filter_asking(cycle, diagnosis))

    def post_filter_asking(
        self, cycle: Cycle, diagnosis: Diagnosis
    ) -> Generator[ExtenderQuestion, ExtenderAnswer, PostFilterResult]:
        """The same where extenders have to be waited for."""
        candidates = self.candidates(cycle, diagnosis)
        if isinstance(candidates, PostFilterResult):
            return candidates
        left = yield from extender_steps(candidates, cycle.pod, self.extenders, cycle.snapshot.nodes)
        return self.select_node(cycle, left)

    def candidates(self, cycle: Cycle, diagnosis: Diagnosis) -> Mapping[str, Victims] | PostFilterResult:
        """Victims by node; or the answer, where there is nothing left to choose from."""
        refusal = self._group_member_status(cycle.pod) or _ineligibility(cycle, diagnosis, self._handle.nominator)
        if refusal:
            return _result_without_victims(unschedulable(refusal))
        found = self._search(cycle, diagnosis)
        if found.candidates:
            return found.candidates
        if found.errors:
            return _result_without_victims(error(found.errors))
        return _result_without_victims(unschedulable(found.sentence(diagnosis.names)), nominate="")

    def _group_member_status(self, pod: Pod) -> str:
        """Why a pod of a group makes no room for itself: it would, over again, on each placement, or the group does."""
        if pod.spec.scheduling_group is None:
            return ""
        if self.groups_placed:
            group = self._group_of(pod)
            if group is None:
                return NO_GROUP
            if group.spec.scheduling_constraints is not None:
                return GROUP_PLACED
        return GROUP_PREEMPTS if self.groups_preempt else ""

    def select_node(self, cycle: Cycle, candidates: RemainingCandidates) -> PostFilterResult:
        """Choose among the candidates that are left, and say what is to be done."""
        if isinstance(candidates, Status):
            return _result_without_victims(candidates)
        if not candidates:
            return _result_without_victims(unschedulable(NO_CANDIDATE))
        node_name = pick_one_node(candidates, cycle.snapshot, self._handle.clock.now())
        victims = candidates[node_name]
        nominations = self._handle.nominator
        writes: tuple[object, ...] = ()
        if not all(victim.terminating for victim in victims.pods):  # else nothing is needed of anybody
            leaving = nominations.terminating_victims_on(node_name)
            evicted = victim_evictions(cycle.pod, node_name, victims, self.name, leaving)
            writes = (*nominations_to_clear(cycle.pod, nominations.on_node(node_name)), *evicted)
        return PostFilterResult(SUCCESS, nominated_node_name=node_name, victims=victims.pods, writes=writes)

    def _search(self, cycle: Cycle, diagnosis: Diagnosis) -> PreemptionSearchResult:
        rows = resolvable_rows(diagnosis, cycle.snapshot)
        if not rows:
            return PreemptionSearchResult()
        handle, args = self._handle, self._args
        wanted = candidate_count(
            len(rows), percentage=args.min_candidate_nodes_percentage, absolute=args.min_candidate_nodes_absolute
        )
        budgets = compile_budgets(handle.catalog.table(PodDisruptionBudget).values())
        leaving_from, refused_on = handle.nominator.terminating_victims_on, handle.nominator.refused_on
        dry_run = DryRun(
            cycle, handle.filter_runner, budgets, handle.clock.now(), self._weights, leaving_from, refused_on
        )
        return dry_run.search(rows, max_candidates=wanted, offset=handle.random.randrange(len(rows)))


def _ineligibility(cycle: Cycle, diagnosis: Diagnosis, nominations: PodNominator) -> str:
    """Why the pod may not preempt; empty where it may.

    A victim counts as leaving from the moment at which its deletion is sent: the watch may show it, and the nomination
    of the preemptor, only later.
    """
    pod, nodes = cycle.pod, cycle.snapshot.nodes
    if pod.spec.preemption_policy == "Never":
        return PREEMPTION_POLICY_NEVER
    nominated = pod.status.nominated_node_name or nominations.node_of(pod.uid)
    if not nominated:
        return ""
    row = nodes.index.get(nominated)
    status = diagnosis.absent if row is None else diagnosis.status(row)
    if row is None or status.code is Code.UNRESOLVABLE:  # its nomination came to nothing: it may try elsewhere
        return ""
    leaving = nominations.terminating_victims_on(nominated)
    weaker = (info for info in nodes.pods[row] if info.priority < cycle.info.priority)
    still_there = any(info.uid in leaving or is_terminating_by_preemption(info.pod) for info in weaker)
    return VICTIM_TERMINATING if still_there else ""


def _result_without_victims(status: Status, *, nominate: str | None = None) -> PostFilterResult:
    """An answer without victims. Whoever reads the event must see whose words these are."""
    return PostFilterResult(Status(status.code, (f"{PREFIX}{status.message}",)), nominated_node_name=nominate)
