"""What must go because its owner went? Dependents, in the background, before their owner, or not at all.

Watches every kind that can be watched, metadata alone, and keeps who owns whom by uid. Before anything is deleted the
server is asked whether the owner is really gone, so that a watch that lags costs a request and never an object. A
change costs a few dictionary writes; memory is a few references an object besides the metadata.
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
    """One object, wherever it is now."""

    group: str
    plural: str
    namespace: str
    name: str


class GarbageCollector(Controller):
    """Deletes what nobody owns any more."""

    name = "garbage-collector-controller"

    def __init__(self, world: SharedInformerFactory) -> None:
        super().__init__(world)
        self._resources = PreferredResources()
        self._living: dict[str, GarbageKey] = {}
        self._dependents: dict[str, set[GarbageKey]] = defaultdict(set)
        self._listening: set[tuple[str, str]] = set()
        self._work: WorkQueue[GarbageKey] = WorkQueue(
            self.name, self._process, clock=world.clock, chance=world.chance, workers=20, first_retry_s=0.05
        )
        self.definitions = self.informer(DEFINITIONS, UntypedObject)
        self.definitions.add_handler(self._on_definition)

    async def run(self) -> None:
        await self.synced()
        await self._refresh_resources()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.run())
            group.create_task(self._work.run())

    # Kinds.

    def _on_definition(self, _: UntypedObject | None, __: UntypedObject | None) -> None:
        self.queue.add(("", "kinds"), after_s=1.0)  # its kind is served a moment after it is accepted

    async def sync(self, key: Key) -> float | None:  # noqa: ARG002
        """A definition has changed: look which kinds there are."""
        await self._refresh_resources()
        return 30.0 if self._resources.failed else None

    async def _refresh_resources(self) -> None:
        self._resources = await server_preferred_resources(self.client)
        wanted = {(each.group, each.plural): each for each in self._resources.watchable()}
        for name, resource in wanted.items():
            if name not in self._listening:
                self._listening.add(name)
                self._listen(self.informers.get_informer(*name) or self.informers.informer(resource, KubeObject))
        for name in [each for each in self._listening if each not in wanted and not self._resources.failed]:
            self._listening.discard(name)
            self.informers.stop_informer(GroupVersionResource(name[0], "", name[1]))

    def _listen(self, feed: SharedIndexInformer[KubeObject]) -> None:
        place = (feed.resource.group, feed.resource.plural)

        def changed(old: KubeObject | None, new: KubeObject | None) -> None:
            item = new if new is not None else old
            assert item is not None
            where = GarbageKey(*place, item.namespace, item.name)
            if new is None:
                self._forget(where, item)
            else:
                self._note(where, old, new)

        for item in feed.all():
            changed(None, item)
        feed.add_handler(changed)

    # What is heard.

    def _note(self, where: GarbageKey, old: KubeObject | None, new: KubeObject) -> None:
        meta = new.metadata
        self._living[meta.uid] = where
        before = old.metadata.owner_references if old is not None else ()
        if old is not None and before != meta.owner_references:
            for owner in before:
                self._unlink(owner.uid, where)
        for owner in meta.owner_references:
            self._dependents[owner.uid].add(where)
        going = meta.deletion_timestamp is not None and (ORPHAN in meta.finalizers or FOREGROUND in meta.finalizers)
        if going or (meta.owner_references and before != meta.owner_references):
            self._work.add(where)

    def _forget(self, where: GarbageKey, last: KubeObject) -> None:
        meta = last.metadata
        if self._living.get(meta.uid) == where:
            del self._living[meta.uid]
        for dependent in self._dependents.pop(meta.uid, ()):
            self._work.add(dependent)
        for owner in meta.owner_references:
            self._unlink(owner.uid, where)
            if (parent := self._living.get(owner.uid)) is not None:
                seen = self._seen(parent)
                if seen is not None and seen.metadata.deletion_timestamp is not None:
                    self._work.add(parent)  # it may have waited for this one

    def _unlink(self, owner: str, where: GarbageKey) -> None:
        siblings = self._dependents.get(owner)
        if siblings is not None:
            siblings.discard(where)
            if not siblings:
                del self._dependents[owner]

    def _seen(self, where: GarbageKey) -> KubeObject | None:
        feed = self.informers.get_informer(where.group, where.plural)
        return feed.get(where.namespace, where.name) if feed is not None else None

    def _resource(self, where: GarbageKey) -> GroupVersionResource | None:
        feed = self.informers.get_informer(where.group, where.plural)
        return feed.resource if feed is not None else None

    # What is done.

    async def _process(self, where: GarbageKey) -> float | None:
        item, resource = self._seen(where), self._resource(where)
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
        """Dependents stay: none refers to the owner any more when it goes."""
        uid = item.metadata.uid
        work = [self._without_owners(dependent, {uid}) for dependent in list(self._dependents.get(uid, ()))]
        await asyncio.gather(*work)
        await self._drop_finalizer(resource, item, ORPHAN)

    async def _wait_for_dependents(self, resource: GroupVersionResource, item: KubeObject) -> None:
        """The owner goes after those of its dependents that say so."""
        blocking = [
            where for where in self._dependents.get(item.metadata.uid, ()) if self._blocks_owner_deletion(where, item)
        ]
        if not blocking:
            await self._drop_finalizer(resource, item, FOREGROUND)
        for where in list(self._dependents.get(item.metadata.uid, ())):
            self._work.add(where)

    def _blocks_owner_deletion(self, where: GarbageKey, owner: KubeObject) -> bool:
        seen = self._seen(where)
        references = seen.metadata.owner_references if seen is not None else ()
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
        where = GarbageKey(resource.group, resource.plural, item.namespace, item.name)
        if solid:
            if gone or waiting:
                await self._without_owners(where, gone | waiting)
            return
        policy = "Foreground" if waiting and self._dependents.get(item.metadata.uid) else self._policy(item)
        await self._delete(resource, item, policy)

    @staticmethod
    def _policy(item: KubeObject) -> str:
        if ORPHAN in item.metadata.finalizers:
            return "Orphan"
        return "Foreground" if FOREGROUND in item.metadata.finalizers else "Background"

    async def _state(self, item: KubeObject, owner: OwnerReference) -> str:
        """`solid`, `waiting` for its dependents to go first, or `gone`."""
        where = self._living.get(owner.uid)
        seen = self._seen(where) if where is not None else None
        if seen is not None and seen.metadata.uid == owner.uid:
            going = seen.metadata.deletion_timestamp is not None and FOREGROUND in seen.metadata.finalizers
            return "waiting" if going else "solid"
        resource = self._resources.find(owner.api_version, owner.kind)
        if resource is None:
            await self._refresh_resources()
            resource = self._resources.find(owner.api_version, owner.kind)
            if resource is None:
                # A kind that we do not know may be one whose server is away: whoever it is, it is not to blame.
                log.warning("%s of %s is of a kind that the server does not know; keeping it", owner.name, item.key)
                return "solid"
        namespace = item.namespace if resource.namespaced else ""
        try:
            meta = (await self.client.get_raw(resource, namespace, owner.name))["metadata"]
        except NotFound:
            return "gone"
        if meta["uid"] != owner.uid:
            return "gone"
        going = "deletionTimestamp" in meta and FOREGROUND in (meta.get("finalizers") or ())
        return "waiting" if going else "solid"

    # Writing.

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

    async def _without_owners(self, where: GarbageKey, uids: set[str]) -> None:
        item, resource = self._seen(where), self._resource(where)
        if item is None or resource is None:
            return
        answer = await self._fresh(resource, item)
        if answer is None:
            return
        owners = [each for each in answer["metadata"].get("ownerReferences") or () if each["uid"] not in uids]
        await self._patch(resource, item, answer, {"ownerReferences": owners or None})

    async def _drop_finalizer(self, resource: GroupVersionResource, item: KubeObject, finalizer: str) -> None:
        answer = await self._fresh(resource, item)
        if answer is None:
            return
        kept = [each for each in answer["metadata"].get("finalizers") or () if each != finalizer]
        await self._patch(resource, item, answer, {"finalizers": kept or None})

    async def _fresh(self, resource: GroupVersionResource, item: KubeObject) -> Tree | None:
        """The object as the server has it, if it still is this one."""
        try:
            found = await self.client.get_raw(resource, item.namespace, item.name)
        except NotFound:
            return None
        return found if found["metadata"]["uid"] == item.metadata.uid else None

    async def _patch(self, resource: GroupVersionResource, item: KubeObject, fresh: Tree, meta: Tree) -> None:
        told = {**meta, "resourceVersion": fresh["metadata"]["resourceVersion"]}
        with suppress(NotFound):
            await self.client.patch(
                resource, {"metadata": told}, namespace=item.namespace, name=item.name, kind=MERGE_PATCH
            )
