"""Shared informers of all controllers: one watch per kind, with indexes by owner and namespace, and an event recorder.

`ControllerManager` makes one factory. A `SharedIndexInformer` keeps the objects of a kind and calls its handlers.
Finding the objects of an owner or a namespace costs one lookup. Memory: the objects, and three references to each."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from bayplan.client import CORE_EVENTS, Client, EventSink, GroupVersionResource, Informer, Selection
from bayplan.client.informer.informer import EVERYTHING
from bayplan.objects.kinds import Kind
from bayplan.objects.meta import KubeObject
from bayplan.telemetry.events import EventRecorder, ObjectReference

log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubeObject)
Key = tuple[str, str]
"""Namespace and name of an object."""

Handler = Callable[[T | None, T | None], None]
"""handler(old, new): `old` is None for an add, `new` is None for a delete."""

RESTART_S = 1.0
_InformerKey = tuple[str, str, Selection]
"""Group, plural and selection of an informer."""


class InformerIndex(Generic[T]):
    """Objects of an informer by a key that a function computes, such as a pod's node."""

    def __init__(self, index_func: Callable[[T], str]) -> None:
        self._index_func = index_func
        self._objects: dict[str, dict[Key, T]] = defaultdict(dict)

    def get(self, value: str) -> list[T]:
        return list(self._objects.get(value, {}).values())

    def change(self, old: T | None, new: T | None) -> None:
        """Event handler: update the index."""
        if old is not None:
            _drop(self._objects, self._index_func(old), (old.namespace, old.name))
        if new is not None and (value := self._index_func(new)):
            self._objects[value][(new.namespace, new.name)] = new


class SharedIndexInformer(Generic[T]):
    """Objects of one kind, their indexes and the event handlers."""

    def __init__(self, client: Client, resource: GroupVersionResource, struct: type[T], selection: Selection) -> None:
        self.resource = resource
        self._struct = struct
        self._handlers: list[Handler[T]] = []
        self._indexes: dict[str, InformerIndex[T]] = {}
        self._owned: dict[str, dict[Key, T]] = defaultdict(dict)
        self._in_namespace: dict[str, dict[Key, T]] = defaultdict(dict)
        self._orphans: dict[str, dict[Key, T]] = defaultdict(dict)
        self._informer: Informer = client.informer(resource, self._on_change, selection=selection)

    def add_handler(self, handler: Handler[T]) -> None:
        """Add a handler for every change from now on, including the first list."""
        self._handlers.append(handler)

    def index(self, name: str, index_func: Callable[[T], str]) -> InformerIndex[T]:
        """Return the index of this name, and make it if needed. Call it before the informer runs."""
        index = self._indexes.get(name)
        if index is None:
            index = self._indexes[name] = InformerIndex(index_func)
            self._handlers.insert(0, index.change)  # before the handlers that use the index
        return index

    def get(self, namespace: str, name: str) -> T | None:
        found = self._informer.store.get((namespace, name))
        return found if isinstance(found, self._struct) else None

    def all(self) -> list[T]:
        return [each for each in self._informer.store.values() if isinstance(each, self._struct)]

    def by_namespace(self, namespace: str) -> list[T]:
        return list(self._in_namespace.get(namespace, {}).values())

    def owned_by(self, uid: str) -> list[T]:
        """Objects whose controller has this uid."""
        return list(self._owned.get(uid, {}).values())

    def count_owned_by(self, uid: str) -> int:
        """Number of objects whose controller has this uid, without a list of them."""
        return len(self._owned.get(uid, ()))

    def orphans(self, namespace: str) -> list[T]:
        """Objects in a namespace without a controller."""
        return list(self._orphans.get(namespace, {}).values())

    def __len__(self) -> int:
        return len(self._informer.store)

    @property
    def synced(self) -> bool:
        return self._informer.synced

    async def wait_synced(self) -> None:
        await self._informer.wait_synced()

    async def run(self) -> None:
        await self._informer.run()

    def _on_change(self, old: KubeObject | None, new: KubeObject | None) -> None:
        before = old if isinstance(old, self._struct) else None
        after = new if isinstance(new, self._struct) else None
        if before is not None:
            self._unindex_object(before)
        if after is not None:
            self._index_object(after)
        for handler in self._handlers:
            try:
                handler(before, after)
            except Exception:
                log.exception("%s: an event handler failed; it misses this change", self.resource)

    def _index_object(self, item: T) -> None:
        meta = item.metadata
        key, owner = (meta.namespace, meta.name), meta.controller
        self._in_namespace[meta.namespace][key] = item
        if owner is not None:
            self._owned[owner.uid][key] = item
        else:
            self._orphans[meta.namespace][key] = item

    def _unindex_object(self, item: T) -> None:
        meta = item.metadata
        key, owner = (meta.namespace, meta.name), meta.controller
        _drop(self._in_namespace, meta.namespace, key)
        if owner is not None:
            _drop(self._owned, owner.uid, key)
        else:
            _drop(self._orphans, meta.namespace, key)


