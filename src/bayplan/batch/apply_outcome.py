"""Applies the result of a session to the cluster state directly, without an API server.

Used by test harnesses, recordings and what-if: bound pods run, evicted pods are deleted, groups and queues get their
statuses. Cost of a change: that of the cache and the cluster state.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from bayplan.batch.engine import BatchEngine
from bayplan.batch.session.outcome import SessionResult
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import PodGroup, Queue


class OutcomeApplier:
    """The objects of one engine, changed by session results."""

    def __init__(self, engine: BatchEngine) -> None:
        self.engine = engine
        self.pods: dict[str, Pod] = {}
        """By key, in the last known version."""

    def note_object(self, item: KubeObject) -> None:
        """Register an object that the cache already contains."""
        if isinstance(item, Pod):
            self.pods[item.key] = item
            self.engine.handle_update(item)

    def add(self, objects: Iterable[KubeObject]) -> None:
        """Add new or changed objects, as an API server would report them."""
        for item in objects:
            self.engine.cache.upsert(item)
            self.note_object(item)

    def remove(self, objects: Iterable[KubeObject]) -> None:
        cache = self.engine.cache
        for item in objects:
            if isinstance(item, Node):
                cache.remove_node(item.name)
            elif not isinstance(item, Pod):
                cache.delete(item)
            else:
                if cache.pod(item.uid) is not None:
                    cache.remove_pod(item)
                self.engine.handle_delete(item)
                self.pods.pop(item.key, None)

    def apply(self, outcome: SessionResult) -> None:
        for key, node in outcome.binds.items():
            pod = self.pods[key].bound_to(node)
            self.add([replace(pod, status=replace(pod.status, phase="Running", nominated_node_name=""))])
        self.remove([self.pods[key] for key in outcome.evicts])
        for key, message in outcome.messages.items():
            pod = self.pods[key]
            if message.nominated_node != pod.status.nominated_node_name:
                self.add([replace(pod, status=replace(pod.status, nominated_node_name=message.nominated_node))])
        self._apply_groups(outcome)

    def _apply_groups(self, outcome: SessionResult) -> None:
        catalog = self.engine.cache.catalog
        for key, group in outcome.groups.items():
            self.add([replace(catalog.table(PodGroup)[key], status=group.status)])
        for name, allocated in outcome.queues.items():
            queue = catalog.table(Queue)[name]
            amounts = {resource: str(amount) for resource, amount in allocated.items()}
            self.add([replace(queue, status=replace(queue.status, allocated=amounts))])
