"""Gates pods that have scheduling gates.

Called at PreEnqueue. Cost: a check of one list.
"""

from __future__ import annotations

from bayplan.framework.api.events import (
    ActionType,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
    no_hint_key,
    queue_hint_if,
)
from bayplan.framework.api.status import Status, unresolvable
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject


def hint_on_gates_removed(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """Scheduling gates were removed from a pod; queue if it is this pod."""
    assert isinstance(new, Pod)
    return queue_hint_if(new.uid == pod.uid)


class SchedulingGates:
    """Keeps pods out of the queue until their scheduling gates are removed."""

    name = "SchedulingGates"
    events_to_register = (
        ClusterEventWithHint(
            EventResource.POD, ActionType.UPDATE_POD_GATES_ELIMINATED, hint_on_gates_removed, hint_key=no_hint_key
        ),
    )

    def pre_enqueue(self, pod: Pod) -> Status | None:
        gates = pod.spec.scheduling_gates
        if not gates:
            return None
        return unresolvable(f"waiting for scheduling gates: [{' '.join(gate.name for gate in gates)}]")
