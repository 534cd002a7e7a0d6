"""State of a cluster for display: nodes with their requests, pending pods, decisions a second.

Two watches keep it up to date, so it works with any cluster and scheduler. A decision is a pod that got a node, or one
that the scheduler reported as unschedulable. `bayplan top` and the demo read it at any rate.
Cost: one watch of nodes, one of pods, and a few additions a change.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from bayplan.client import Client, InformerSet, resource_of
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from bayplan.objects.resources import accounted_requests, allocatable_amounts
from bayplan.telemetry.page_rows import unschedulable_message

ZONE = "topology.kubernetes.io/zone"
WINDOW_S = 5.0
ENDED_PHASES = ("Succeeded", "Failed")


@dataclass(slots=True)
class NodeRequests:
    """One node with its allocatable and requested resources."""

    name: str
    zone: str = ""
    ready: bool = False
    unschedulable: bool = False
    has_object: bool = False
    """Whether the Node object was seen, and not only a pod that is bound to it."""
    allocatable: dict[str, int] = field(default_factory=dict)
    requested: dict[str, int] = field(default_factory=dict)
    pods: int = 0

    def share(self, resource: str) -> float:
        """The requested share of a resource; 0 if the node has none."""
        offered = self.allocatable.get(resource, 0)
        return self.requested.get(resource, 0) / offered if offered else 0.0

    def add(self, pod: Pod, sign: int) -> None:
        self.pods += sign
        for resource, amount in accounted_requests(pod).items():
            self.requested[resource] = self.requested.get(resource, 0) + sign * amount


@dataclass(frozen=True, slots=True)
class PendingCounts:
    """Pods without a node, by state."""

    active: int = 0
    """Not yet reported as unschedulable: they wait for an attempt."""
    unschedulable: int = 0
    gated: int = 0


class ClusterMonitor:
    """Monitors one cluster. `run` it in a task and read it at any time."""

    def __init__(self, client: Client, *, changed: Callable[[], None] = lambda: None) -> None:
        self._clock = client.clock
        self._changed = changed
        self.nodes: dict[str, NodeRequests] = {}
        self.pods: dict[tuple[str, str], Pod] = {}
        self.placed: deque[Pod] = deque(maxlen=50)
        """The pods that got a node most recently, the newest last."""
        self.placements = 0
        self.refusals = 0
        self._decided: deque[float] = deque()
        self._synced = False
        nodes, pods = resource_of(kind_of(Node)), resource_of(kind_of(Pod))
        self._informers = InformerSet([client.informer(nodes, self._on_node), client.informer(pods, self._on_pod)])

    async def run(self) -> None:
        """Monitor until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informers.run())
            group.create_task(self._note_synced())

    async def ready(self) -> None:
        await self._informers.wait_synced()

    def decisions_per_second(self) -> float:
        """The rate over the last few seconds."""
        since = self._clock.monotonic_s() - WINDOW_S
        while self._decided and self._decided[0] < since:
            self._decided.popleft()
        return len(self._decided) / WINDOW_S

    def pending_counts(self) -> PendingCounts:
        counts = {"": 0, "Unschedulable": 0, "SchedulingGated": 0}
        for pod in self.pods.values():
            if not pod.spec.node_name and pod.status.phase not in ENDED_PHASES and not pod.terminating:
                reason = unschedulable_message(pod)[0]
                counts[reason if reason in counts else ""] += 1
        return PendingCounts(counts[""], counts["Unschedulable"], counts["SchedulingGated"])

    def pods_with_prefix(self, prefix: str) -> list[Pod]:
        """Pods whose names start with `prefix`, by name."""
        return [pod for (_, name), pod in sorted(self.pods.items()) if name.startswith(prefix)]

    async def _note_synced(self) -> None:
        await self._informers.wait_synced()
        self._synced = True

    def _on_node(self, old: KubeObject | None, new: KubeObject | None) -> None:
        if new is None:
            assert old is not None
            use = self._use(old.name)
            use.has_object = use.ready = False
        elif isinstance(new, Node):
            use = self._use(new.name)
            use.has_object = True
            use.zone = new.metadata.labels.get(ZONE, "")
            use.unschedulable = new.spec.unschedulable
            use.ready = any(each.type == "Ready" and each.status == "True" for each in new.status.conditions)
            use.allocatable = allocatable_amounts(new.status.allocatable)
        self._changed()

    def _on_pod(self, old: KubeObject | None, new: KubeObject | None) -> None:
        before, after = (each if isinstance(each, Pod) else None for each in (old, new))
        if before is not None and _occupies_node(before):
            self._use(before.spec.node_name).add(before, -1)
        if after is not None and _occupies_node(after):
            self._use(after.spec.node_name).add(after, +1)
        if after is None:
            assert before is not None
            self.pods.pop((before.namespace, before.name), None)
        else:
            self.pods[after.namespace, after.name] = after
            if self._synced:
                self._note_decision(before, after)
        self._changed()

    def _note_decision(self, before: Pod | None, after: Pod) -> None:
        if after.spec.node_name and not (before is not None and before.spec.node_name):
            self.placements += 1
            self.placed.append(after)
        elif unschedulable_message(after)[0] == "Unschedulable" and (
            before is None or unschedulable_message(before) != unschedulable_message(after)
        ):
            self.refusals += 1
        else:
            return
        self._decided.append(self._clock.monotonic_s())

    def _use(self, name: str) -> NodeRequests:
        return self.nodes.setdefault(name, NodeRequests(name))


def _occupies_node(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and pod.status.phase not in ENDED_PHASES
