"""Node lifecycle controller: watches leases, marks silent nodes as unknown, and keeps the taints of their conditions.

A lease renewal costs two dictionary writes. A node is synced when its grace period ends or when it changes. Pods are
evicted from one node per zone every ten seconds, more slowly when most of a large zone is down, and not at all when all
nodes are down: then the controller's own connection is the likely fault.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from bayplan.client import STRATEGIC_PATCH
from bayplan.controllers.core.api_types import NODE_LEASES, NODES, PODS, PodFields, UntypedObject
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.kubelet.node_pools import REGION_LABEL, ZONE_LABEL
from bayplan.controllers.kubelet.node_status import LEASE_NAMESPACE
from bayplan.controllers.nodes.node_health import (
    NO_EXECUTE,
    is_not_ready,
    readiness,
    unknown_conditions,
    wanted_taints,
    with_taints,
)
from bayplan.errors import NotFound
from bayplan.objects.core import Node
from bayplan.objects.meta import format_time

NODE_MONITOR_GRACE_S = 50.0
NODE_STARTUP_GRACE_S = 60.0
"""Grace period of a node that has not reported yet: its kubelet may be starting."""
EVICTIONS_EACH_S = 10.0
SLOW_EVICTIONS_EACH_S = 100.0
LARGE_CLUSTER_SIZE_THRESHOLD = 50
UNHEALTHY_ZONE_THRESHOLD = 0.55


class NodeLifecycleController(Controller):
    """Keeps conditions and taints of nodes according to their heartbeats."""

    name = "node-lifecycle-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.nodes = self.informer(NODES, Node)
        self.leases = self.informer(NODE_LEASES, UntypedObject)
        self.pods = self.informer(PODS, PodFields)
        self._pods_by_node = self.pods.index("node", lambda pod: pod.spec.node_name)
        self._heartbeats: dict[str, float] = {}
        self._added_at: dict[str, float] = {}
        self._next_eviction: dict[str, float] = {}
        self._sizes: Counter[str] = Counter()
        self._down: dict[str, str] = {}
        """Zones of the nodes that are not ready, by node name."""
        self._all_down = False
        """Whether all nodes are not ready."""
        self.nodes.add_handler(self._on_node)
        self.leases.add_handler(self._on_lease)

    @classmethod
    def component(cls) -> str:
        return "node-controller"

    # Event handlers.

    def _on_lease(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        if new is None or new.namespace != LEASE_NAMESPACE:
            return
        if old is None or old.spec.get("renewTime") != new.spec.get("renewTime"):
            self._heartbeats[new.name] = self.clock.monotonic_s()
            if new.name in self._down:
                self.queue.add(("", new.name))

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        item = new if new is not None else old
        assert item is not None
        name = item.name
        if old is not None:
            self._sizes[_zone(old)] -= 1
            self._down.pop(name, None)
        if new is None:
            for table in (self._heartbeats, self._added_at):
                table.pop(name, None)
            self.queue.forget(("", name))
            return
        self._sizes[_zone(new)] += 1
        if is_not_ready(new):
            self._down[name] = _zone(new)
        if old is None:
            self._added_at[name] = self.clock.monotonic_s()
            note = f"Node {name} event: Registered Node {name} in Controller"
            self.record_event(NODES, new, "RegisteredNode", note)
        if old is None or old.status.conditions != new.status.conditions:
            self._heartbeats[name] = self.clock.monotonic_s()
        if old is None or _taint_inputs(old) != _taint_inputs(new):
            self.queue.add(("", name))
            self._monitor_health()

    def _monitor_health(self) -> None:
        """Enqueue all nodes that are not ready when the last node fails or the first one recovers."""
        all_down = len(self._down) >= len(self.nodes) > 0
        if all_down != self._all_down:
            self._all_down = all_down
            for name in self._down:
                self.queue.add(("", name))

    # Sync.

    async def sync(self, key: Key) -> float | None:
        node = self.nodes.get(*key)
        if node is None:
            return None
        silent_s = self.clock.monotonic_s() - self._heartbeats.get(node.name, self._added_at.get(node.name, 0.0))
        grace_s = NODE_MONITOR_GRACE_S if readiness(node) else NODE_STARTUP_GRACE_S
        now = self.clock.now()
        if silent_s >= grace_s and (conditions := unknown_conditions(node, now)):
            await self._mark_unknown(node, conditions)
            return None  # the watch delivers the node again, for its taints
        wait_s = self._eviction_wait_s(node)
        taints = with_taints(node, wanted_taints(node, evicting=wait_s == 0.0, may_evict=not self._all_down), now)
        if taints is not None:
            await self.write(NODES, node, {"spec": {"taints": taints or None}})
            if any(each["effect"] == NO_EXECUTE for each in taints) and wait_s == 0.0:
                self._next_eviction[_zone(node)] = self.clock.monotonic_s() + self._eviction_interval_s(_zone(node))
        if is_not_ready(node):
            await self._mark_pods(node)
        return min(grace_s - silent_s if silent_s < grace_s else grace_s, wait_s or grace_s)

    async def _mark_unknown(self, node: Node, conditions: list[dict[str, object]]) -> None:
        meta = {"resourceVersion": node.metadata.resource_version}
        with suppress(NotFound):
            await self.client.patch(
                NODES,
                {"metadata": meta, "status": {"conditions": conditions}},
                name=node.name,
                subresource="status",
                kind=STRATEGIC_PATCH,
            )
            self.record_event(NODES, node, "NodeNotReady", f"Node {node.name} status is now: NodeNotReady")

    async def _mark_pods(self, node: Node) -> None:
        """Set the Ready condition of the pods on a node that is not ready to False."""
        moment = format_time(self.clock.now())
        for pod in self._pods_by_node.get(node.name):
            if not pod.ready or pod.finished:
                continue
            condition = {"type": "Ready", "status": "False", "reason": "NodeNotReady", "lastTransitionTime": moment}
            patch = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
            with suppress(NotFound):
                await self.client.patch(PODS, patch, namespace=pod.namespace, name=pod.name, subresource="status")
            self.record_event(PODS, pod, "NodeNotReady", "Node is not ready", warning=True)

    # Eviction rate.

    def _eviction_wait_s(self, node: Node) -> float:
        """Seconds until pods may be evicted from this node; 0 for now, or for a node that is ready."""
        if not is_not_ready(node):
            return 0.0
        interval_s = self._eviction_interval_s(_zone(node))
        if interval_s == float("inf"):
            return NODE_MONITOR_GRACE_S
        return max(0.0, self._next_eviction.get(_zone(node), 0.0) - self.clock.monotonic_s())

    def _eviction_interval_s(self, zone: str) -> float:
        if self._all_down:
            return float("inf")
        size = self._sizes[zone]
        silent = sum(1 for each in self._down.values() if each == zone)
        if silent > 2 and size and silent / size >= UNHEALTHY_ZONE_THRESHOLD:
            return SLOW_EVICTIONS_EACH_S if size > LARGE_CLUSTER_SIZE_THRESHOLD else float("inf")
        return EVICTIONS_EACH_S


def _zone(node: Node) -> str:
    return f"{node.labels.get(REGION_LABEL, '')}:{node.labels.get(ZONE_LABEL, '')}"


def _taint_inputs(node: Node) -> tuple[object, ...]:
    conditions = tuple((each.type, each.status) for each in node.status.conditions)
    return conditions, node.spec.taints, node.spec.unschedulable
