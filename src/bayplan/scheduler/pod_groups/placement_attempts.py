"""Attempts for pod groups with scheduling constraints: tries the group on each placement and picks the best.

Used instead of plain `GroupAttempts` with the feature gate TopologyAwareWorkloadScheduling. The profile's plugins
generate the placements: most often one for each value of the topology key that the group names. The group is tried on
each placement as a whole; of the placements that fit, the one with the best score is used. PreFilter sees all nodes
meanwhile, Filter those of the placement. Cost: one attempt for each pod and placement.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bayplan.framework.api.plugin import Placement
from bayplan.framework.api.status import Code, Status, error
from bayplan.framework.runtime.placement_scoring import PlacementCandidate, PodGroupRef
from bayplan.queue import QueuedPodInfo
from bayplan.scheduler.pod_groups.group_attempts import GroupAttemptResult, GroupAttempts
from bayplan.telemetry.decisions import DecisionRecord


@dataclass(frozen=True, slots=True)
class _PlacementTrial:
    """The outcome of one placement's trial, with the decision records that it wrote."""

    placement: Placement
    outcome: GroupAttemptResult
    records: Sequence[DecisionRecord]

    @property
    def is_enough(self) -> bool:
        return self.outcome.status.ok or self.outcome.waits_for_preemption


@dataclass(slots=True)
class PlacementGroupAttempts(GroupAttempts):
    """Runs attempts for groups, placement by placement. Without `chance` the first of equally good ones is used."""

    chance: random.Random | None = None

    async def _decide(self, members: Sequence[QueuedPodInfo]) -> GroupAttemptResult:
        pod = members[0].pod
        assert pod.spec.scheduling_group is not None, "only pods of groups are tried here"
        group = PodGroupRef(pod.namespace, pod.spec.scheduling_group.pod_group_name or "")
        cycle = self.engine.begin(members[0].info)
        placements = self.engine.framework(pod.scheduler_name).placement_points.placements(cycle, group)
        if isinstance(placements, Status):
            return GroupAttemptResult(placements, not_tried=list(members))
        trials: list[_PlacementTrial] = []
        for placement in placements:
            trial = await self._trial(members, placement)
            if trial.outcome.status.code is Code.ERROR:
                return trial.outcome
            trials.append(trial)
        return self._best(members, group, trials)

    async def _trial(self, members: Sequence[QueuedPodInfo], placement: Placement) -> _PlacementTrial:
        names, known = placement.node_names, self.engine.snapshot().nodes.index.keys()
        if not names <= known:
            text = f"node {min(names - known)} in placement is not present in snapshot"
            broken = error(f"failed to assume pod group placement: {text}")
            return _PlacementTrial(placement, GroupAttemptResult(broken, not_tried=list(members)), ())
        outcome = await self._try_in_order(members, None if len(names) == len(known) else names)
        return _PlacementTrial(placement, outcome, self.engine.records.newest(len(outcome.trials)))

    def _best(
        self, members: Sequence[QueuedPodInfo], group: PodGroupRef, trials: Sequence[_PlacementTrial]
    ) -> GroupAttemptResult:
        """The outcome to apply. If no placement fits, it is the outcome of the first, named in the message."""
        good = [trial for trial in trials if trial.is_enough]
        if not good:
            first = trials[0]
            why = f"first placement status: {first.outcome.status.message}"
            text = f"0/{len(trials)} placements are available, {why}"
            first.outcome.status = Status(Code.UNSCHEDULABLE, (text,))
            return self._apply_trial(first, trials)
        if len(good) == 1:
            return self._apply_trial(good[0], trials)
        cycle = self.engine.begin(members[0].info)  # the trials are undone
        candidates = [PlacementCandidate(trial.placement, _nodes_by_pod(trial.outcome)) for trial in good]
        totals = self.engine.framework(members[0].pod.scheduler_name).placement_points.totals(cycle, group, candidates)
        if isinstance(totals, Status):
            return GroupAttemptResult(totals, not_tried=list(members))
        most = max(totals)
        best = [trial for trial, total in zip(good, totals, strict=True) if total == most]
        return self._apply_trial(best[0] if self.chance is None else self.chance.choice(best), trials)

    def _apply_trial(self, trial: _PlacementTrial, trials: Sequence[_PlacementTrial]) -> GroupAttemptResult:
        """Return the outcome of a placement. Its records are added again, to be the newest."""
        if trial is not trials[-1] and self.engine.records.keeps_any:
            for record in trial.records:
                self.engine.records.add(record)
        return trial.outcome


def _nodes_by_pod(outcome: GroupAttemptResult) -> dict[str, str]:
    return {each.queued.pod.key: each.node_name for each in outcome.trials if each.node_name}
