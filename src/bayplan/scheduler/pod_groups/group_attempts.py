"""Scheduling attempts for whole pod groups: enough pods of the group find a node, or none is placed.

Called with the feature gate GenericWorkload when a pod of a group is popped. All pending pods of the group are tried
with it. Each is assumed as a trial, in order, so that the next pods see it; then everything is undone. If Permit
accepted in the end, all pods that found a node are placed for real. The texts are kube-scheduler's. Cost: one attempt a
pod, and a second Reserve and Permit for those that are placed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.status import SUCCESS, Code, Status, error
from bayplan.framework.runtime.framework import Framework
from bayplan.objects.core import Pod
from bayplan.queue import QueuedPodInfo, SchedulingQueue
from bayplan.scheduler.cycle.schedule_result import AssumedPod, SchedulingDecision
from bayplan.scheduler.cycle.scheduling_cycle import CallExtender
from bayplan.scheduler.engine import PodEngine

UNSCHEDULABLE_GROUP = "pod group is unschedulable"
PERMIT_WAIT_MESSAGE = "one or more plugins asked to wait and no plugin rejected pod"
WAITING_FOR_PREEMPTION = "pod group is waiting for preemption to complete"
_EPOCH = datetime.min.replace(tzinfo=UTC)

Skip = Callable[[QueuedPodInfo], bool]
"""Whether a pod need not be tried any more."""


@dataclass(frozen=True, slots=True)
class PodTrial:
    """Outcome of one pod's trial. `permit`: Permit's text for a pod that waits for the rest of its group."""

    queued: QueuedPodInfo
    decision: SchedulingDecision
    status: Status
    framework: Framework
    cycle: Cycle
    node_name: str = ""
    permitted: bool = False
    permit: str = ""

    @property
    def needs_preemption(self) -> bool:
        """Whether the pod got a node only by preemption."""
        return bool(self.node_name) and not self.status.ok


@dataclass(slots=True)
class GroupAttemptResult:
    status: Status
    trials: list[PodTrial] = field(default_factory=list)
    not_tried: list[QueuedPodInfo] = field(default_factory=list)
    waits_for_preemption: bool = False


@dataclass(slots=True)
class GroupAttempts:
    engine: PodEngine
    queue: SchedulingQueue
    call_extender: CallExtender | None = None

    def gather_members(self, first: QueuedPodInfo, skip: Skip) -> list[QueuedPodInfo]:
        """Pop the pending pods of the group. Highest priority first, then longest waiting first."""
        found = [first]
        for mate in list(self.engine.pending.values()):
            if mate.uid != first.uid and same_group(mate, first.pod):
                queued = self.queue.pop_pod(mate)
                if queued is not None:
                    found.append(queued)
        left = [queued for queued in found if not skip(queued)]
        return sorted(left, key=lambda queued: (-queued.info.priority, queued.first_attempt or _EPOCH))

    def activate(self) -> None:
        """Activate pods for plugins while the group's pods are in flight: otherwise these would be retried at once."""
        pods = list(self.engine.pods_to_activate.values())
        self.engine.pods_to_activate.clear()
        self.queue.activate(pods)

    async def try_members(self, members: Sequence[QueuedPodInfo]) -> GroupAttemptResult:
        """Try every pod. All assumptions are undone when this returns."""
        names = dict.fromkeys(queued.pod.scheduler_name for queued in members)
        if len(names) > 1:
            first, second = list(names)[:2]
            text = "all pods in a single pod group should have the same .spec.schedulerName set"
            return GroupAttemptResult(error(f'{text}, got: "{second}" and "{first}"'), not_tried=list(members))
        return await self._decide(members)

    async def _decide(self, members: Sequence[QueuedPodInfo]) -> GroupAttemptResult:
        return await self._try_in_order(members)

    async def _try_in_order(
        self, members: Sequence[QueuedPodInfo], within: Set[str] | None = None
    ) -> GroupAttemptResult:
        """Try the pods one after another. `within`: names of the nodes that they may use; None means all."""
        outcome = GroupAttemptResult(Status(Code.UNSCHEDULABLE, (UNSCHEDULABLE_GROUP,)))
        assumed: list[AssumedPod] = []
        try:
            for number, queued in enumerate(members):
                await self._try_one(queued, outcome, assumed, within)
                if outcome.status.code is Code.ERROR:
                    outcome.not_tried = list(members[number + 1 :])
                    break
        finally:
            for each in reversed(assumed):
                each.end_trial(self.engine.cache)
            self.activate()
        return outcome

    async def _try_one(
        self, queued: QueuedPodInfo, outcome: GroupAttemptResult, assumed: list[AssumedPod], within: Set[str] | None
    ) -> None:
        framework, cycle, decision = await self.engine.decide_only(queued.info, self.call_extender, within)
        node_name = decision.node or decision.nominated_node_name or ""
        if not node_name:
            outcome.trials.append(PodTrial(queued, decision, decision.status, framework, cycle))
            if not decision.status.rejected:
                self._set_error(outcome, decision.status)
            return
        status, trial, permit = self.engine.assume_in_trial(framework, cycle, node_name)
        if trial is None:
            outcome.trials.append(PodTrial(queued, decision, status, framework, cycle))
            if not status.rejected:
                self._set_error(outcome, status)
            return
        assumed.append(trial)
        permit_text = ", ".join(filter(None, (permit.reason, PERMIT_WAIT_MESSAGE))) if permit.waits else ""
        placed = PodTrial(queued, decision, decision.status, framework, cycle, node_name, not permit.waits, permit_text)
        outcome.trials.append(placed)
        if placed.permitted:
            outcome.waits_for_preemption = any(each.needs_preemption for each in outcome.trials)
            reasons = (UNSCHEDULABLE_GROUP, WAITING_FOR_PREEMPTION)
            outcome.status = Status(Code.UNSCHEDULABLE, reasons) if outcome.waits_for_preemption else SUCCESS

    @staticmethod
    def _set_error(outcome: GroupAttemptResult, status: Status) -> None:
        outcome.status = error(f"failed to schedule other pod from a pod group: {status.message}")
        outcome.waits_for_preemption = False


def same_group(one: Pod, other: Pod) -> bool:
    group, other_group = one.spec.scheduling_group, other.spec.scheduling_group
    if group is None or other_group is None or not group.pod_group_name:
        return False
    return one.namespace == other.namespace and group.pod_group_name == other_group.pod_group_name
