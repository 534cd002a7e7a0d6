"""What else is in the cluster? The store, as rules see it: trees to read and never to change.

Cost: a decoding an object that was not asked for lately; a few thousand are remembered, as long as they are current.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.storage import version_conversion
from bayplan.apiserver.storage.store import GroupResource, ResourceObjects
from bayplan.apiserver.storage.stored_objects import StoredObject

_MAX_CACHED = 4096


class StoreLookup:
    """Objects by name and by namespace. `places`: `Store.uncommitted` for the write path, `Store.place` for readers."""

    def __init__(self, places: Callable[[GroupResource], ResourceObjects]) -> None:
        self._places = places
        self.places_read: dict[GroupResource, ResourceObjects] = {}
        """Where somebody looked: who wants to know what a rule went by clears it first."""
        self._known: dict[tuple[ServedResource, str], tuple[StoredObject, Tree]] = {}

    def get(self, resource: ServedResource, namespace: str, name: str) -> Tree | None:
        entry = self._place(resource).get(namespace, name)
        return None if entry is None else self._tree(resource, entry)

    def list(self, resource: ServedResource, namespace: str = "") -> Iterator[Tree]:
        entries = self._place(resource).entries(namespace)
        return (self._tree(resource, entry) for entry in entries)

    def _place(self, resource: ServedResource) -> ResourceObjects:
        place = self._places(resource.storage)
        self.places_read[place.name] = place
        return place

    def _tree(self, resource: ServedResource, entry: StoredObject) -> Tree:
        key = (resource, entry.key)
        known = self._known.get(key)
        if known is not None and known[0] is entry:
            return known[1]
        if len(self._known) >= _MAX_CACHED:
            self._known.clear()
        tree = version_conversion.to_tree(resource, entry)
        self._known[key] = (entry, tree)
        return tree
