"""Scores placements by the number of pods of the group.

Called once for each placement that fits the group. Cost: a loop over the group's own pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import MAX_SCORE, Placement
from bayplan.framework.api.status import Status, error
from bayplan.plugins.pod_group_members import PodGroupName, pod_group_members

NOTHING_ASSIGNED = "no pods from pod group are assigned to any of the candidate placements"


class PodGroupPodsCount:
    """Prefers placements in which more pods of the group run."""

    name = "PodGroupPodsCount"

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @classmethod
    def factory(cls, args: object, handle: Handle) -> PodGroupPodsCount:  # noqa: ARG003
        return cls(handle)

    def score_placement(
        self,
        cycle: Cycle,
        group: PodGroupName,
        placement: Placement,  # noqa: ARG002
        assigned: Mapping[str, str],
    ) -> int:
        """Pods that run or are assumed count as well, so scores of placements stay proportional."""
        pods = pod_group_members(self._handle, cycle, group)
        return sum(bool(pod.spec.node_name) for pod in pods) + len(assigned)

    def normalize_placements(self, cycle: Cycle, group: PodGroupName, scores: Sequence[int]) -> Sequence[int] | Status:  # noqa: ARG002
        """Scale the scores so that the best placement gets 100."""
        highest = max(scores, default=0)
        if highest <= 0:
            return error(NOTHING_ASSIGNED)
        return [score * MAX_SCORE // highest for score in scores]
