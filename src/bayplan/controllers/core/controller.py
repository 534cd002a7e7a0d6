"""What is a controller? Feeds that it listens to, a queue of keys, and a `sync` that makes one key right.

Every controller of this room is one of these. `sync` reads what the feeds say, decides, writes what differs and
returns when it wants to look again. It is called for one key at a time, and again with growing delays when it fails, so
a write that is refused costs a delay and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar

import msgspec

from bayplan.client import MERGE_PATCH, GroupVersionResource
from bayplan.client.informer.informer import EVERYTHING, Selection
from bayplan.client.work_queue import WorkQueue
from bayplan.controllers.core.api_types import Tree, UntypedObject
from bayplan.controllers.core.shared_informers import (
    Key,
    SharedIndexInformer,
    SharedInformerFactory,
    merge_patch,
    object_reference,
)
from bayplan.errors import BayplanError, Conflict, NotFound
from bayplan.objects.meta import KubeObject
from bayplan.telemetry.events import NORMAL, WARNING

T = TypeVar("T", bound=KubeObject)

FIRST_RETRY_S = 0.05
"""A write that was refused because somebody was quicker is right a moment later: the watch is on its way."""


class Controller:
    """One controller. Subclasses name themselves and say what `sync` does."""

    name: ClassVar[str]
    """As kube-controller-manager has it."""
    workers: ClassVar[int] = 5

    def __init__(self, world: SharedInformerFactory) -> None:
        self.informers = world
        self.client = world.client
        self.clock = world.clock
        self._feeds: list[SharedIndexInformer[KubeObject]] = []
        self._answers: dict[str, UntypedObject] = {}
        """By uid: what the server answered to our last write, until the watch has told of it."""
        self._recorder = world.event_recorder(self.component())
        self.queue: WorkQueue[Key] = WorkQueue(
            self.name,
            self.sync,
            clock=world.clock,
            chance=world.chance,
            workers=self.workers,
            first_retry_s=FIRST_RETRY_S,
        )

    @classmethod
    def component(cls) -> str:
        """In whose name its events are told."""
        return cls.name

    async def sync(self, key: Key) -> float | None:
        """Make the object of this key right; after how many seconds to look again, if at all."""
        raise NotImplementedError

    async def run(self) -> None:
        """Work until cancelled, once everything that exists has been heard of."""
        await self.synced()
        await self.queue.run()

    async def synced(self) -> None:
        for feed in self._feeds:
            if not self.informers.is_missing(feed.resource):
                await feed.wait_synced()

    # What subclasses use.

    def informer(
        self, resource: GroupVersionResource, struct: type[T], *, selection: Selection = EVERYTHING
    ) -> SharedIndexInformer[T]:
        found = self.informers.informer(resource, struct, selection=selection)
        self._feeds.append(found)  # type: ignore[arg-type]
        return found

    def enqueue(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """A listener: whatever happened to the object, look at it."""
        item = new if new is not None else old
        assert item is not None
        self.queue.add((item.namespace, item.name))

    def record_event(
        self, resource: GroupVersionResource, item: KubeObject, reason: str, note: str, *, warning: bool = False
    ) -> None:
        """Tell an event about an object."""
        kind = WARNING if warning else NORMAL
        self._recorder.record(object_reference(resource, item), type=kind, reason=reason, action="", note=note)

    def get_latest(self, feed: SharedIndexInformer[UntypedObject], key: Key) -> UntypedObject | None:
        """An object as the watch told of it, or as our own write left it if that is newer.

        Watches of two kinds are not in step: who counts pods by what an owner says must not read an owner that is older
        than the pods, or acts twice on the same old state."""
        told = feed.get(*key)
        if told is None:
            return None
        answered = self._answers.get(told.uid)
        if answered is None:
            return told
        if _version(answered) <= _version(told):
            del self._answers[told.uid]
            return told
        return answered

    def remember_write(self, answer: bytes) -> UntypedObject:
        """An object as a write of ours has left it; kept for `get_latest`."""
        found = msgspec.json.decode(answer, type=UntypedObject)
        self._answers[found.uid] = found
        return found

    def forget(self, uid: str) -> None:
        """An object is gone."""
        self._answers.pop(uid, None)

    async def write_status(self, resource: GroupVersionResource, item: UntypedObject, status: Tree) -> bool:
        """Make the status so, if it is not; whether that took a write. Refused when the object has changed since."""
        wanted = merge_patch(item.status, status)
        if not wanted:
            return False
        await self.write(resource, item, {"status": wanted}, subresource="status")
        return True

    async def write(
        self, resource: GroupVersionResource, item: KubeObject, patch: Tree, *, subresource: str = ""
    ) -> bytes:
        """Merge into the object as it was seen; refused when it has changed since, or is gone."""
        meta = {**patch.get("metadata", {}), "resourceVersion": item.metadata.resource_version}
        with not_found_as_conflict():
            return await self.client.patch(
                resource,
                {**patch, "metadata": meta},
                namespace=item.namespace,
                name=item.name,
                subresource=subresource,
                kind=MERGE_PATCH,
            )

    async def delete(self, resource: GroupVersionResource, item: KubeObject, *, propagation: str = "") -> bool:
        """Delete this very object; false when it is gone already."""
        meta = item.metadata
        try:
            await self.client.delete(
                resource, namespace=meta.namespace, name=meta.name, uid=meta.uid, propagation=propagation
            )
        except NotFound:
            return False
        return True


@contextmanager
def not_found_as_conflict() -> Iterator[None]:
    """An object that is gone has changed since it was seen, and no more than that: the watch is on its way to say so.

    Nobody is to read of a failure whenever something is deleted while its status is being written."""
    try:
        yield
    except NotFound as gone:
        raise Conflict(str(gone), code=gone.code, reason=gone.reason, details=gone.details) from gone


async def slow_start_batch(
    count: int, work: Callable[[int], Awaitable[None]], *, first: int = 1
) -> tuple[int, list[BaseException]]:
    """Do it so many times: one at a time, then two, four, eight, and no further after a failure.

    A quota that is full, or a template that is refused, costs one request and not five hundred. Returns how many were
    tried, and what went wrong."""
    tried, at_once = 0, first
    while tried < count:
        batch = range(tried, min(tried + at_once, count))
        answers = await asyncio.gather(*(work(index) for index in batch), return_exceptions=True)
        tried += len(answers)
        faults = [each for each in answers if isinstance(each, BaseException)]
        if faults:
            return tried, faults
        at_once *= 2
    return tried, []


def _version(item: UntypedObject) -> int:
    text = item.metadata.resource_version
    return int(text) if text.isascii() and text.isdigit() else 0


def raise_first_error(faults: list[BaseException]) -> None:
    """Raise what went wrong, a bug before a refusal."""
    for fault in sorted(faults, key=lambda each: isinstance(each, BayplanError)):
        raise fault
