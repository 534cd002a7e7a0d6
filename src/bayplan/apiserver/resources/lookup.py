"""Read access to stored objects for rules."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Protocol

from bayplan.apiserver.resources.kinds import BUILT_IN, ServedResource, Tree


class ObjectLookup(Protocol):
    """Stored objects. Callers must not change them."""

    def get(self, resource: ServedResource, namespace: str, name: str) -> Tree | None: ...

    def list(self, resource: ServedResource, namespace: str = "") -> Iterable[Tree]:
        """All objects of a namespace; of all namespaces if it is empty."""
        ...


@cache
def built_in(kind: str, group: str = "") -> ServedResource:
    return next(each for each in BUILT_IN if each.kind == kind and each.group == group)
