"""May this pod be tried at all yet? Not while somebody keeps a scheduling gate on it.

Asked when a pod is about to enter the queue. Cost: a look at one list.
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
    """Gates were taken off a pod; off this one?"""
    assert isinstance(new, Pod)
    return queue_hint_if(new.uid == pod.uid)


class SchedulingGates:
    """Holds pods back until their scheduling gates are gone."""

    name = "SchedulingGates"
    cured_by = (
        ClusterEventWithHint(
            EventResource.POD, ActionType.UPDATE_POD_GATES_ELIMINATED, hint_on_gates_removed, hint_key=no_hint_key
        ),
    )

    def pre_enqueue(self, pod: Pod) -> Status | None:
        gates = pod.spec.scheduling_gates
        if not gates:
            return None
        return unresolvable(f"waiting for scheduling gates: [{' '.join(gate.name for gate in gates)}]")
