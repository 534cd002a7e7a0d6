"""Read access to the store for rules: decoded objects, which callers must not change.

Cost: one decode of an object that is not cached. A few thousand objects are cached while they are current.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.storage import version_conversion
from bayplan.apiserver.storage.store import GroupResource, ResourceObjects
from bayplan.apiserver.storage.stored_objects import StoredObject

_MAX_CACHED = 4096


class StoreLookup:
    """Objects by name and namespace. Built on `Store.uncommitted` for writes, `Store.committed` for readers."""

    def __init__(self, objects_of: Callable[[GroupResource], ResourceObjects]) -> None:
        self._objects_of = objects_of
        self.kinds_read: dict[GroupResource, ResourceObjects] = {}
        """The kinds that were read. Templates clear it first to learn which kinds a rule read."""
        self._cache: dict[tuple[ServedResource, str], tuple[StoredObject, Tree]] = {}

    def get(self, resource: ServedResource, namespace: str, name: str) -> Tree | None:
        entry = self._objects(resource).get(namespace, name)
        return None if entry is None else self._tree(resource, entry)

    def list(self, resource: ServedResource, namespace: str = "") -> Iterator[Tree]:
        entries = self._objects(resource).entries(namespace)
        return (self._tree(resource, entry) for entry in entries)

    def _objects(self, resource: ServedResource) -> ResourceObjects:
        objects = self._objects_of(resource.storage)
        self.kinds_read[objects.name] = objects
        return objects

    def _tree(self, resource: ServedResource, entry: StoredObject) -> Tree:
        key = (resource, entry.key)
        cached = self._cache.get(key)
        if cached is not None and cached[0] is entry:
            return cached[1]
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        tree = version_conversion.to_tree(resource, entry)
        self._cache[key] = (entry, tree)
        return tree
