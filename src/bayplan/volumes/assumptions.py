"""Volumes and claims as this scheduler assumes them to be, ahead of what the API server has said.

Reserve assumes (a volume's claimRef, a claim's selected node), Unreserve restores, and whatever the watch brings
afterwards wins: an assumption holds only while the stored object still has the resourceVersion it was made from.
Owned by the cache, read by VolumeBinding through the handle. Plain dictionaries: a lookup costs two.
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
    """Where dealing with a pod's volumes can break, by the names that metrics have."""

    FIND = "predicate"
    ASSUME = "assume"
    BIND = "bind"


def _ignore_failure(stage: VolumeBindingStage) -> None: ...


class AssumeCache(Generic[T]):
    """Objects of one kind: the stored ones, with the assumed ones in front."""

    __slots__ = ("_assumed", "_resource", "_stored", "listener")

    def __init__(self, stored: Callable[[], Mapping[str, T]], resource: str) -> None:
        self._stored = stored
        self._resource = resource
        self._assumed: dict[str, T] = {}
        self.listener: Callable[[KubeObject, KubeObject], None] | None = None
        """Called with the assumed and the stored object when an assumption is taken back: the watch does not show it.
        `VolumeAssumptions.trial` suspends it."""

    def __len__(self) -> int:
        return len(self._assumed)

    def get(self, key: str) -> T | None:
        """The object as it is assumed to be, else as it is stored; None where nothing is stored."""
        stored = self._stored().get(key)
        return None if stored is None else self.latest_of(stored)

    def latest_of(self, stored: T) -> T:
        """What to take a stored object for."""
        assumed = self._assumed.get(stored.key)
        return assumed if assumed is not None and _version(assumed) == _version(stored) else stored

    def find_stored(self, key: str) -> T | None:
        """The object as the API server has it."""
        return self._stored().get(key)

    def stored(self, key: str) -> T:
        """The object as the API server has it; raises where it has gone."""
        stored = self.find_stored(key)
        if stored is None:
            raise VolumeError(f'{self._resource} "{key}" not found')
        return stored

    def assume(self, item: T) -> None:
        """Take `item` for true from now on. It must be made from the version that is stored."""
        stored = self.stored(item.key)
        if _version(stored) != _version(item):
            raise VolumeError(f'"{item.key}" is out of sync (stored: {_version(stored)}, assume: {_version(item)})')
        self._assumed[item.key] = item

    def restore(self, item: T) -> None:
        """Take back the assumption that was made from this version; any other one stays."""
        assumed = self._assumed.get(item.key)
        if assumed is not None and _version(assumed) == _version(item):
            del self._assumed[item.key]
            stored = self.find_stored(item.key)
            if stored is not None and self.listener is not None:
                self.listener(assumed, stored)

    def observe(self, key: str) -> None:
        """Something happened to a stored object: an assumption about another version of it is over."""
        assumed = self._assumed.get(key)
        if assumed is None:
            return
        stored = self._stored().get(key)
        if stored is None or _version(stored) != _version(assumed):
            del self._assumed[key]


class AssumedVolumes(AssumeCache[PersistentVolume]):
    """Volumes, assumed to be promised to claims. A claim that gets another volume, or goes, ends the assumption.

    The binder chooses volumes by itself: the API server then never shows the volume that this scheduler has assumed.
    """

    __slots__ = ("_of_claims",)

    def __init__(self, stored: Callable[[], Mapping[str, PersistentVolume]], resource: str) -> None:
        super().__init__(stored, resource)
        self._of_claims: dict[str, set[str]] = {}
        """By claim: the volumes that were assumed for it, until the claim has its volume."""

    def assume(self, item: PersistentVolume) -> None:
        super().assume(item)
        promised_to = item.spec.claim_ref
        if promised_to is not None:
            key = f"{promised_to.namespace}/{promised_to.name}"
            self._of_claims.setdefault(key, set()).add(item.key)

    def observe_claim(self, key: str, claim: PersistentVolumeClaim | None) -> None:
        """A claim was changed; None: it is gone."""
        if key not in self._of_claims or (claim is not None and not claim.spec.volume_name):
            return
        for name in self._of_claims.pop(key):
            assumed = self._assumed.get(name)
            if assumed is None or assumed.spec.claim_ref is None:
                continue
            promised_to = assumed.spec.claim_ref
            is_for_claim = f"{promised_to.namespace}/{promised_to.name}" == key
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
        """Told of what breaks while volumes are looked for, assumed or bound."""
        self._by_class = RevisionCache(lookup, PersistentVolume, _volumes_by_class)

    def volumes_of_class(self, name: str) -> list[PersistentVolume]:
        """The volumes of a storage class as assumed, in the order of their names."""
        return [self.volumes.latest_of(volume) for volume in self._by_class.get().get(name, ())]

    def listen(self, listener: Callable[[KubeObject, KubeObject], None]) -> None:
        """Have assumptions reported that are taken back: a waiting pod may use the volume then."""
        self.volumes.listener = self.claims.listener = listener

    @contextmanager
    def trial(self) -> Iterator[None]:
        """What is taken back in this block was assumed in the same attempt, so no waiting pod has seen it."""
        listener = self.volumes.listener
        self.volumes.listener = self.claims.listener = None
        try:
            yield
        finally:
            self.volumes.listener = self.claims.listener = listener

    def observe(self, item: KubeObject) -> None:
        """A volume or claim was added, changed or deleted. Call it after the store has the change."""
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
