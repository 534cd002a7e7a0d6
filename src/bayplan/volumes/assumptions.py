"""Volumes and claims as the scheduler assumes them, ahead of the API server.

Reserve assumes (a volume's claimRef, a claim's selected node), and Unreserve restores. The watch takes precedence: an
assumption is valid only while the stored object has the resourceVersion it was built from. The cache owns the
assumptions; VolumeBinding reads them through the handle. Cost: two dictionary lookups per query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Generic, TypeVar

from bayplan.objects.meta import KubeObject
from bayplan.objects.storage import PersistentVolume, PersistentVolumeClaim
from bayplan.volumes.claims import storage_class_of_volume
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.lookup import RevisionCache, VolumeLookup

T = TypeVar("T", bound=KubeObject)


class VolumeBindingStage(StrEnum):
    """The stages at which volume binding can fail, with the names in metrics."""

    FIND = "predicate"
    ASSUME = "assume"
    BIND = "bind"


def _ignore_failure(stage: VolumeBindingStage) -> None: ...


class AssumeCache(Generic[T]):
    """Objects of one kind: stored ones, and assumed ones that take precedence."""

    __slots__ = ("_assumed", "_resource", "_stored", "listener")

    def __init__(self, stored: Callable[[], Mapping[str, T]], resource: str) -> None:
        self._stored = stored
        self._resource = resource
        self._assumed: dict[str, T] = {}
        self.listener: Callable[[KubeObject, KubeObject], None] | None = None
        """Called with the assumed and the stored object when an assumption is reverted, which the watch does not show.

        `VolumeAssumptions.trial` suspends it.
        """

    def __len__(self) -> int:
        return len(self._assumed)

    def get(self, key: str) -> T | None:
        """The assumed object, else the stored one; None if none is stored."""
        stored = self._stored().get(key)
        return None if stored is None else self.latest_of(stored)

    def latest_of(self, stored: T) -> T:
        """The assumed form of a stored object."""
        assumed = self._assumed.get(stored.key)
        return assumed if assumed is not None and _version(assumed) == _version(stored) else stored

    def find_stored(self, key: str) -> T | None:
        """The object as the API server has it."""
        return self._stored().get(key)

    def get_stored(self, key: str) -> T:
        """The object as the API server has it; raises if it was deleted."""
        stored = self.find_stored(key)
        if stored is None:
            raise VolumeError(f'{self._resource} "{key}" not found')
        return stored

    def assume(self, item: T) -> None:
        """Use `item` from now on. It must be built from the stored version."""
        stored = self.get_stored(item.key)
        if _version(stored) != _version(item):
            raise VolumeError(f'"{item.key}" is out of sync (stored: {_version(stored)}, assume: {_version(item)})')
        self._assumed[item.key] = item

    def restore(self, item: T) -> None:
        """Revert the assumption that was built from this version; any other one stays."""
        assumed = self._assumed.get(item.key)
        if assumed is not None and _version(assumed) == _version(item):
            del self._assumed[item.key]
            stored = self.find_stored(item.key)
            if stored is not None and self.listener is not None:
                self.listener(assumed, stored)

    def observe(self, key: str) -> None:
        """Process a change of a stored object: an assumption about another version of it ends."""
        assumed = self._assumed.get(key)
        if assumed is None:
            return
        stored = self._stored().get(key)
        if stored is None or _version(stored) != _version(assumed):
            del self._assumed[key]


class AssumedVolumes(AssumeCache[PersistentVolume]):
    """Volumes, assumed to be reserved for claims. An assumption ends when the claim gets another volume or is deleted.

    The binder chooses volumes by itself: the API server then never shows the volume that the scheduler has assumed.
    """

    __slots__ = ("_volumes_by_claim",)

    def __init__(self, stored: Callable[[], Mapping[str, PersistentVolume]], resource: str) -> None:
        super().__init__(stored, resource)
        self._volumes_by_claim: dict[str, set[str]] = {}
        """By claim: the volumes assumed for it, until the claim has its volume."""

    def assume(self, item: PersistentVolume) -> None:
        super().assume(item)
        claim_ref = item.spec.claim_ref
        if claim_ref is not None:
            key = f"{claim_ref.namespace}/{claim_ref.name}"
            self._volumes_by_claim.setdefault(key, set()).add(item.key)

    def observe_claim(self, key: str, claim: PersistentVolumeClaim | None) -> None:
        """Process a change of a claim; None means that it was deleted."""
        if key not in self._volumes_by_claim or (claim is not None and not claim.spec.volume_name):
            return
        for name in self._volumes_by_claim.pop(key):
            assumed = self._assumed.get(name)
            if assumed is None or assumed.spec.claim_ref is None:
                continue
            claim_ref = assumed.spec.claim_ref
            is_for_claim = f"{claim_ref.namespace}/{claim_ref.name}" == key
            if is_for_claim and (claim is None or claim.spec.volume_name != name):
                self.restore(assumed)


class VolumeAssumptions:
    """The assumed state of all volumes and claims."""

    __slots__ = ("_by_class", "claims", "on_failure", "volumes")

    def __init__(self, lookup: VolumeLookup) -> None:
        self.volumes = AssumedVolumes(lambda: lookup.persistent_volumes, "persistentvolumes")
        self.claims: AssumeCache[PersistentVolumeClaim] = AssumeCache(
            lambda: lookup.persistent_volume_claims, "persistentvolumeclaims"
        )
        self.on_failure: Callable[[VolumeBindingStage], None] = _ignore_failure
        """Called when a lookup, an assumption or a binding of volumes fails."""
        self._by_class = RevisionCache(lookup, PersistentVolume, _volumes_by_class)

    def volumes_of_class(self, name: str) -> list[PersistentVolume]:
        """The volumes of a storage class as assumed, in the order of their names."""
        return [self.volumes.latest_of(volume) for volume in self._by_class.get().get(name, ())]

    def listen(self, listener: Callable[[KubeObject, KubeObject], None]) -> None:
        """Set the listener for reverted assumptions: a waiting pod may use the volume then."""
        self.volumes.listener = self.claims.listener = listener

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Suspend the listener: reverted assumptions began in the same attempt, so no waiting pod has seen them."""
        listener = self.volumes.listener
        self.volumes.listener = self.claims.listener = None
        try:
            yield
        finally:
            self.volumes.listener = self.claims.listener = listener

    def observe(self, item: KubeObject) -> None:
        """Process the addition, change or deletion of a volume or claim. Call it after the store has the change."""
        if isinstance(item, PersistentVolume):
            self.volumes.observe(item.key)
        elif isinstance(item, PersistentVolumeClaim):
            self.claims.observe(item.key)
            self.volumes.observe_claim(item.key, self.claims.find_stored(item.key))


def _volumes_by_class(lookup: VolumeLookup) -> dict[str, list[PersistentVolume]]:
    by_class: dict[str, list[PersistentVolume]] = {}
    for volume in sorted(lookup.persistent_volumes.values(), key=lambda volume: volume.name):
        by_class.setdefault(storage_class_of_volume(volume), []).append(volume)
    return by_class


def _version(item: KubeObject) -> str:
    return item.metadata.resource_version
