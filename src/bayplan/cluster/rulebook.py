"""Through which hands does an object go between reading and storing, and in which order?

The order is upstream's: defaults belong to reading; the writer's fields are tracked before admission adds its own, so
that nobody owns those; then the kind's own preparation, and validation of the result. Cost: the sum of its parts.
"""

from __future__ import annotations

from bayplan.cluster.asking import Writing
from bayplan.cluster.kinds import Tree
from bayplan.cluster.rules.defaults import fill


class Rulebook:
    """The rules of one cluster, on the objects that it has."""

    def created(self, write: Writing, tree: Tree) -> None:
        """Make a new object ready to be stored, or refuse it."""
        fill(write.resource, tree)

    def updated(self, write: Writing, tree: Tree, old: Tree) -> None:  # noqa: ARG002
        """The same for a new state of an object that is there."""
        fill(write.resource, tree)

    def deleted(self, write: Writing, tree: Tree) -> None:
        """Refuse the deletion of what may not go."""
