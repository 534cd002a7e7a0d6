"""What else is in the cluster? The narrow view of the store that rules may have."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Protocol

from bayplan.apiserver.resources.kinds import BUILT_IN, ServedResource, Tree


class ObjectLookup(Protocol):
    """Stored objects, as they are; nobody here may change them."""

    def get(self, resource: ServedResource, namespace: str, name: str) -> Tree | None:
        """One object, or None."""
        ...

    def list(self, resource: ServedResource, namespace: str = "") -> Iterable[Tree]:
        """All objects of a namespace, or of all of them if it is empty."""
        ...


@cache
def built_in(kind: str, group: str = "") -> ServedResource:
    """A kind that a rule needs by name."""
    return next(each for each in BUILT_IN if each.kind == kind and each.group == group)
