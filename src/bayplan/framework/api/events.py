"""What happens in a cluster, and which of it may cure a rejected pod.

A plugin states `cured_by`: the kinds of event after which a pod that it rejected is worth another try, each with an
optional hint that looks at the event's objects. The queue asks; nothing here waits for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum, IntFlag, StrEnum
from typing import Any

from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject


class Action(IntFlag):
    """What was done to an object. The order of the bits is kube-scheduler's and matters: see `Cure.matches`."""

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


ACTION_WORDS: dict[Action, str] = {
    Action.ADD: "Add",
    Action.DELETE: "Delete",
    Action.UPDATE_NODE_ALLOCATABLE: "UpdateNodeAllocatable",
    Action.UPDATE_NODE_LABEL: "UpdateNodeLabel",
    Action.UPDATE_NODE_TAINT: "UpdateNodeTaint",
    Action.UPDATE_NODE_CONDITION: "UpdateNodeCondition",
    Action.UPDATE_NODE_ANNOTATION: "UpdateNodeAnnotation",
    Action.UPDATE_NODE_DECLARED_FEATURE: "UpdateNodeDeclaredFeature",
    Action.UPDATE_POD_LABEL: "UpdatePodLabel",
    Action.UPDATE_POD_SCALE_DOWN: "UpdatePodScaleDown",
    Action.UPDATE_POD_TOLERATION: "UpdatePodToleration",
    Action.UPDATE_POD_GATES_ELIMINATED: "UpdatePodSchedulingGatesEliminated",
    Action.UPDATE_POD_GENERATED_CLAIM: "UpdatePodGeneratedResourceClaim",
    Action.UPDATE: "Update",
    Action.ALL: "All",
}
"""The actions as kube-scheduler's metrics and logs spell them; other combinations have no name there."""


class Resource(StrEnum):
    """The kinds of object that events are about, spelled as kube-scheduler's metrics spell them."""

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


_PODS = (Resource.ASSIGNED_POD, Resource.UNSCHEDULABLE_POD)


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Something that happened. `label`: its own name, for the few that are not called by resource and action."""

    resource: Resource | str
    action: Action
    label: str = ""
    name: str = field(init=False, compare=False, repr=False)
    """What metrics and logs call it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.label or f"{self.resource}{ACTION_WORDS.get(self.action, '')}")

    @property
    def is_wildcard(self) -> bool:
        return self.resource == Resource.ANY and self.action == Action.ALL


class Hint(Enum):
    """Is the event worth another try of the pod?"""

    QUEUE = "Queue"
    SKIP = "Skip"


HintFunction = Callable[[Pod, KubeObject | None, KubeObject | None], Hint]
"""`hint(pod, old, new)`: the rejected pod, and the object before and after the event (None: it was not there)."""

Reads = Callable[[Pod], Hashable | None]
"""`reads(pod)`: the part of a pod that a hint looks at, as a value; None: this pod is to be asked about alone."""

Judge = Callable[[Any, KubeObject | None, KubeObject | None], Hint]
"""`judge(part, old, new)`: what the hint says of every pod of which `reads` gives this part."""


@dataclass(frozen=True, slots=True)
class Cure:
    """A kind of event after which a rejected pod may fit. Without a hint every such event counts.

    Thousands of pods may wait for the same thing. A hint that looks at a part of the pod only says which by `reads`,
    and is then asked once for all pods of which that part is equal. The pod that the event itself is about is always
    asked alone, so comparing `uid` needs no mention. A hint that says nothing is asked about every pod. `judge` says
    the same from the part alone, where reading it off the pod once more would be dear.
    """

    resource: Resource | str
    action: Action
    hint: HintFunction | None = None
    reads: Reads | None = None
    judge: Judge | None = None

    @classmethod
    def sharing(cls, resource: Resource | str, action: Action, reads: Reads, judge: Judge) -> Cure:
        """A cure whose hint is the judgement of a part of the pod, and nothing else."""

        def hint(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> Hint:
            return judge(reads(pod), old, new)

        return cls(resource, action, hint, reads, judge)

    def matches(self, event: ClusterEvent) -> bool:
        """Whether this registration is meant by `event`.

        The comparison of the numbers is kube-scheduler's: a generic update (all update bits) reaches only those who
        asked for every kind of update.
        """
        if self.resource == Resource.ANY and self.action == Action.ALL:
            return True
        about = self.resource in (Resource.ANY, event.resource) or (
            self.resource == Resource.POD and event.resource in _PODS
        )
        return about and bool(self.action & event.action) and event.action <= self.action


def queue_if(answer: bool) -> Hint:
    """A yes or no as a hint."""
    return Hint.QUEUE if answer else Hint.SKIP


def nothing(pod: Pod) -> Hashable | None:  # noqa: ARG001
    """`reads=nothing`: the hint looks at the event alone."""
    return ()
