"""PodGroup controller: creates pod groups for bare pods and for pods of Deployments, StatefulSets and Jobs.

All pods of one owner share a group, named after the owner's uid. The group is deleted with its owner, and when a
ReplicaSet or StatefulSet is scaled to zero. A group that was deleted while it has pods is recreated. A set's group
follows its newest pods and its annotations. Pods that name another group are ignored. Cost: one patch for a new pod;
for the first pod of an owner a lookup of the owner and one more write.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from bayplan.client import STRATEGIC_PATCH, GroupVersionResource
from bayplan.client.work_queue import WorkQueue
from bayplan.controllers.core.api_types import (
    DAEMON_SETS,
    JOBS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    PodFields,
    Tree,
    UntypedObject,
)
from bayplan.controllers.core.shared_informers import Key, SharedIndexInformer, SharedInformerFactory
from bayplan.controllers.volcano.controller import VolcanoController
from bayplan.controllers.volcano.min_resources import format_amounts, multiply_amounts, pod_usage
from bayplan.controllers.volcano.resources import POD_GROUPS
from bayplan.errors import Forbidden, NotFound, ObjectError
from bayplan.objects.volcano.constants import (
    ALLOCATED_HYPER_NODE,
    COOLDOWN_TIME,
    GROUP_MIN_MEMBER,
    GROUP_NAME,
    JDB_MAX_UNAVAILABLE,
    JDB_MIN_AVAILABLE,
    PENDING,
    PREEMPTABLE,
    QUEUE_NAME_OF_PODS,
    REVOCABLE_ZONE,
    SCHEDULER,
    TOPOLOGY_HIGHEST_TIER,
    TOPOLOGY_MODE,
)
from bayplan.objects.volcano.types import DEFAULT_QUEUE, HARD, SOFT

_OWNERS: dict[str, GroupVersionResource] = {
    "ReplicaSet": REPLICA_SETS,
    "DaemonSet": DAEMON_SETS,
    "StatefulSet": STATEFUL_SETS,
    "Job": JOBS,
}
_INHERITED = "volcano.sh/"
_REVISION = "controller-revision-hash"


class PodGroupController(VolcanoController):
    """Creates pod groups for pods without one."""

    name = "volcano-podgroup-controller"
    inherits = True
    """Whether pod groups inherit annotations of the pods' owners."""

    def __init__(self, informers: SharedInformerFactory, schedulers: tuple[str, ...] = (SCHEDULER,)) -> None:
        super().__init__(informers)
        self._schedulers = schedulers
        self.pods = self.informer(PODS, PodFields)
        self.groups = self.informer(POD_GROUPS, UntypedObject)
        self._sets: dict[str, SharedIndexInformer[UntypedObject]] = {
            "ReplicaSet": self.informer(REPLICA_SETS, UntypedObject),
            "StatefulSet": self.informer(STATEFUL_SETS, UntypedObject),
        }
        self._owners: WorkQueue[tuple[str, str, str]] = WorkQueue(
            "owner of pods", self._sync_owner, clock=informers.clock, chance=informers.chance, workers=2
        )
        self.pods.add_handler(self._on_pod)
        self.groups.add_handler(self._on_group)
        for kind, informer in self._sets.items():
            informer.add_handler(lambda old, new, kind=kind: self._on_owner(kind, old, new))  # type: ignore[misc]

    async def run(self) -> None:
        await self.wait_synced()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.run())
            group.create_task(self._owners.run())

    def _on_pod(self, _: PodFields | None, new: PodFields | None) -> None:
        if new is not None and self._is_scheduled_by_us(new) and GROUP_NAME not in new.metadata.annotations:
            self.queue.add((new.namespace, new.name))

    def _on_owner(self, kind: str, _: UntypedObject | None, new: UntypedObject | None) -> None:
        if new is not None:
            self._owners.add((kind, new.namespace, new.name))

    def _on_group(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        """Event handler: recreate the deleted group of a set whose pods still name it."""
        owner = old.metadata.controller if old is not None and new is None else None
        if old is not None and owner is not None and owner.kind in self._sets:
            self._owners.add((owner.kind, old.namespace, owner.name))

    def _is_scheduled_by_us(self, pod: PodFields) -> bool:
        return pod.spec.scheduler_name in self._schedulers

    async def sync(self, key: Key) -> float | None:
        pod = self.pods.get(*key)
        if pod is None or not pod.active or GROUP_NAME in pod.metadata.annotations:
            return None
        name = group_name(pod)
        if self.groups.get(pod.namespace, name) is None:
            body = group_for(pod, await self._inherited_annotations(pod))
            await self.ensure(POD_GROUPS, pod.namespace, body)
        elif (owner := pod.metadata.controller) is not None and owner.kind == "StatefulSet":
            # The set's last change may have been delivered before this pod. If the pod is the first of a new template,
            # its group still has the old queue, and no later event would update it.
            self._owners.add((owner.kind, pod.namespace, owner.name))
        patch = {"metadata": {"uid": pod.uid, "annotations": {GROUP_NAME: name}}}
        with suppress(NotFound):
            await self.client.patch(PODS, patch, namespace=pod.namespace, name=pod.name, kind=STRATEGIC_PATCH)
        return None

    async def _inherited_annotations(self, pod: PodFields) -> dict[str, str]:
        """Annotations of the pod's owners; the first owner wins."""
        found: dict[str, str] = {}
        for owner in pod.metadata.owner_references if self.inherits else ():
            resource = _OWNERS.get(owner.kind)
            if resource is None or owner.api_version != resource.api_version:
                continue
            informer = self._sets.get(owner.kind)
            item = informer.get(pod.namespace, owner.name) if informer is not None else None
            if item is not None:
                annotations = item.metadata.annotations
            else:
                try:
                    tree = await self.client.get_raw(resource, pod.namespace, owner.name)
                except NotFound:
                    continue
                annotations = tree["metadata"].get("annotations") or {}
            found = {**annotations, **found}
        return found

    async def _sync_owner(self, key: tuple[str, str, str]) -> None:
        """Delete, update or recreate the group of a set that was changed, scaled or lost its group."""
        kind, namespace, name = key
        owner = self._sets[kind].get(namespace, name)
        if owner is None or owner.terminating:
            return
        group_of_set = f"podgroup-{owner.uid}"
        group = self.groups.get(namespace, group_of_set)
        if owner.spec.get("replicas", 1) == 0:
            if group is not None:
                await self.remove(POD_GROUPS, namespace, group.name)
            return
        pods = [pod for pod in self.pods.owned_by(owner.uid) if self._is_scheduled_by_us(pod) and pod.active]
        pods = [pod for pod in pods if pod.metadata.annotations.get(GROUP_NAME, group_of_set) == group_of_set]
        revision = owner.status.get("updateRevision")
        pods = [pod for pod in pods if pod.metadata.labels.get(_REVISION) == revision] or pods
        newest = max(pods, key=lambda pod: str(pod.metadata.creation_timestamp), default=None)
        if newest is None:
            return
        if group is not None:
            await self._update_group(group, newest)
        else:
            await self.ensure(POD_GROUPS, namespace, group_for(newest, await self._inherited_annotations(newest)))

    async def _update_group(self, group: UntypedObject, pod: PodFields) -> None:
        """Replace spec, labels and annotations with those of a new group; the status stays."""
        wanted = group_for(pod, await self._inherited_annotations(pod))
        spec, labels, annotations = wanted["spec"], wanted["metadata"]["labels"], wanted["metadata"]["annotations"]
        if "queue" not in spec:
            spec["queue"] = await self._queue_unless_named(group)
        if ALLOCATED_HYPER_NODE in group.metadata.annotations:  # written by the scheduler for the running pods
            annotations[ALLOCATED_HYPER_NODE] = group.metadata.annotations[ALLOCATED_HYPER_NODE]
        differing: dict[str, object] = {}
        if spec != group.spec:
            differing["/spec"] = spec
        if labels != group.metadata.labels:
            differing["/metadata/labels"] = labels
        if annotations != group.metadata.annotations:
            differing["/metadata/annotations"] = annotations
        if differing:
            await self.replace(POD_GROUPS, group, differing)

    async def _queue_unless_named(self, group: UntypedObject) -> str:
        """Queue of a group whose pods name none: the namespace may name one, which a webhook fills in."""
        queue = str(group.spec.get("queue") or DEFAULT_QUEUE)
        if queue == DEFAULT_QUEUE:
            return queue
        try:
            tree = await self.client.get_raw(NAMESPACES, "", group.namespace)
        except (NotFound, Forbidden):  # with the role of an older release: the queue stays
            return queue
        return (tree["metadata"].get("annotations") or {}).get(QUEUE_NAME_OF_PODS) or DEFAULT_QUEUE


def group_name(pod: PodFields) -> str:
    """Name of a pod's group: after its owner, or after the pod."""
    owner = pod.metadata.controller
    return f"podgroup-{owner.uid if owner is not None else pod.uid}"


def group_for(pod: PodFields, inherited: dict[str, str]) -> Tree:
    """Build the group of a pod. `inherited`: annotations of its owner."""
    min_member = _min_member(inherited)
    pod_annotations, labels = pod.metadata.annotations, pod.metadata.labels
    annotations = {key: value for key, value in inherited.items() if key.startswith(_INHERITED)}
    annotations |= {
        key: pod_annotations[key] for key in (PREEMPTABLE, COOLDOWN_TIME, REVOCABLE_ZONE) if key in pod_annotations
    }
    for key in (JDB_MIN_AVAILABLE, JDB_MAX_UNAVAILABLE):
        if key in pod_annotations:
            annotations[key] = pod_annotations[key]
            break
    spec: Tree = {"minMember": min_member}
    with suppress(ObjectError):  # the scheduler reports invalid amounts
        spec["minResources"] = format_amounts(multiply_amounts(pod_usage(pod), min_member))
    if pod.spec.priority_class_name:
        spec["priorityClassName"] = pod.spec.priority_class_name
    if pod_annotations.get(QUEUE_NAME_OF_PODS):
        spec["queue"] = pod_annotations[QUEUE_NAME_OF_PODS]
    topology = _topology(pod_annotations)
    if topology is not None:
        spec["networkTopology"] = topology
    metadata = {
        "name": group_name(pod),
        "ownerReferences": _owners(pod),
        "annotations": annotations,
        "labels": {key: labels[key] for key in (PREEMPTABLE, COOLDOWN_TIME) if key in labels},
    }
    return {"metadata": metadata, "spec": spec, "status": {"phase": PENDING}}


def _min_member(inherited: dict[str, str]) -> int:
    text = inherited.get(GROUP_MIN_MEMBER, "1")
    return int(text) if text.isascii() and text.isdigit() else 1


def _topology(annotations: dict[str, str]) -> Tree | None:
    mode, tier = annotations.get(TOPOLOGY_MODE), annotations.get(TOPOLOGY_HIGHEST_TIER)
    if mode is None and tier is None:
        return None
    found: Tree = {"mode": mode.lower() if mode is not None and mode.lower() in (HARD, SOFT) else HARD}
    if tier is not None and tier.isascii() and tier.isdigit():
        found["highestTierAllowed"] = int(tier)
    return found


def _owners(pod: PodFields) -> list[Tree]:
    references = pod.metadata.owner_references
    if pod.metadata.controller is None:
        reference = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
        return [{**reference, "controller": True, "blockOwnerDeletion": True}]
    return [
        {
            "apiVersion": each.api_version,
            "kind": each.kind,
            "name": each.name,
            "uid": each.uid,
            "controller": bool(each.controller),
            "blockOwnerDeletion": True,
        }
        for each in references
    ]
