"""Pods of one group are decided about together: enough of them find a place, or none of them takes one.

Asked when a pod of a group comes to its turn, with the feature gate GenericWorkload. All of the group that wait come
along. Each is given a place in trial, in order, as if the ones before were there; then everything is taken back, and if
Permit was content in the end all that found a place are placed in earnest. The words are kube-scheduler's. Cost: an
attempt a pod, and a second Reserve and Permit for those that go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.status import (
    SUCCESS,
    Code,
    Status,
    error,
)
from bayplan.framework.runtime.framework import Framework
from bayplan.objects.core import Pod
from bayplan.queue import QueuedPodInfo, SchedulingQueue
from bayplan.scheduler.cycle.scheduling_cycle import CallExtender, SchedulingDecision
from bayplan.scheduler.engine import AssumedPod, PodEngine

UNSCHEDULABLE_GROUP = "pod group is unschedulable"
PERMIT_WAIT_MESSAGE = "one or more plugins asked to wait and no plugin rejected pod"
WAITING_FOR_PREEMPTION = "pod group is waiting for preemption to complete"
_EPOCH = datetime.min.replace(tzinfo=UTC)

Skip = Callable[[QueuedPodInfo], bool]
"""Whether a pod need not be tried any more."""


@dataclass(frozen=True, slots=True)
class PodTrial:
    """How the trial of one pod ended. `permit`: what Permit said of those who wait for others."""

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
        """Whether the place has to be made first."""
        return bool(self.node_name) and not self.status.ok


@dataclass(slots=True)
class GroupAttemptResult:
    """How it ended for all of them."""

    status: Status
    trials: list[PodTrial] = field(default_factory=list)
    not_tried: list[QueuedPodInfo] = field(default_factory=list)
    waits_for_preemption: bool = False


@dataclass(slots=True)
class GroupAttempts:
    """Makes attempts for whole groups."""

    engine: PodEngine
    queue: SchedulingQueue
    ask: CallExtender | None = None

    def gather_members(self, first: QueuedPodInfo, skip: Skip) -> list[QueuedPodInfo]:
        """The pods of the group that wait, popped, the most important and longest waiting first."""
        found = [first]
        for mate in list(self.engine.pending.values()):
            if mate.uid != first.uid and same_group(mate, first.pod):
                queued = self.queue.pop_pod(mate)
                if queued is not None:
                    found.append(queued)
        left = [queued for queued in found if not skip(queued)]
        return sorted(left, key=lambda queued: (-queued.info.priority, queued.first_attempt or _EPOCH))

    def activate(self) -> None:
        """Do what plugins asked for while all of the group are in flight: else they would be tried again at once."""
        pods = list(self.engine.pods_to_activate.values())
        self.engine.pods_to_activate.clear()
        self.queue.activate(pods)

    async def try_members(self, members: Sequence[QueuedPodInfo]) -> GroupAttemptResult:
        """Give every pod a place in trial. Nothing of it is left when this returns."""
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
        """One after another. `within`: names of the nodes that they may go to, where these are not all."""
        outcome = GroupAttemptResult(Status(Code.UNSCHEDULABLE, (UNSCHEDULABLE_GROUP,)))
        held: list[AssumedPod] = []
        try:
            for number, queued in enumerate(members):
                await self._try_one(queued, outcome, held, within)
                if outcome.status.code is Code.ERROR:
                    outcome.not_tried = list(members[number + 1 :])
                    break
        finally:
            for each in reversed(held):
                self.engine.end_trial(each)
            self.activate()
        return outcome

    async def _try_one(
        self, queued: QueuedPodInfo, outcome: GroupAttemptResult, held: list[AssumedPod], within: Set[str] | None
    ) -> None:
        framework, cycle, decision = await self.engine.decide_only(queued.info, self.ask, within)
        node_name = decision.node or decision.nominated_node_name or ""
        if not node_name:
            outcome.trials.append(PodTrial(queued, decision, decision.status, framework, cycle))
            if not decision.status.rejected:
                self._error_result(outcome, decision.status)
            return
        status, kept, permit = self.engine.assume_in_trial(framework, cycle, node_name)
        if kept is None:
            outcome.trials.append(PodTrial(queued, decision, status, framework, cycle))
            if not status.rejected:
                self._error_result(outcome, status)
            return
        held.append(kept)
        said = ", ".join(filter(None, (permit.reason, PERMIT_WAIT_MESSAGE))) if permit.waits else ""
        placed = PodTrial(queued, decision, decision.status, framework, cycle, node_name, not permit.waits, said)
        outcome.trials.append(placed)
        if placed.permitted:
            outcome.waits_for_preemption = any(each.needs_preemption for each in outcome.trials)
            told = (UNSCHEDULABLE_GROUP, WAITING_FOR_PREEMPTION)
            outcome.status = Status(Code.UNSCHEDULABLE, told) if outcome.waits_for_preemption else SUCCESS

    @staticmethod
    def _error_result(outcome: GroupAttemptResult, status: Status) -> None:
        outcome.status = error(f"failed to schedule other pod from a pod group: {status.message}")
        outcome.waits_for_preemption = False


def same_group(one: Pod, other: Pod) -> bool:
    mine, theirs = one.spec.scheduling_group, other.spec.scheduling_group
    if mine is None or theirs is None or not mine.pod_group_name:
        return False
    return one.namespace == other.namespace and mine.pod_group_name == theirs.pod_group_name
