"""What happens in a live cluster while somebody looks? Every decision, and every change that the next may depend on.

Asked by `bayplan record --follow`. One watch a kind; nothing is written. A pod that gets a node is a decision; objects
that come, go or are different otherwise are changes. What no decision looks at, such as heartbeats of nodes and phases
of pods that run, is passed over. All of it is kept in memory until the end: a line of the recording a decision or
change.
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
from bayplan.objects.volcano.types import (
    PodGroup,
    PodGroupStatus,
    Queue,
    QueueStatus,
)
from bayplan.sim.recordings.cluster_reader import read_cluster
from bayplan.sim.recordings.observed_decisions import DecisionLog, is_scheduler_managed
from bayplan.sim.recordings.recording_file import RecordedChange, RecordedDecision

_ENDED_PHASES = ("Succeeded", "Failed")


class ClusterRecorder:
    """A cluster as it was in the beginning, and what happened since."""

    def __init__(self, client: Client, *, is_batch: Callable[[Pod], bool], serves: Callable[[Pod], bool]) -> None:
        self._client = client
        self._serves = serves
        self._story = DecisionLog(is_batch)
        self._informers: list[Informer] = []
        self.notes: list[str] = []
        """What could not be read, a sentence each; known once it began."""
        self.objects: tuple[KubeObject, ...] = ()
        self.started_at: datetime | None = None

    async def run(self, for_s: float | None, told: Callable[[], None]) -> None:
        """Follow for so long, or until cancelled; `result` when it began."""
        seen = await read_cluster(self._client)
        self.notes = seen.notes
        self._informers = [self._client.informer(resource, self.handle_event) for resource in seen.resources]
        everything = InformerSet(self._informers)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(everything.run())
            await everything.wait_synced()
            self.start(self._current_objects())
            told()
            if for_s is not None:
                await self._client.clock.sleep(for_s)
                watching.cancel()

    def _current_objects(self) -> Iterator[KubeObject]:
        """What there is at this moment."""
        for informer in self._informers:
            yield from informer.store.values()

    def start(self, objects: Iterable[KubeObject]) -> None:
        """From here on everything is noted."""
        self.objects = tuple(objects)
        for item in self.objects:
            if isinstance(item, BindRequest):
                self._story.add_bind_request(item)
        self.started_at = self._client.clock.now()

    def handle_event(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """Something came, changed or went."""
        item = new or old
        if self.started_at is None or item is None:
            return
        if isinstance(item, BindRequest):  # no decision yet, and nothing that another one depends on
            if new is not None:
                self._story.add_bind_request(item)
            return
        at = self._client.clock.now()
        if new is None:
            self._story.add_change(item, at, gone=True)
        elif self._is_decision(old, new):
            assert isinstance(new, Pod)
            self._story.add_decision(new, at)
        elif old is None or without_irrelevant_fields(old) != without_irrelevant_fields(new):
            self._story.add_change(new, at)

    def _is_decision(self, old: KubeObject | None, new: KubeObject) -> bool:
        """Whether a pod that waited has a node now. One that came with its node was placed by whoever made it."""
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
        return self._story.result([pod for pod in pods if self._serves(pod) and is_scheduler_managed(pod)])


def without_irrelevant_fields(item: KubeObject) -> KubeObject:
    """The object without what no decision looks at."""
    item = replace(item, metadata=replace(item.metadata, resource_version="", generation=0))
    if isinstance(item, Pod):
        status = item.status
        kept = PodStatus(
            phase=status.phase if status.phase in _ENDED_PHASES else "",
            resource_claim_statuses=status.resource_claim_statuses,
            extended_resource_claim_status=status.extended_resource_claim_status,
            allocated_resources=status.allocated_resources,
            resources=status.resources,
        )
        return replace(item, status=kept)
    if isinstance(item, Node):
        return replace(item, status=replace(item.status, conditions=()))
    if isinstance(item, PodGroup):
        return replace(item, status=PodGroupStatus())
    if isinstance(item, Queue):
        return replace(item, status=QueueStatus(state=item.status.state, reservation=item.status.reservation))
    return item
