"""Base class of all controllers: shared informers, a work queue of keys, and `sync`, which reconciles one key.

`sync` reads the informers' stores, decides, writes the differences and returns the seconds until the next sync. The
queue calls it for one key at a time, and again with growing delays when it fails, so a refused write costs a delay.
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
"""Most refused writes are conflicts; the watch delivers the newer version a moment later."""


class Controller:
    """Base class of controllers. Subclasses set `name` and implement `sync`."""

    name: ClassVar[str]
    """Name in kube-controller-manager."""
    workers: ClassVar[int] = 5

    def __init__(self, informers: SharedInformerFactory) -> None:
        self.informers = informers
        self.client = informers.client
        self.clock = informers.clock
        self._used_informers: list[SharedIndexInformer[KubeObject]] = []
        self._own_writes: dict[str, UntypedObject] = {}
        """By uid: object as returned for the controller's last write, until the watch delivers it."""
        self._recorder = informers.event_recorder(self.component())
        self.queue: WorkQueue[Key] = WorkQueue(
            self.name,
            self.sync,
            clock=informers.clock,
            chance=informers.chance,
            workers=self.workers,
            first_retry_s=FIRST_RETRY_S,
        )

    @classmethod
    def component(cls) -> str:
        """Component of the controller's events."""
        return cls.name

    async def sync(self, key: Key) -> float | None:
        """Reconcile the object of this key. Returns the seconds until the next sync, or None."""
        raise NotImplementedError

    async def run(self) -> None:
        """Process keys until cancelled, after all first lists are complete."""
        await self.wait_synced()
        await self.queue.run()

    async def wait_synced(self) -> None:
        for informer in self._used_informers:
            if not self.informers.is_missing(informer.resource):
                await informer.wait_synced()

    # For subclasses.

    def informer(
        self, resource: GroupVersionResource, struct: type[T], *, selection: Selection = EVERYTHING
    ) -> SharedIndexInformer[T]:
        found = self.informers.informer(resource, struct, selection=selection)
        self._used_informers.append(found)  # type: ignore[arg-type]
        return found

    def enqueue(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """Event handler: enqueue the object."""
        item = new if new is not None else old
        assert item is not None
        self.queue.add((item.namespace, item.name))

    def record_event(
        self, resource: GroupVersionResource, item: KubeObject, reason: str, note: str, *, warning: bool = False
    ) -> None:
        kind = WARNING if warning else NORMAL
        self._recorder.record(object_reference(resource, item), type=kind, reason=reason, action="", note=note)

    def get_latest(self, informer: SharedIndexInformer[UntypedObject], key: Key) -> UntypedObject | None:
        """Newest known version of an object: the watch's, or the result of the controller's own last write.

        Watches of two kinds are not in step. A controller that reads an owner older than its pods would act twice on
        the same state."""
        observed = informer.get(*key)
        if observed is None:
            return None
        own_write = self._own_writes.get(observed.uid)
        if own_write is None:
            return observed
        if _version(own_write) <= _version(observed):
            del self._own_writes[observed.uid]
            return observed
        return own_write

    def remember_write(self, answer: bytes) -> UntypedObject:
        """Decode the result of the controller's own write and keep it for `get_latest`."""
        found = msgspec.json.decode(answer, type=UntypedObject)
        self._own_writes[found.uid] = found
        return found

    def forget(self, uid: str) -> None:
        """Drop the remembered write of a deleted object."""
        self._own_writes.pop(uid, None)

    async def write_status(self, resource: GroupVersionResource, item: UntypedObject, status: Tree) -> bool:
        """Patch the status if it differs. Returns whether a write was needed. Raises `Conflict` for an old version."""
        wanted = merge_patch(item.status, status)
        if not wanted:
            return False
        await self.write(resource, item, {"status": wanted}, subresource="status")
        return True

    async def write(
        self, resource: GroupVersionResource, item: KubeObject, patch: Tree, *, subresource: str = ""
    ) -> bytes:
        """Merge-patch the object in the version that was read. Raises `Conflict` if it has changed or is deleted."""
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
        """Delete the object with this uid. Returns False if it is deleted already."""
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
    """Raise `Conflict` for a deleted object: it has changed since it was read, and the watch will deliver that.

    No failure is logged when an object is deleted while its status is written."""
    try:
        yield
    except NotFound as error:
        raise Conflict(str(error), code=error.code, reason=error.reason, details=error.details) from error


async def slow_start_batch(
    count: int, work: Callable[[int], Awaitable[None]], *, first: int = 1
) -> tuple[int, list[BaseException]]:
    """Call `work` for each index in batches of one, two, four, eight and so on; stop after a batch with a failure.

    A full quota or a refused template costs one request instead of five hundred. Returns the number of calls and the
    failures."""
    calls, batch_size = 0, first
    while calls < count:
        batch = range(calls, min(calls + batch_size, count))
        answers = await asyncio.gather(*(work(index) for index in batch), return_exceptions=True)
        calls += len(answers)
        faults = [each for each in answers if isinstance(each, BaseException)]
        if faults:
            return calls, faults
        batch_size *= 2
    return calls, []


def _version(item: UntypedObject) -> int:
    text = item.metadata.resource_version
    return int(text) if text.isascii() and text.isdigit() else 0


def raise_first_error(faults: list[BaseException]) -> None:
    """Raise the first failure; bugs come before refusals."""
    for fault in sorted(faults, key=lambda each: isinstance(each, BayplanError)):
        raise fault
