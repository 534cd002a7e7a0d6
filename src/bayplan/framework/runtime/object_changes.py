"""What has happened, in the words that plugins wait for? The events of a change, from the object before and after.

Asked once a change that the API server tells, and once more by the queue when a waiting pod itself changes. Which field
makes which event, and in which order, is kube-scheduler's; a change that interests nobody makes no event, save that a
pod always has one. Cost: a few comparisons of structs; requests are computed only where something that they are made of
is not the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.codec.quantity import parse_quantity
from bayplan.framework.api.events import Action, ClusterEvent, Resource
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject, ResourceList
from bayplan.objects.resource import DeviceClass, ResourceClaim, ResourceSlice
from bayplan.objects.resources import asks_alike, pod_requests
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

NODE_ADD = ClusterEvent(Resource.NODE, Action.ADD)
NODE_DELETE = ClusterEvent(Resource.NODE, Action.DELETE)
ASSIGNED_POD_ADD = ClusterEvent(Resource.ASSIGNED_POD, Action.ADD)
ASSIGNED_POD_UPDATE = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE)
ASSIGNED_POD_DELETE = ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE)
UNSCHEDULED_POD_ADD = ClusterEvent(Resource.UNSCHEDULABLE_POD, Action.ADD)
UNSCHEDULED_POD_UPDATE = ClusterEvent(Resource.UNSCHEDULABLE_POD, Action.UPDATE)
UNSCHEDULED_POD_DELETE = ClusterEvent(Resource.UNSCHEDULABLE_POD, Action.DELETE)

RESOURCES: dict[type[KubeObject], Resource] = {
    Node: Resource.NODE,
    PersistentVolume: Resource.PERSISTENT_VOLUME,
    PersistentVolumeClaim: Resource.PERSISTENT_VOLUME_CLAIM,
    CsiNode: Resource.CSI_NODE,
    CsiDriver: Resource.CSI_DRIVER,
    CsiStorageCapacity: Resource.CSI_STORAGE_CAPACITY,
    VolumeAttachment: Resource.VOLUME_ATTACHMENT,
    StorageClass: Resource.STORAGE_CLASS,
    ResourceClaim: Resource.RESOURCE_CLAIM,
    ResourceSlice: Resource.RESOURCE_SLICE,
    DeviceClass: Resource.DEVICE_CLASS,
    PodGroup: Resource.POD_GROUP,
}
"""What events call the kinds that they are about; pods have two names, by whether they have a node."""


def events_between(old: KubeObject | None, new: KubeObject | None) -> list[ClusterEvent]:
    """The events of one change; None stands for "was not there" and "is gone". Kinds that make no events have none."""
    item = new if new is not None else old
    if old is not None and new is not None:
        if isinstance(old, Node) and isinstance(new, Node):
            return node_changes(old, new)
        if isinstance(old, Pod) and isinstance(new, Pod):
            return pod_changes(old, new)
    if item is None:
        return []
    resource = pod_resource(item) if isinstance(item, Pod) else RESOURCES.get(type(item))
    action = Action.ADD if old is None else Action.DELETE if new is None else Action.UPDATE
    return [] if resource is None else [ClusterEvent(resource, action)]


def pod_resource(pod: Pod) -> Resource:
    return Resource.ASSIGNED_POD if pod.spec.node_name else Resource.UNSCHEDULABLE_POD


# pods


def pod_changes(old: Pod, new: Pod, *, alike: bool = False) -> list[ClusterEvent]:
    """The events of an update. One that changes nothing of interest is a plain update, which only few wait for.

    `alike`: whoever asks knows that both `weighs_alike`; then nothing is left that can differ but generated claims."""
    actions = _claim_actions(old, new) if alike else list(_pod_actions(old, new))
    if not actions:
        return [ASSIGNED_POD_UPDATE if new.spec.node_name else UNSCHEDULED_POD_UPDATE]
    resource = pod_resource(new)
    return [ClusterEvent(resource, action) for action in actions]


def _pod_actions(old: Pod, new: Pod) -> Iterator[Action]:
    if old.metadata.labels != new.metadata.labels:
        yield Action.UPDATE_POD_LABEL
    if _asks_for_less(old, new):
        yield Action.UPDATE_POD_SCALE_DOWN
    if old.spec.scheduling_gates and not new.spec.scheduling_gates:
        yield Action.UPDATE_POD_GATES_ELIMINATED
    if len(old.spec.tolerations) != len(new.spec.tolerations):  # tolerations can be added, not changed
        yield Action.UPDATE_POD_TOLERATION
    yield from _claim_actions(old, new)


def _claim_actions(old: Pod, new: Pod) -> list[Action]:
    before, after = old.status, new.status
    if (
        before.resource_claim_statuses != after.resource_claim_statuses
        or before.extended_resource_claim_status != after.extended_resource_claim_status
    ):
        return [Action.UPDATE_POD_GENERATED_CLAIM]
    return []


def _asks_for_less(old: Pod, new: Pod) -> bool:
    """Whether a request went away or became smaller, a resize in progress counted at its largest."""
    if asks_alike(old, new):
        return False
    before, after = pod_requests(old, use_status=True), pod_requests(new, use_status=True)
    return any(name not in after or amount.milli_value() > after[name].milli_value() for name, amount in before.items())


# nodes


def node_changes(old: Node, new: Node) -> list[ClusterEvent]:
    """The events of an update, none where nothing of interest changed: a heartbeat has none."""
    return [ClusterEvent(Resource.NODE, action) for action in _node_actions(old, new)]


def _node_actions(old: Node, new: Node) -> Iterator[Action]:
    if old.spec.unschedulable and not new.spec.unschedulable:
        yield Action.UPDATE_NODE_TAINT
    if not _same_amounts(old.status.allocatable, new.status.allocatable):
        yield Action.UPDATE_NODE_ALLOCATABLE
    if old.metadata.labels != new.metadata.labels:
        yield Action.UPDATE_NODE_LABEL
    if old.spec.taints != new.spec.taints:
        yield Action.UPDATE_NODE_TAINT
    if _condition_statuses(old) != _condition_statuses(new):
        yield Action.UPDATE_NODE_CONDITION
    if old.metadata.annotations != new.metadata.annotations:
        yield Action.UPDATE_NODE_ANNOTATION
    if old.status.declared_features != new.status.declared_features:
        yield Action.UPDATE_NODE_DECLARED_FEATURE


def _same_amounts(old: ResourceList, new: ResourceList) -> bool:
    """Equal by value: `1` and `1000m` are the same."""
    if old == new:
        return True
    return old.keys() == new.keys() and all(
        parse_quantity(text) == parse_quantity(new[name]) for name, text in old.items()
    )


def _condition_statuses(node: Node) -> dict[str, str]:
    """What conditions say, without the times of their heartbeats."""
    return {condition.type: condition.status for condition in node.status.conditions}
