"""Cluster events of an object change, computed from the object before and after.

Called once for each change that the API server reports, and by the queue when a waiting pod itself changes. The events
of each field and their order are kube-scheduler's. A change without a relevant field has no event, except that a pod
update always has one. Cost: a few comparisons of structs; requests are computed only if their inputs differ.
"""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.codec.quantity import parse_quantity
from bayplan.framework.api.events import ActionType, ClusterEvent, EventResource
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject, ResourceList
from bayplan.objects.resource import DeviceClass, ResourceClaim, ResourceSlice
from bayplan.objects.resources import has_same_request_inputs, pod_requests
from bayplan.objects.storage import (
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from bayplan.objects.workloads import PodGroup

NODE_ADD = ClusterEvent(EventResource.NODE, ActionType.ADD)
NODE_DELETE = ClusterEvent(EventResource.NODE, ActionType.DELETE)
ASSIGNED_POD_ADD = ClusterEvent(EventResource.ASSIGNED_POD, ActionType.ADD)
ASSIGNED_POD_UPDATE = ClusterEvent(EventResource.ASSIGNED_POD, ActionType.UPDATE)
ASSIGNED_POD_DELETE = ClusterEvent(EventResource.ASSIGNED_POD, ActionType.DELETE)
UNSCHEDULED_POD_ADD = ClusterEvent(EventResource.UNSCHEDULABLE_POD, ActionType.ADD)
UNSCHEDULED_POD_UPDATE = ClusterEvent(EventResource.UNSCHEDULABLE_POD, ActionType.UPDATE)
UNSCHEDULED_POD_DELETE = ClusterEvent(EventResource.UNSCHEDULABLE_POD, ActionType.DELETE)

EVENT_RESOURCES: dict[type[KubeObject], EventResource] = {
    Node: EventResource.NODE,
    PersistentVolume: EventResource.PERSISTENT_VOLUME,
    PersistentVolumeClaim: EventResource.PERSISTENT_VOLUME_CLAIM,
    CsiNode: EventResource.CSI_NODE,
    CsiDriver: EventResource.CSI_DRIVER,
    CsiStorageCapacity: EventResource.CSI_STORAGE_CAPACITY,
    VolumeAttachment: EventResource.VOLUME_ATTACHMENT,
    StorageClass: EventResource.STORAGE_CLASS,
    ResourceClaim: EventResource.RESOURCE_CLAIM,
    ResourceSlice: EventResource.RESOURCE_SLICE,
    DeviceClass: EventResource.DEVICE_CLASS,
    PodGroup: EventResource.POD_GROUP,
}
"""Event resources by kind. Pods have two resources: with and without a node."""


def cluster_events_of_change(old: KubeObject | None, new: KubeObject | None) -> list[ClusterEvent]:
    """Return the events of one change. None means that the object does not exist. Some kinds have no events."""
    latest = new if new is not None else old
    if old is not None and new is not None:
        if isinstance(old, Node) and isinstance(new, Node):
            return node_update_events(old, new)
        if isinstance(old, Pod) and isinstance(new, Pod):
            return pod_update_events(old, new)
    if latest is None:
        return []
    resource = pod_event_resource(latest) if isinstance(latest, Pod) else EVENT_RESOURCES.get(type(latest))
    action = ActionType.ADD if old is None else ActionType.DELETE if new is None else ActionType.UPDATE
    return [] if resource is None else [ClusterEvent(resource, action)]


def pod_event_resource(pod: Pod) -> EventResource:
    return EventResource.ASSIGNED_POD if pod.spec.node_name else EventResource.UNSCHEDULABLE_POD


def pod_update_events(old: Pod, new: Pod, *, same_amounts: bool = False) -> list[ClusterEvent]:
    """Return the events of an update. Without a relevant change it is a plain update, which few plugins register.

    `same_amounts`: the caller knows that `has_same_row_amounts` holds; then only generated claims can differ.
    """
    actions = _claim_actions(old, new) if same_amounts else list(_pod_actions(old, new))
    if not actions:
        return [ASSIGNED_POD_UPDATE if new.spec.node_name else UNSCHEDULED_POD_UPDATE]
    resource = pod_event_resource(new)
    return [ClusterEvent(resource, action) for action in actions]


def _pod_actions(old: Pod, new: Pod) -> Iterator[ActionType]:
    if old.metadata.labels != new.metadata.labels:
        yield ActionType.UPDATE_POD_LABEL
    if _requests_decreased(old, new):
        yield ActionType.UPDATE_POD_SCALE_DOWN
    if old.spec.scheduling_gates and not new.spec.scheduling_gates:
        yield ActionType.UPDATE_POD_GATES_ELIMINATED
    if len(old.spec.tolerations) != len(new.spec.tolerations):  # tolerations can be added, not changed
        yield ActionType.UPDATE_POD_TOLERATION
    yield from _claim_actions(old, new)


def _claim_actions(old: Pod, new: Pod) -> list[ActionType]:
    before, after = old.status, new.status
    if (
        before.resource_claim_statuses != after.resource_claim_statuses
        or before.extended_resource_claim_status != after.extended_resource_claim_status
    ):
        return [ActionType.UPDATE_POD_GENERATED_CLAIM]
    return []


def _requests_decreased(old: Pod, new: Pod) -> bool:
    """Whether a request was removed or became smaller. A resize in progress counts with the larger amount."""
    if has_same_request_inputs(old, new):
        return False
    before, after = pod_requests(old, use_status=True), pod_requests(new, use_status=True)
    return any(name not in after or amount.milli_value() > after[name].milli_value() for name, amount in before.items())


def node_update_events(old: Node, new: Node) -> list[ClusterEvent]:
    """Return the events of an update. A heartbeat has none."""
    return [ClusterEvent(EventResource.NODE, action) for action in _node_actions(old, new)]


def _node_actions(old: Node, new: Node) -> Iterator[ActionType]:
    if old.spec.unschedulable and not new.spec.unschedulable:
        yield ActionType.UPDATE_NODE_TAINT
    if not _same_amounts(old.status.allocatable, new.status.allocatable):
        yield ActionType.UPDATE_NODE_ALLOCATABLE
    if old.metadata.labels != new.metadata.labels:
        yield ActionType.UPDATE_NODE_LABEL
    if old.spec.taints != new.spec.taints:
        yield ActionType.UPDATE_NODE_TAINT
    if _condition_statuses(old) != _condition_statuses(new):
        yield ActionType.UPDATE_NODE_CONDITION
    if old.metadata.annotations != new.metadata.annotations:
        yield ActionType.UPDATE_NODE_ANNOTATION
    if old.status.declared_features != new.status.declared_features:
        yield ActionType.UPDATE_NODE_DECLARED_FEATURE


def _same_amounts(old: ResourceList, new: ResourceList) -> bool:
    """Whether the quantities are equal: `1` and `1000m` are the same."""
    if old == new:
        return True
    return old.keys() == new.keys() and all(
        parse_quantity(text) == parse_quantity(new[name]) for name, text in old.items()
    )


def _condition_statuses(node: Node) -> dict[str, str]:
    """Return the statuses of the conditions without heartbeat times."""
    return {condition.type: condition.status for condition in node.status.conditions}
