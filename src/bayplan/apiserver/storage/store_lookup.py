"""What else is in the cluster? The store, as rules see it: trees to read and never to change.

Cost: a decoding an object that was not asked for lately; a few thousand are remembered, as long as they are current.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bayplan.apiserver.resources.kinds import Resource, Tree
from bayplan.apiserver.storage import version_conversion
from bayplan.apiserver.storage.store import Objects, PlaceName
from bayplan.apiserver.storage.stored_objects import Entry

_MOST = 4096


class StoreLookup:
    """Objects by name and by namespace. `places`: `Store.uncommitted` for the write path, `Store.place` for readers."""

    def __init__(self, places: Callable[[PlaceName], Objects]) -> None:
        self._places = places
        self.asked: dict[PlaceName, Objects] = {}
        """Where somebody looked: who wants to know what a rule went by clears it first."""
        self._known: dict[tuple[Resource, str], tuple[Entry, Tree]] = {}

    def get(self, resource: Resource, namespace: str, name: str) -> Tree | None:
        entry = self._place(resource).get(namespace, name)
        return None if entry is None else self._tree(resource, entry)

    def list(self, resource: Resource, namespace: str = "") -> Iterator[Tree]:
        entries = self._place(resource).entries(namespace)
        return (self._tree(resource, entry) for entry in entries)

    def _place(self, resource: Resource) -> Objects:
        place = self._places(resource.storage)
        self.asked[place.name] = place
        return place

    def _tree(self, resource: Resource, entry: Entry) -> Tree:
        key = (resource, entry.key)
        known = self._known.get(key)
        if known is not None and known[0] is entry:
            return known[1]
        if len(self._known) >= _MOST:
            self._known.clear()
        tree = version_conversion.tree(resource, entry)
        self._known[key] = (entry, tree)
        return tree
