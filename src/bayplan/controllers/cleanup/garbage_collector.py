"""Garbage collector: deletes dependents of deleted owners, in the background or before their owner, or orphans them.

It watches the metadata of every watchable kind and keeps a graph of owners and dependents by uid. Before it deletes an
object it asks the server whether the owner is gone, so a lagging watch costs a request and never an object. A change
costs a few dictionary writes. Memory: a few references per object besides its metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import suppress
from typing import NamedTuple

from bayplan.client import MERGE_PATCH, GroupVersionResource
from bayplan.client.discovery.preferred_resources import PreferredResources, server_preferred_resources
from bayplan.client.work_queue import WorkQueue
from bayplan.controllers.core.api_types import Tree, UntypedObject
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.shared_informers import Key, SharedIndexInformer, SharedInformerFactory
from bayplan.errors import NotFound
from bayplan.objects.kinds import Kind
from bayplan.objects.meta import KubeObject, OwnerReference

log = logging.getLogger(__name__)

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
DEFINITIONS = GroupVersionResource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    namespaced=False,
    kind=Kind("CustomResourceDefinition", "customresourcedefinitions", "apiextensions.k8s.io", UntypedObject),
)


class GarbageKey(NamedTuple):
    """Reference to an object in any resource."""

    group: str
    plural: str
    namespace: str
    name: str


class GarbageCollector(Controller):
    """Deletes objects whose owners are all gone."""

    name = "garbage-collector-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self._resources = PreferredResources()
        self._by_uid: dict[str, GarbageKey] = {}
        self._dependents: dict[str, set[GarbageKey]] = defaultdict(set)
        self._watched: set[tuple[str, str]] = set()
        self._work: WorkQueue[GarbageKey] = WorkQueue(
            self.name, self._process, clock=informers.clock, chance=informers.chance, workers=20, first_retry_s=0.05
        )
        self.definitions = self.informer(DEFINITIONS, UntypedObject)
        self.definitions.add_handler(self._on_definition)

    async def run(self) -> None:
        await self.wait_synced()
        await self._refresh_resources()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.run())
            group.create_task(self._work.run())

    # Resources.

    def _on_definition(self, _: UntypedObject | None, __: UntypedObject | None) -> None:
        self.queue.add(("", "kinds"), after_s=1.0)  # the API server serves a kind shortly after it accepts the CRD

    async def sync(self, key: Key) -> float | None:  # noqa: ARG002
        """Discover the resources again after a CRD change."""
        await self._refresh_resources()
        return 30.0 if self._resources.failed else None

    async def _refresh_resources(self) -> None:
        self._resources = await server_preferred_resources(self.client)
        wanted = {(each.group, each.plural): each for each in self._resources.watchable()}
        for name, resource in wanted.items():
            if name not in self._watched:
                self._watched.add(name)
                self._watch(self.informers.get_informer(*name) or self.informers.informer(resource, KubeObject))
        for name in [each for each in self._watched if each not in wanted and not self._resources.failed]:
            self._watched.discard(name)
            self.informers.stop_informer(GroupVersionResource(name[0], "", name[1]))

    def _watch(self, informer: SharedIndexInformer[KubeObject]) -> None:
        group_resource = (informer.resource.group, informer.resource.plural)

        def on_change(old: KubeObject | None, new: KubeObject | None) -> None:
            item = new if new is not None else old
            assert item is not None
            key = GarbageKey(*group_resource, item.namespace, item.name)
            if new is None:
                self._remove_from_graph(key, item)
            else:
                self._add_to_graph(key, old, new)

        for item in informer.all():
            on_change(None, item)
        informer.add_handler(on_change)

    # Event handlers.

    def _add_to_graph(self, key: GarbageKey, old: KubeObject | None, new: KubeObject) -> None:
        meta = new.metadata
        self._by_uid[meta.uid] = key
        before = old.metadata.owner_references if old is not None else ()
        if old is not None and before != meta.owner_references:
            for owner in before:
                self._unlink(owner.uid, key)
        for owner in meta.owner_references:
            self._dependents[owner.uid].add(key)
        deleting = meta.deletion_timestamp is not None and (ORPHAN in meta.finalizers or FOREGROUND in meta.finalizers)
        if deleting or (meta.owner_references and before != meta.owner_references):
            self._work.add(key)

    def _remove_from_graph(self, key: GarbageKey, last: KubeObject) -> None:
        meta = last.metadata
        if self._by_uid.get(meta.uid) == key:
            del self._by_uid[meta.uid]
        for dependent in self._dependents.pop(meta.uid, ()):
            self._work.add(dependent)
        for owner in meta.owner_references:
            self._unlink(owner.uid, key)
            if (parent := self._by_uid.get(owner.uid)) is not None:
                cached = self._find_cached(parent)
                if cached is not None and cached.metadata.deletion_timestamp is not None:
                    self._work.add(parent)  # a foreground deletion may have waited for this dependent

    def _unlink(self, owner: str, key: GarbageKey) -> None:
        siblings = self._dependents.get(owner)
        if siblings is not None:
            siblings.discard(key)
            if not siblings:
                del self._dependents[owner]

    def _find_cached(self, key: GarbageKey) -> KubeObject | None:
        informer = self.informers.get_informer(key.group, key.plural)
        return informer.get(key.namespace, key.name) if informer is not None else None

    def _resource(self, key: GarbageKey) -> GroupVersionResource | None:
        informer = self.informers.get_informer(key.group, key.plural)
        return informer.resource if informer is not None else None

    # Processing.

    async def _process(self, key: GarbageKey) -> float | None:
        item, resource = self._find_cached(key), self._resource(key)
        if item is None or resource is None:
            return None
        meta = item.metadata
        if meta.deletion_timestamp is not None:
            if ORPHAN in meta.finalizers:
                await self._orphan(resource, item)
            elif FOREGROUND in meta.finalizers:
                await self._wait_for_dependents(resource, item)
            return None
        if meta.owner_references:
            await self._check_owners(resource, item)
        return None

    async def _orphan(self, resource: GroupVersionResource, item: KubeObject) -> None:
        """Remove the owner from all its dependents, then its finalizer."""
        uid = item.metadata.uid
        work = [self._remove_owners(dependent, {uid}) for dependent in list(self._dependents.get(uid, ()))]
        await asyncio.gather(*work)
        await self._drop_finalizer(resource, item, ORPHAN)

    async def _wait_for_dependents(self, resource: GroupVersionResource, item: KubeObject) -> None:
        """Remove the owner's finalizer after all dependents with blockOwnerDeletion are gone."""
        blocking = [
            key for key in self._dependents.get(item.metadata.uid, ()) if self._blocks_owner_deletion(key, item)
        ]
        if not blocking:
            await self._drop_finalizer(resource, item, FOREGROUND)
        for key in list(self._dependents.get(item.metadata.uid, ())):
            self._work.add(key)

    def _blocks_owner_deletion(self, key: GarbageKey, owner: KubeObject) -> bool:
        cached = self._find_cached(key)
        references = cached.metadata.owner_references if cached is not None else ()
        return any(each.uid == owner.metadata.uid and each.block_owner_deletion for each in references)

    async def _check_owners(self, resource: GroupVersionResource, item: KubeObject) -> None:
        solid: list[OwnerReference] = []
        waiting: set[str] = set()
        gone: set[str] = set()
        for owner in item.metadata.owner_references:
            state = await self._state(item, owner)
            if state == "solid":
                solid.append(owner)
            else:
                (waiting if state == "waiting" else gone).add(owner.uid)
        key = GarbageKey(resource.group, resource.plural, item.namespace, item.name)
        if solid:
            if gone or waiting:
                await self._remove_owners(key, gone | waiting)
            return
        policy = "Foreground" if waiting and self._dependents.get(item.metadata.uid) else self._policy(item)
        await self._delete(resource, item, policy)

    @staticmethod
    def _policy(item: KubeObject) -> str:
        if ORPHAN in item.metadata.finalizers:
            return "Orphan"
        return "Foreground" if FOREGROUND in item.metadata.finalizers else "Background"

    async def _state(self, item: KubeObject, owner: OwnerReference) -> str:
        """State of an owner: `solid`, `waiting` (it waits for its dependents) or `gone`."""
        key = self._by_uid.get(owner.uid)
        cached = self._find_cached(key) if key is not None else None
        if cached is not None and cached.metadata.uid == owner.uid:
            deleting = cached.metadata.deletion_timestamp is not None and FOREGROUND in cached.metadata.finalizers
            return "waiting" if deleting else "solid"
        resource = self._resources.find(owner.api_version, owner.kind)
        if resource is None:
            await self._refresh_resources()
            resource = self._resources.find(owner.api_version, owner.kind)
            if resource is None:
                # The API server of an aggregated group may be unavailable, so an unknown kind counts as existing.
                log.warning("owner %s of %s has a kind that is not served; keeping it", owner.name, item.key)
                return "solid"
        namespace = item.namespace if resource.namespaced else ""
        try:
            meta = (await self.client.get_raw(resource, namespace, owner.name))["metadata"]
        except NotFound:
            return "gone"
        if meta["uid"] != owner.uid:
            return "gone"
        deleting = "deletionTimestamp" in meta and FOREGROUND in (meta.get("finalizers") or ())
        return "waiting" if deleting else "solid"

    # Writes.

    async def _delete(self, resource: GroupVersionResource, item: KubeObject, policy: str) -> None:
        with suppress(NotFound):
            await self.client.delete(
                resource,
                namespace=item.namespace,
                name=item.name,
                uid=item.metadata.uid,
                resource_version=item.metadata.resource_version,
                propagation=policy,
            )

    async def _remove_owners(self, key: GarbageKey, uids: set[str]) -> None:
        item, resource = self._find_cached(key), self._resource(key)
        if item is None or resource is None:
            return
        answer = await self._read(resource, item)
        if answer is None:
            return
        owners = [each for each in answer["metadata"].get("ownerReferences") or () if each["uid"] not in uids]
        await self._patch(resource, item, answer, {"ownerReferences": owners or None})

    async def _drop_finalizer(self, resource: GroupVersionResource, item: KubeObject, finalizer: str) -> None:
        answer = await self._read(resource, item)
        if answer is None:
            return
        finalizers = [each for each in answer["metadata"].get("finalizers") or () if each != finalizer]
        await self._patch(resource, item, answer, {"finalizers": finalizers or None})

    async def _read(self, resource: GroupVersionResource, item: KubeObject) -> Tree | None:
        """Read the object from the server; None unless it has the same uid."""
        try:
            found = await self.client.get_raw(resource, item.namespace, item.name)
        except NotFound:
            return None
        return found if found["metadata"]["uid"] == item.metadata.uid else None

    async def _patch(self, resource: GroupVersionResource, item: KubeObject, fresh: Tree, meta: Tree) -> None:
        metadata = {**meta, "resourceVersion": fresh["metadata"]["resourceVersion"]}
        with suppress(NotFound):
            await self.client.patch(
                resource, {"metadata": metadata}, namespace=item.namespace, name=item.name, kind=MERGE_PATCH
            )
