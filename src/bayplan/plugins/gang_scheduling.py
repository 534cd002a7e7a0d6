"""Gates the pods of a gang until enough of them exist, and holds them at Permit until enough have a node.

Called at PreEnqueue and at Permit. It affects only pods of a PodGroup with a gang policy. Cost: a loop over the group's
own pods.
"""

from __future__ import annotations

from bayplan.codec.go_text import quote
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint, queue_hint_if
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import PermitWait
from bayplan.framework.api.status import Status, error, unresolvable
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.workloads import PodGroup

WAITING_FOR_PODS = "waiting for minCount pods from a gang to appear in scheduling queue"
WAITING_FOR_PLACEMENTS = "waiting for minCount pods from a gang to be scheduled"
PERMIT_TIMEOUT_S = 5 * 60.0


def pod_group_name(pod: Pod) -> str | None:
    group = pod.spec.scheduling_group
    return None if group is None else group.pod_group_name


def own_group_key(pod: Pod) -> tuple[str, str | None]:
    return pod.namespace, pod_group_name(pod)


def hint_on_member_add(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A pod was added; queue if it is in the same group."""
    assert isinstance(new, Pod)
    name = pod_group_name(pod)
    return queue_hint_if(name is not None and new.namespace == pod.namespace and pod_group_name(new) == name)


def hint_on_group_add(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A PodGroup was added; queue if it is the pod's group."""
    assert isinstance(new, PodGroup)
    return queue_hint_if(
        pod_group_name(pod) is not None and (new.namespace, new.name) == (pod.namespace, pod_group_name(pod))
    )


class GangScheduling:
    """Schedules the pods of a gang together or not at all."""

    name = "GangScheduling"
    events_to_register = (
        ClusterEventWithHint(EventResource.POD, ActionType.ADD, hint_on_member_add, hint_key=own_group_key),
        ClusterEventWithHint(EventResource.POD_GROUP, ActionType.ADD, hint_on_group_add, hint_key=own_group_key),
    )

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @classmethod
    def factory(cls, args: object, handle: Handle) -> GangScheduling:  # noqa: ARG003
        return cls(handle)

    def pre_enqueue(self, pod: Pod) -> Status | None:
        name = pod_group_name(pod)
        if name is None:
            return None
        group = self._group(pod.namespace, name)
        if group is None:
            return unresolvable(f"waiting for pods's pod group {quote(name)} to appear in scheduling queue")
        if len(self._handle.group_pods(pod.namespace, name)) < _min_count(group):
            return unresolvable(WAITING_FOR_PODS)
        return None

    def permit(self, cycle: Cycle, node_name: str) -> PermitWait | Status | None:  # noqa: ARG002
        pod = cycle.pod
        name = pod_group_name(pod)
        if name is None:
            return None
        group = self._group(pod.namespace, name)
        if group is None:
            fault = f"podgroup.scheduling.k8s.io {quote(name)} not found"
            return error(f"failed to get podGroup {pod.namespace}/{name}: {fault}")
        if group.spec.scheduling_policy.gang is None:
            return None
        members = self._handle.group_pods(pod.namespace, name)
        placed = [member for member in members if member.spec.node_name]
        if len(placed) < _min_count(group):
            self._handle.activate({member.name: member for member in members if not member.spec.node_name})
            return PermitWait(PERMIT_TIMEOUT_S, WAITING_FOR_PLACEMENTS)
        self._release(placed)
        return None

    def _group(self, namespace: str, name: str) -> PodGroup | None:
        return self._handle.catalog.pod_groups.get(f"{namespace}/{name}")

    def _release(self, members: list[Pod]) -> None:
        for member in members:
            waiting = self._handle.waiting_pods.get(member.uid)
            if waiting is not None:
                waiting.allow(self.name)


def _min_count(group: PodGroup) -> int:
    """Return the minimum number of pods; 0 for a group without a gang policy."""
    gang = group.spec.scheduling_policy.gang
    return 0 if gang is None else gang.min_count
