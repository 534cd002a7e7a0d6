"""Which placement takes the most pods of a group?

Asked once for each placement that can take the group. Cost: a walk over the group's own pods.
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
        """Pods that run or are assumed already count as well: differences between placements stay in proportion."""
        pods = pod_group_members(self._handle, cycle, group)
        return sum(bool(pod.spec.node_name) for pod in pods) + len(assigned)

    def normalize_placements(self, cycle: Cycle, group: PodGroupName, scores: Sequence[int]) -> Sequence[int] | Status:  # noqa: ARG002
        """The fullest placement gets 100."""
        most = max(scores, default=0)
        if most <= 0:
            return error(NOTHING_ASSIGNED)
        return [score * MAX_SCORE // most for score in scores]
