"""Recorder of a live cluster: collects every decision, and every change that later decisions may depend on.

Used by `bayplan record --follow`. It watches every kind and writes nothing. A pod that gets a node is a decision; every
other relevant addition, update or deletion is a change. Updates that no decision reads, such as node heartbeats and
phases of running pods, are ignored. Cost: one watch per kind; everything stays in memory until the end, as one line of
the recording per decision or change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from msgspec.structs import replace

from bayplan.client import Client
from bayplan.client.informer.informer import Informer
from bayplan.client.informer.informer_set import InformerSet
from bayplan.objects.core import Node, Pod, PodStatus
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import PodGroup, PodGroupStatus, Queue, QueueStatus
from bayplan.sim.recordings.cluster_reader import read_cluster
from bayplan.sim.recordings.observed_decisions import DecisionLog, is_scheduler_managed
from bayplan.sim.recordings.recording_file import RecordedChange, RecordedDecision

_ENDED_PHASES = ("Succeeded", "Failed")


class ClusterRecorder:
    """The initial objects of a cluster, and what happened since."""

    def __init__(self, client: Client, *, is_batch: Callable[[Pod], bool], serves: Callable[[Pod], bool]) -> None:
        self._client = client
        self._serves = serves
        self._log = DecisionLog(is_batch)
        self._informers: list[Informer] = []
        self.notes: list[str] = []
        """Warnings about objects that could not be read; filled when `run` has started."""
        self.objects: tuple[KubeObject, ...] = ()
        self.started_at: datetime | None = None

    async def run(self, for_s: float | None, on_started: Callable[[], None]) -> None:
        """Follow for `for_s` seconds, or until cancelled. `on_started` is called when recording starts."""
        contents = await read_cluster(self._client)
        self.notes = contents.notes
        self._informers = [self._client.informer(resource, self.handle_event) for resource in contents.resources]
        informers = InformerSet(self._informers)
        async with asyncio.TaskGroup() as group:
            watch_task = group.create_task(informers.run())
            await informers.wait_synced()
            self.start(self._current_objects())
            on_started()
            if for_s is not None:
                await self._client.clock.sleep(for_s)
                watch_task.cancel()

    def _current_objects(self) -> Iterator[KubeObject]:
        for informer in self._informers:
            yield from informer.store.values()

    def start(self, objects: Iterable[KubeObject]) -> None:
        """Start recording; `objects` are the initial objects."""
        self.objects = tuple(objects)
        for item in self.objects:
            if isinstance(item, BindRequest):
                self._log.add_bind_request(item)
        self.started_at = self._client.clock.now()

    def handle_event(self, old: KubeObject | None, new: KubeObject | None) -> None:
        item = new or old
        if self.started_at is None or item is None:
            return
        if isinstance(item, BindRequest):  # it is neither a decision nor a change
            if new is not None:
                self._log.add_bind_request(item)
            return
        at = self._client.clock.now()
        if new is None:
            self._log.add_change(item, at, deleted=True)
        elif self._is_decision(old, new):
            assert isinstance(new, Pod)
            self._log.add_decision(new, at)
        elif old is None or without_irrelevant_fields(old) != without_irrelevant_fields(new):
            self._log.add_change(new, at)

    def _is_decision(self, old: KubeObject | None, new: KubeObject) -> bool:
        """Whether a waiting pod got a node. A pod that was created with a node is a change."""
        return (
            isinstance(new, Pod)
            and isinstance(old, Pod)
            and bool(new.spec.node_name)
            and not old.spec.node_name
            and old.uid == new.uid
            and self._serves(new)
            and is_scheduler_managed(new)
        )

    def result(self) -> tuple[list[RecordedDecision], list[RecordedChange]]:
        """Decisions and changes so far."""
        pods = (item for item in self._current_objects() if isinstance(item, Pod))
        return self._log.result([pod for pod in pods if self._serves(pod) and is_scheduler_managed(pod)])


def without_irrelevant_fields(item: KubeObject) -> KubeObject:
    """The object without fields that no decision reads."""
    item = replace(item, metadata=replace(item.metadata, resource_version="", generation=0))
    if isinstance(item, Pod):
        status = item.status
        relevant = PodStatus(
            phase=status.phase if status.phase in _ENDED_PHASES else "",
            resource_claim_statuses=status.resource_claim_statuses,
            extended_resource_claim_status=status.extended_resource_claim_status,
            allocated_resources=status.allocated_resources,
            resources=status.resources,
        )
        return replace(item, status=relevant)
    if isinstance(item, Node):
        return replace(item, status=replace(item.status, conditions=()))
    if isinstance(item, PodGroup):
        return replace(item, status=PodGroupStatus())
    if isinstance(item, Queue):
        return replace(item, status=QueueStatus(state=item.status.state, reservation=item.status.reservation))
    return item
