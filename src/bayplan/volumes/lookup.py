"""Tables of storage objects. The cache's catalog implements `VolumeLookup`.

`RevisionCache` caches a value computed from all objects of one kind (volumes by class, attachments by node) until an
object of the kind changes, so that a query costs a dictionary lookup however many objects exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from bayplan.objects.meta import KubeObject
from bayplan.objects.storage import (
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)

V = TypeVar("V")


class VolumeLookup(Protocol):
    """Read-only tables by name or `namespace/name`, and a change counter of each kind."""

    @property
    def persistent_volumes(self) -> Mapping[str, PersistentVolume]: ...

    @property
    def persistent_volume_claims(self) -> Mapping[str, PersistentVolumeClaim]: ...

    @property
    def storage_classes(self) -> Mapping[str, StorageClass]: ...

    @property
    def csi_nodes(self) -> Mapping[str, CsiNode]: ...

    @property
    def csi_drivers(self) -> Mapping[str, CsiDriver]: ...

    @property
    def csi_storage_capacities(self) -> Mapping[str, CsiStorageCapacity]: ...

    @property
    def volume_attachments(self) -> Mapping[str, VolumeAttachment]: ...

    def revision(self, kind: type[KubeObject]) -> int: ...


class RevisionCache(Generic[V]):
    """A value built from all objects of a kind, rebuilt when one of them has changed."""

    __slots__ = ("_build", "_kind", "_lookup", "_revision", "_value")

    def __init__(self, lookup: VolumeLookup, kind: type[KubeObject], build: Callable[[VolumeLookup], V]) -> None:
        self._lookup = lookup
        self._kind = kind
        self._build = build
        self._value: V | None = None
        self._revision = -1

    def get(self) -> V:
        revision = self._lookup.revision(self._kind)
        if self._value is None or revision != self._revision:
            self._value = self._build(self._lookup)
            self._revision = revision
        return self._value


def claim_key(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name
