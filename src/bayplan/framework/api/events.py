"""Cluster events, and the registrations of the events that may make a rejected pod schedulable.

A plugin declares `events_to_register`, as in kube-scheduler: the kinds of event after which the scheduler retries a pod
that the plugin rejected. Each kind may have a queueing hint that reads the objects of the event. The scheduling queue
calls the hints.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum, IntFlag, StrEnum
from typing import Any

from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject


class ActionType(IntFlag):
    """The change of an object.

    The order of the bits is kube-scheduler's: `ClusterEventWithHint.matches` compares numbers.
    """

    ADD = 1
    DELETE = 1 << 1
    UPDATE_NODE_ALLOCATABLE = 1 << 2
    UPDATE_NODE_LABEL = 1 << 3
    UPDATE_NODE_TAINT = 1 << 4
    UPDATE_NODE_CONDITION = 1 << 5
    UPDATE_NODE_ANNOTATION = 1 << 6
    UPDATE_NODE_DECLARED_FEATURE = 1 << 7
    UPDATE_POD_LABEL = 1 << 8
    UPDATE_POD_SCALE_DOWN = 1 << 9
    UPDATE_POD_TOLERATION = 1 << 10
    UPDATE_POD_GATES_ELIMINATED = 1 << 11
    UPDATE_POD_GENERATED_CLAIM = 1 << 12
    UPDATE = (1 << 13) - 4
    ALL = (1 << 13) - 1


ACTION_NAMES: dict[ActionType, str] = {
    ActionType.ADD: "Add",
    ActionType.DELETE: "Delete",
    ActionType.UPDATE_NODE_ALLOCATABLE: "UpdateNodeAllocatable",
    ActionType.UPDATE_NODE_LABEL: "UpdateNodeLabel",
    ActionType.UPDATE_NODE_TAINT: "UpdateNodeTaint",
    ActionType.UPDATE_NODE_CONDITION: "UpdateNodeCondition",
    ActionType.UPDATE_NODE_ANNOTATION: "UpdateNodeAnnotation",
    ActionType.UPDATE_NODE_DECLARED_FEATURE: "UpdateNodeDeclaredFeature",
    ActionType.UPDATE_POD_LABEL: "UpdatePodLabel",
    ActionType.UPDATE_POD_SCALE_DOWN: "UpdatePodScaleDown",
    ActionType.UPDATE_POD_TOLERATION: "UpdatePodToleration",
    ActionType.UPDATE_POD_GATES_ELIMINATED: "UpdatePodSchedulingGatesEliminated",
    ActionType.UPDATE_POD_GENERATED_CLAIM: "UpdatePodGeneratedResourceClaim",
    ActionType.UPDATE: "Update",
    ActionType.ALL: "All",
}
"""The actions as kube-scheduler's metrics and logs spell them. Other combinations have no name there."""


class EventResource(StrEnum):
    """The kinds of object that events are about, spelled as in kube-scheduler's metrics."""

    POD = "Pod"
    ASSIGNED_POD = "AssignedPod"
    UNSCHEDULABLE_POD = "UnschedulablePod"
    NODE = "Node"
    PERSISTENT_VOLUME = "PersistentVolume"
    PERSISTENT_VOLUME_CLAIM = "PersistentVolumeClaim"
    CSI_NODE = "storage.k8s.io/CSINode"
    CSI_DRIVER = "storage.k8s.io/CSIDriver"
    VOLUME_ATTACHMENT = "storage.k8s.io/VolumeAttachment"
    CSI_STORAGE_CAPACITY = "storage.k8s.io/CSIStorageCapacity"
    STORAGE_CLASS = "storage.k8s.io/StorageClass"
    RESOURCE_CLAIM = "resource.k8s.io/ResourceClaim"
    RESOURCE_SLICE = "resource.k8s.io/ResourceSlice"
    DEVICE_CLASS = "resource.k8s.io/DeviceClass"
    POD_GROUP = "scheduling.k8s.io/PodGroup"
    ANY = "*"


_PODS = (EventResource.ASSIGNED_POD, EventResource.UNSCHEDULABLE_POD)


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """One event. `label` replaces the name made of resource and action, which few events need."""

    resource: EventResource | str
    action: ActionType
    label: str = ""
    name: str = field(init=False, compare=False, repr=False)
    """The name of the event in metrics and logs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.label or f"{self.resource}{ACTION_NAMES.get(self.action, '')}")

    @property
    def is_wildcard(self) -> bool:
        return self.resource == EventResource.ANY and self.action == ActionType.ALL


class QueueingHint(Enum):
    """Result of a queueing hint: whether the event may make the pod schedulable."""

    QUEUE = "Queue"
    SKIP = "Skip"


QueueingHintFunction = Callable[[Pod, KubeObject | None, KubeObject | None], QueueingHint]
"""`hint(pod, old, new)`: the rejected pod, and the object before and after the event (None: it does not exist)."""

HintKeyFunction = Callable[[Pod], Hashable | None]
"""`hint_key(pod)`: everything of a pod that a hint reads, as a value. None: the hint runs for this pod separately."""

KeyedHintFunction = Callable[[Any, KubeObject | None, KubeObject | None], QueueingHint]
"""`keyed_hint(key, old, new)`: the hint's result for every pod for which `hint_key` returns this key."""


@dataclass(frozen=True, slots=True)
class ClusterEventWithHint:
    """A kind of event after which the scheduler retries a rejected pod. Without a hint every such event counts.

    Thousands of pods may wait for the same event. A hint that reads only a part of the pod declares this part with
    `hint_key`. The queue then calls the hint once for all pods with an equal key. The pod that the event itself is
    about is always evaluated separately, so the key needs no `uid`. Without `hint_key` the queue calls the hint for
    every pod. `keyed_hint` computes the same from the key alone, where reading it from the pod again would be
    expensive.
    """

    resource: EventResource | str
    action: ActionType
    hint: QueueingHintFunction | None = None
    hint_key: HintKeyFunction | None = None
    keyed_hint: KeyedHintFunction | None = None

    @classmethod
    def with_hint_key(
        cls, resource: EventResource | str, action: ActionType, read_key: HintKeyFunction, evaluate: KeyedHintFunction
    ) -> ClusterEventWithHint:
        """Build a registration whose hint depends on a key of the pod and on nothing else."""

        def hint(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
            return evaluate(read_key(pod), old, new)

        return cls(resource, action, hint, read_key, evaluate)

    def matches(self, event: ClusterEvent) -> bool:
        """Whether `event` matches this registration.

        The comparison of the numbers is kube-scheduler's: a generic update (all update bits) reaches only registrations
        for every kind of update.
        """
        if self.resource == EventResource.ANY and self.action == ActionType.ALL:
            return True
        about = self.resource in (EventResource.ANY, event.resource) or (
            self.resource == EventResource.POD and event.resource in _PODS
        )
        return about and bool(self.action & event.action) and event.action <= self.action


def queue_hint_if(condition: bool) -> QueueingHint:
    """Convert a boolean to a hint."""
    return QueueingHint.QUEUE if condition else QueueingHint.SKIP


def no_hint_key(pod: Pod) -> Hashable | None:  # noqa: ARG001
    """`hint_key=no_hint_key`: the hint reads the event alone."""
    return ()
