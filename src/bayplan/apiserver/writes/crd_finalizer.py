"""Deletes the objects of a kind whose CustomResourceDefinition is being deleted, and then the finalizer.

The API server does this itself, as kube-apiserver does; every other cleanup is a controller's. It runs in callbacks of
the event loop, so no request waits for it. Cost: a comparison for each committed change.
"""

from __future__ import annotations

import asyncio
import logging

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.requests import MASTERS_GROUP, RequestUser, WriteOptions, WriteRequest
from bayplan.apiserver.resources.kinds import ResourceRegistry, ServedResource, Tree
from bayplan.apiserver.storage.crd_registry import CRD_RESOURCE, crd_resources
from bayplan.apiserver.storage.store import CommittedObjects, GroupResource, Store
from bayplan.apiserver.storage.stored_objects import StoredObject
from bayplan.apiserver.storage.watch_cache import WatchCacheEvent
from bayplan.apiserver.writes.deletion import CRD_CLEANUP_FINALIZER, DeleteOptions
from bayplan.apiserver.writes.writer import ObjectWriter

LOG = logging.getLogger(__name__)

_USER = RequestUser("system:apiserver", (MASTERS_GROUP,))
_MANAGER = "kube-apiserver"


class CrdFinalizer:
    """Processes all definitions that are being deleted, after each change that may concern them."""

    def __init__(self, store: Store, writer: ObjectWriter, resources: ResourceRegistry) -> None:
        self._store = store
        self._writer = writer
        self._resources = resources
        self._emptied: set[GroupResource] = set()
        self._scheduled = False
        self._stopped = False
        store.add_commit_listener(self._on_change)
        store.on_recovery(self.wake)

    def stop(self) -> None:
        self._stopped = True

    def wake(self) -> None:
        """Schedule the processing: at the start, and after a failed commit, which rolls its writes back."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._process)

    def _on_change(self, objects: CommittedObjects, change: WatchCacheEvent) -> None:
        if (objects.name == CRD_RESOURCE and change.entry.deleting) or objects.name in self._emptied:
            self.wake()

    def _process(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        self._emptied.clear()
        for definition in list(self._store.uncommitted_objects(CRD_RESOURCE).entries()):
            tree = definition.tree()
            if not definition.deleting or CRD_CLEANUP_FINALIZER not in tree["metadata"].get("finalizers", ()):
                continue
            try:
                if self._delete_objects(tree):
                    self._remove_finalizer(definition)
            except StatusError as refusal:
                LOG.warning("%s: the objects of the deleted kind remain: %s", definition.name, refusal)

    def _delete_objects(self, definition: Tree) -> bool:
        """Delete the objects of the kind. Returns whether none is left."""
        for resource in crd_resources(definition):
            self._emptied.add(resource.storage)
            objects = self._store.uncommitted_objects(resource.storage)
            for each in list(objects.entries()):
                if not each.deleting:
                    options = DeleteOptions(policy="Background", uid=each.uid)
                    self._writer.delete(_write(resource, each.namespace), each.name, options)
            return next(objects.entries(), None) is None
        return True

    def _remove_finalizer(self, definition: StoredObject) -> None:
        resource = self._resources.built_in("CustomResourceDefinition", CRD_RESOURCE[0])
        self._writer.update(_write(resource, ""), definition.name, _without_finalizer)


def _write(resource: ServedResource, namespace: str) -> WriteRequest:
    return WriteRequest(resource, namespace, _USER, WriteOptions(), _MANAGER)


def _without_finalizer(tree: Tree) -> Tree:
    left = [each for each in tree["metadata"]["finalizers"] if each != CRD_CLEANUP_FINALIZER]
    tree["metadata"]["finalizers"] = left
    if not left:
        del tree["metadata"]["finalizers"]
    return tree
