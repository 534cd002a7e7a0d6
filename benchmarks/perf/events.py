"""What has happened, in the words that plugins wait for? The event of a change, from the object before and after.

Asked once a change of the cluster. The kinds of event are kube-scheduler's.
"""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.framework.events import Action, ClusterEvent, Resource
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import DeviceClass, ResourceClaim, ResourceSlice
from bayplan.objects.resources import accounted_requests
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

_RESOURCES: dict[type[KubeObject], Resource] = {
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


def events_between(old: KubeObject | None, new: KubeObject | None) -> Iterator[ClusterEvent]:
    """The events of one change; None stands for "was not there" and "is gone"."""
    item = new if new is not None else old
    if item is None:
        return
    if isinstance(item, Pod):
        resource: Resource | None = Resource.ASSIGNED_POD if item.spec.node_name else Resource.UNSCHEDULABLE_POD
    else:
        resource = _RESOURCES.get(type(item))
    if resource is not None:
        yield from (ClusterEvent(resource, action) for action in _actions(old, new))


def _actions(old: KubeObject | None, new: KubeObject | None) -> Iterator[Action]:
    if old is None:
        yield Action.ADD
    elif new is None:
        yield Action.DELETE
    elif isinstance(old, Node) and isinstance(new, Node):
        yield from _node_actions(old, new)
    elif isinstance(old, Pod) and isinstance(new, Pod):
        yield from _pod_actions(old, new)
    else:
        yield Action.UPDATE


def _node_actions(old: Node, new: Node) -> Iterator[Action]:
    if old.status.allocatable != new.status.allocatable:
        yield Action.UPDATE_NODE_ALLOCATABLE
    if old.metadata.labels != new.metadata.labels:
        yield Action.UPDATE_NODE_LABEL
    if old.spec.unschedulable != new.spec.unschedulable or old.spec.taints != new.spec.taints:
        yield Action.UPDATE_NODE_TAINT
    if old.status.conditions != new.status.conditions:
        yield Action.UPDATE_NODE_CONDITION
    if old.metadata.annotations != new.metadata.annotations:
        yield Action.UPDATE_NODE_ANNOTATION
    if old.status.declared_features != new.status.declared_features:
        yield Action.UPDATE_NODE_DECLARED_FEATURE


def _pod_actions(old: Pod, new: Pod) -> Iterator[Action]:
    before, after = accounted_requests(old), accounted_requests(new)
    if old.labels != new.labels:
        yield Action.UPDATE_POD_LABEL
    if any(after.get(name, 0) < amount for name, amount in before.items()):
        yield Action.UPDATE_POD_SCALE_DOWN
    if old.spec.scheduling_gates and not new.spec.scheduling_gates:
        yield Action.UPDATE_POD_GATES_ELIMINATED
    if old.spec.tolerations != new.spec.tolerations:
        yield Action.UPDATE_POD_TOLERATION
    if old.status.resource_claim_statuses != new.status.resource_claim_statuses:
        yield Action.UPDATE_POD_GENERATED_CLAIM
