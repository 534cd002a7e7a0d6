"""Through which hands does an object go between reading and storing, and in which order?

The order is upstream's: defaults belong to reading; the writer's fields are tracked before admission adds its own, so
that nobody owns those; then the kind's own preparation, and validation of the result. Cost: the sum of its parts.
"""

from __future__ import annotations

from bayplan.clock import Clock
from bayplan.cluster.asking import Writing
from bayplan.cluster.kinds import Tree
from bayplan.cluster.metadata import timestamp
from bayplan.cluster.rules.defaults import fill
from bayplan.cluster.schema.applying import track
from bayplan.cluster.shapes import managed_type


class Rulebook:
    """The rules of one cluster, on the objects that it has."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def created(self, write: Writing, tree: Tree) -> None:
        """Make a new object ready to be stored, or refuse it."""
        fill(write.resource, tree)
        self._track(write, tree, None)

    def updated(self, write: Writing, tree: Tree, old: Tree) -> None:
        """The same for a new state of an object that is there."""
        fill(write.resource, tree)
        self._track(write, tree, old)

    def deleted(self, write: Writing, tree: Tree) -> None:
        """Refuse the deletion of what may not go."""

    def _track(self, write: Writing, tree: Tree, old: Tree | None) -> None:
        """Note down who manages what from now on."""
        if write.tracked:
            return
        resource = write.resource
        fields = track(
            old,
            tree,
            manager=write.manager,
            api_version=resource.api_version,
            type=managed_type(resource),
            now=timestamp(self._clock.now()),
            subresource=write.subresource,
        )
        if fields:
            tree["metadata"]["managedFields"] = fields
        else:
            tree["metadata"].pop("managedFields", None)