def _drop(index: dict[str, dict[Key, T]], group: str, key: Key) -> None:
    found = index.get(group)
    if found is not None:
        found.pop(key, None)
        if not found:
            del index[group]


class SharedInformerFactory:
    """Shared informers and event sink of one process."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.clock = client.clock
        self.chance = client.chance
        self._informers: dict[_InformerKey, SharedIndexInformer[KubeObject]] = {}
        self._tasks: dict[_InformerKey, asyncio.Task[None]] = {}
        self._missing: set[tuple[str, str]] = set()
        self._running = False
        self._sink = EventSink(client, resource=CORE_EVENTS)

    def informer(
        self, resource: GroupVersionResource, struct: type[T], *, selection: Selection = EVERYTHING
    ) -> SharedIndexInformer[T]:
        """Return the informer of a kind, and make it if needed. It starts at once if the factory runs."""
        name = (resource.group, resource.plural, selection)
        found = self._informers.get(name)
        if found is None:
            informer: SharedIndexInformer[T] = SharedIndexInformer(self.client, resource, struct, selection)
            self._informers[name] = informer  # type: ignore[assignment]
            if self._running:
                self._start(name)
            return informer
        assert issubclass(found._struct, struct), f"{resource} already has an informer with another type"
        return found  # type: ignore[return-value]

    def get_informer(self, group: str, plural: str) -> SharedIndexInformer[KubeObject] | None:
        """Return the informer of all objects of a kind, or None."""
        return self._informers.get((group, plural, EVERYTHING))

    def stop_informer(self, resource: GroupVersionResource) -> None:
        """Stop the informer of a deleted kind."""
        name = (resource.group, resource.plural, EVERYTHING)
        self._informers.pop(name, None)
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()

    def is_missing(self, resource: GroupVersionResource) -> bool:
        """Whether the API server does not serve the kind."""
        return (resource.group, resource.plural) in self._missing

    def event_recorder(self, component: str) -> EventRecorder:
        return EventRecorder(
            component, host=platform.node(), clock=self.clock, chance=self.chance, post=self._sink.post
        )

    async def discover(self) -> None:
        """Wait for the API server, and find the kinds that it does not serve in the required version."""
        informers = {
            informer.resource.kind: informer
            for informer in self._informers.values()
            if informer.resource.kind is not None
        }
        served = await self.client.wait_for_server(list(informers))
        for kind, informer in informers.items():
            found = served.get(kind)
            if found is None or found.version != informer.resource.version:
                self._missing.add((kind.group, kind.plural))
                log.info("the API server does not serve %s; controllers that need it are disabled", kind.plural)

    async def run(self) -> None:
        """Run the informers and the event sink until cancelled."""
        self._running = True
        for name in list(self._informers):
            if name[:2] not in self._missing:
                self._start(name)
        try:
            await run_supervised("events", self._sink.run, self.clock.sleep)
        finally:
            self._running = False
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _start(self, name: _InformerKey) -> None:
        informer = self._informers[name]
        work = run_supervised(f"watch of {informer.resource}", informer.run, self.clock.sleep)
        self._tasks[name] = asyncio.create_task(work, name=f"watch {informer.resource}")


async def run_supervised(
    name: str, work: Callable[[], Awaitable[None]], sleep: Callable[[float], Awaitable[None]]
) -> None:
    """Run `work` until cancelled. A failure is logged and `work` restarts, so that it does not stop other tasks."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("%s failed; restarting", name)
        await sleep(RESTART_S)


def object_reference(resource: GroupVersionResource, item: KubeObject) -> ObjectReference:
    """Reference to an object, for an event."""
    kind: Kind | None = resource.kind
    assert kind is not None
    meta = item.metadata
    return ObjectReference(
        kind=kind.name,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        api_version=resource.api_version,
        resource_version=meta.resource_version,
    )


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Merge patch from `old` to `new`; empty when they are equal."""
    patch: dict[str, Any] = {key: None for key in old if key not in new and old[key] is not None}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            if inner := merge_patch(before, value):
                patch[key] = inner
        elif before != value:
            patch[key] = value
    return patch
