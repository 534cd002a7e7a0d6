"""What do all controllers know of the cluster? One watch a kind, shared; who owns what, indexed; events told.

Made once by `Controllers`. A `SharedIndexInformer` keeps what exists of a kind and tells everybody who listens; finding
the objects of one owner or one namespace costs a look-up, however many there are. Memory: the objects, and three
references each."""

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
"""Namespace and name."""

Listener = Callable[[T | None, T | None], None]
"""listener(old, new): no old is an add, no new is a delete."""

RESTART_S = 1.0
_InformerKey = tuple[str, str, Selection]
"""Group, plural, and which of them."""


class InformerIndex(Generic[T]):
    """The objects of a feed by something that they say, such as the node of pods."""

    def __init__(self, of: Callable[[T], str]) -> None:
        self._of = of
        self._found: dict[str, dict[Key, T]] = defaultdict(dict)

    def get(self, value: str) -> list[T]:
        return list(self._found.get(value, {}).values())

    def change(self, old: T | None, new: T | None) -> None:
        """A listener."""
        if old is not None:
            _drop(self._found, self._of(old), (old.namespace, old.name))
        if new is not None and (value := self._of(new)):
            self._found[value][(new.namespace, new.name)] = new


class SharedIndexInformer(Generic[T]):
    """What exists of one kind, and who wants to hear of it."""

    def __init__(self, client: Client, resource: GroupVersionResource, struct: type[T], selection: Selection) -> None:
        self.resource = resource
        self._struct = struct
        self._listeners: list[Listener[T]] = []
        self._indexes: dict[str, InformerIndex[T]] = {}
        self._owned: dict[str, dict[Key, T]] = defaultdict(dict)
        self._in_namespace: dict[str, dict[Key, T]] = defaultdict(dict)
        self._orphans: dict[str, dict[Key, T]] = defaultdict(dict)
        self._informer: Informer = client.informer(resource, self._on_change, selection=selection)

    def add_handler(self, listener: Listener[T]) -> None:
        """Tell of every change from now on, those of the first list included."""
        self._listeners.append(listener)

    def index(self, name: str, of: Callable[[T], str]) -> InformerIndex[T]:
        """An index by what this says of each object, one of each name; asked for before the feed runs."""
        made = self._indexes.get(name)
        if made is None:
            made = self._indexes[name] = InformerIndex(of)
            self._listeners.insert(0, made.change)  # who listens may look things up
        return made

    def get(self, namespace: str, name: str) -> T | None:
        found = self._informer.store.get((namespace, name))
        return found if isinstance(found, self._struct) else None

    def all(self) -> list[T]:
        return [each for each in self._informer.store.values() if isinstance(each, self._struct)]

    def by_namespace(self, namespace: str) -> list[T]:
        """Everything in one namespace."""
        return list(self._in_namespace.get(namespace, {}).values())

    def owned_by(self, uid: str) -> list[T]:
        """What is controlled by the object of this uid."""
        return list(self._owned.get(uid, {}).values())

    def count_owned_by(self, uid: str) -> int:
        """How many that are: the list would cost as much as there are."""
        return len(self._owned.get(uid, ()))

    def orphans(self, namespace: str) -> list[T]:
        """What nobody controls in one namespace."""
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
        for listener in self._listeners:
            try:
                listener(before, after)
            except Exception:
                log.exception("%s: somebody who listens failed; the change is lost on them", self.resource)

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


def _drop(index: dict[str, dict[Key, T]], where: str, key: Key) -> None:
    found = index.get(where)
    if found is not None:
        found.pop(key, None)
        if not found:
            del index[where]


class SharedInformerFactory:
    """The feeds of one process, and its voice."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.clock = client.clock
        self.chance = client.chance
        self._feeds: dict[_InformerKey, SharedIndexInformer[KubeObject]] = {}
        self._tasks: dict[_InformerKey, asyncio.Task[None]] = {}
        self._missing: set[tuple[str, str]] = set()
        self._running = False
        self._sink = EventSink(client, resource=CORE_EVENTS)

    def informer(
        self, resource: GroupVersionResource, struct: type[T], *, selection: Selection = EVERYTHING
    ) -> SharedIndexInformer[T]:
        """The feed of a kind; made when it is first asked for, and then started at once if the others are."""
        name = (resource.group, resource.plural, selection)
        found = self._feeds.get(name)
        if found is None:
            made: SharedIndexInformer[T] = SharedIndexInformer(self.client, resource, struct, selection)
            self._feeds[name] = made  # type: ignore[assignment]
            if self._running:
                self._start(name)
            return made
        assert issubclass(found._struct, struct), f"{resource} is read as something else already"
        return found  # type: ignore[return-value]

    def get_informer(self, group: str, plural: str) -> SharedIndexInformer[KubeObject] | None:
        """The feed of everything of a kind, if there is one."""
        return self._feeds.get((group, plural, EVERYTHING))

    def stop_informer(self, resource: GroupVersionResource) -> None:
        """Stop watching a kind that exists no more."""
        name = (resource.group, resource.plural, EVERYTHING)
        self._feeds.pop(name, None)
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()

    def is_missing(self, resource: GroupVersionResource) -> bool:
        """Whether the server has no such kind."""
        return (resource.group, resource.plural) in self._missing

    def event_recorder(self, component: str) -> EventRecorder:
        """Who speaks of what a controller did."""
        return EventRecorder(
            component, host=platform.node(), clock=self.clock, chance=self.chance, post=self._sink.post
        )

    async def discover(self) -> None:
        """Wait for the server, and learn which kinds it has, in the versions that are read and written here."""
        feeds = {feed.resource.kind: feed for feed in self._feeds.values() if feed.resource.kind is not None}
        offered = await self.client.wait_for_server(list(feeds))
        for kind, feed in feeds.items():
            found = offered.get(kind)
            if found is None or found.version != feed.resource.version:
                self._missing.add((kind.group, kind.plural))
                log.info("the API server has no %s; what needs them is switched off", kind.plural)

    async def run(self) -> None:
        """Watch and speak until cancelled."""
        self._running = True
        for name in list(self._feeds):
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
        feed = self._feeds[name]
        work = run_supervised(f"watch of {feed.resource}", feed.run, self.clock.sleep)
        self._tasks[name] = asyncio.create_task(work, name=f"watch {feed.resource}")


async def run_supervised(
    name: str, work: Callable[[], Awaitable[None]], sleep: Callable[[float], Awaitable[None]]
) -> None:
    """Do it until cancelled; what it dies of is logged, and it begins anew: nobody else is to suffer for it."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("%s failed; beginning anew", name)
        await sleep(RESTART_S)


def object_reference(resource: GroupVersionResource, item: KubeObject) -> ObjectReference:
    """An object as an event refers to it."""
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
    """The merge patch that makes one of the other; empty where there is nothing to change."""
    patch: dict[str, Any] = {key: None for key in old if key not in new and old[key] is not None}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            if inner := merge_patch(before, value):
                patch[key] = inner
        elif before != value:
            patch[key] = value
    return patch
