"""Taint eviction and pod garbage collection: delete pods whose node does not allow them any more.

The first deletes pods that do not tolerate the node's NoExecute taints, or whose toleration time is over. The second
deletes pods whose node is deleted. A pod change costs one node lookup, a node change a walk over its pods.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from bayplan.controllers.core.api_types import NODES, PODS, PodFields
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.nodes.node_health import NO_EXECUTE
from bayplan.errors import NotFound
from bayplan.objects.core import Node, Taint
from bayplan.objects.meta import format_time
from bayplan.objects.taints import tolerates

NODE_QUARANTINE_S = 40.0
MAX_TERMINATED_PODS = 12_500
_BY_TAINT = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
_NO_NODE = ("DeletionByPodGC", "PodGC: node no longer exists")
_UNSCHEDULED = ("DeletionByPodGC", "PodGC: unscheduled pod is being deleted")


class TaintEvictionController(Controller):
    """Deletes pods that do not tolerate their node's NoExecute taints."""

    name = "taint-eviction-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.nodes = self.informer(NODES, Node)
        self.pods = self.informer(PODS, PodFields)
        self._pods_by_node = self.pods.index("node", lambda pod: pod.spec.node_name)
        self._tainted_since: dict[str, float] = {}
        """By pod uid: time since when the pod is on a tainted node."""
        self.nodes.add_handler(self._on_node)
        self.pods.add_handler(self._on_pod)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        before, after = (_no_execute_taints(each) if each is not None else () for each in (old, new))
        if new is not None and before != after:
            for pod in self._pods_by_node.get(new.name):
                self.enqueue(None, pod)

    def _on_pod(self, old: PodFields | None, new: PodFields | None) -> None:
        if new is None:
            assert old is not None
            self._tainted_since.pop(old.uid, None)
            self.queue.forget((old.namespace, old.name))
            return
        if (
            old is not None
            and old.spec.node_name == new.spec.node_name
            and old.spec.tolerations == new.spec.tolerations
        ):
            return
        node = self.nodes.get("", new.spec.node_name) if new.spec.node_name else None
        if node is not None and _no_execute_taints(node):
            self.enqueue(None, new)

    async def sync(self, key: Key) -> float | None:
        pod = self.pods.get(*key)
        node = self.nodes.get("", pod.spec.node_name) if pod is not None and pod.spec.node_name else None
        if pod is None or pod.terminating or pod.finished:
            return None
        taints = _no_execute_taints(node) if node is not None else ()
        if not taints:
            if self._tainted_since.pop(pod.uid, None) is not None:
                note = f"Cancelling deletion of Pod {pod.namespace}/{pod.name}"
                self.record_event(PODS, pod, "TaintManagerEviction", note)
            return None
        stay_s = toleration_s(pod, taints)
        if stay_s == float("inf"):
            return None
        since = self._tainted_since.setdefault(pod.uid, self.clock.monotonic_s())
        left_s = since + stay_s - self.clock.monotonic_s()
        if left_s > 0:
            return left_s
        self.record_event(PODS, pod, "TaintManagerEviction", f"Marking for deletion Pod {pod.namespace}/{pod.name}")
        await _evict(self, pod, *_BY_TAINT)
        return None


def _no_execute_taints(node: Node) -> tuple[Taint, ...]:
    return tuple(each for each in node.spec.taints if each.effect == NO_EXECUTE)


def toleration_s(pod: PodFields, taints: tuple[Taint, ...]) -> float:
    """Seconds that a pod may stay on a node with these taints: 0, infinite, or its shortest tolerationSeconds."""
    stay_s = float("inf")
    for taint in taints:
        covering = [each for each in pod.spec.tolerations if tolerates(each, taint)]
        if not covering:
            return 0.0
        limits = [each.toleration_seconds for each in covering if each.toleration_seconds is not None]
        if limits:
            stay_s = min(stay_s, max(0, min(limits)))
    return stay_s


class PodGarbageCollector(Controller):
    """Deletes pods on deleted nodes, deleted pods without a node, and the oldest finished pods above the limit."""

    name = "pod-garbage-collector-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.nodes = self.informer(NODES, Node)
        self.pods = self.informer(PODS, PodFields)
        self._pods_by_node = self.pods.index("node", lambda pod: pod.spec.node_name)
        self._finished: dict[str, PodFields] = {}
        self._gone_since: dict[str, float] = {}
        self.nodes.add_handler(self._on_node)
        self.pods.add_handler(self._on_pod)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._gone_since.pop(new.name, None)
        elif old is not None:
            for pod in self._pods_by_node.get(old.name):
                self.enqueue(None, pod)

    def _on_pod(self, old: PodFields | None, new: PodFields | None) -> None:
        if old is not None:
            self._finished.pop(old.uid, None)
        if new is None:
            return
        if new.finished:
            self._finished[new.uid] = new
        node_missing = bool(new.spec.node_name) and self.nodes.get("", new.spec.node_name) is None
        if node_missing or (new.terminating and not new.spec.node_name) or len(self._finished) > MAX_TERMINATED_PODS:
            self.enqueue(None, new)

    async def sync(self, key: Key) -> float | None:
        if len(self._finished) > MAX_TERMINATED_PODS:
            oldest = sorted(self._finished.values(), key=lambda pod: str(pod.metadata.creation_timestamp))
            for pod in oldest[: len(oldest) - MAX_TERMINATED_PODS]:
                await self._remove(pod)
        found = self.pods.get(*key)
        if found is None:
            return None
        if not found.spec.node_name:
            if found.terminating:
                await _add_disruption_target(self, found, *_UNSCHEDULED)
                await self._remove(found)
            return None
        return await self._collect_without_node(found)

    async def _collect_without_node(self, pod: PodFields) -> float | None:
        name = pod.spec.node_name
        if self.nodes.get("", name) is not None:
            return None
        since = self._gone_since.setdefault(name, self.clock.monotonic_s())
        left_s = since + NODE_QUARANTINE_S - self.clock.monotonic_s()
        if left_s > 0:
            return left_s
        try:
            await self.client.get_raw(NODES, "", name)
        except NotFound:
            await _add_disruption_target(self, pod, *_NO_NODE)
            await self._remove(pod)
        return None

    async def _remove(self, pod: PodFields) -> None:
        with suppress(NotFound):
            await self.client.delete(PODS, namespace=pod.namespace, name=pod.name, uid=pod.uid, grace_s=0)


async def _evict(controller: Controller, pod: PodFields, reason: str, message: str) -> None:
    await _add_disruption_target(controller, pod, reason, message)
    await controller.delete(PODS, pod)


async def _add_disruption_target(controller: Controller, pod: PodFields, reason: str, message: str) -> None:
    """Set the DisruptionTarget condition of a pod that has not finished."""
    existing = pod.condition("DisruptionTarget")
    if pod.finished or (existing is not None and existing.status == "True"):
        return
    now: datetime = controller.clock.now()
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    condition["lastTransitionTime"] = format_time(now)
    patch = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
    with suppress(NotFound):
        await controller.client.patch(PODS, patch, namespace=pod.namespace, name=pod.name, subresource="status")
