"""What would have to be bound or made for a pod on this node, and is that possible?

VolumeBinding asks `VolumeFinder` about nodes; what follows from the chosen decision is in `promises`.
Cost: what does not depend on the node is worked out once a pod; a node costs a few selectors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from bayplan.objects.selectors.node_selectors import NodeSelectorMatcher
from bayplan.objects.storage import PersistentVolume, PersistentVolumeClaim
from bayplan.volumes.assumptions import VolumeAssumptions
from bayplan.volumes.claims import SELECTED_NODE, PodClaims, storage_class_of_claim
from bayplan.volumes.csi import translated_affinity, volume_plugin
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.lookup import VolumeLookup
from bayplan.volumes.volume_matcher import (
    CandidateVolumes,
    Labels,
    ProvisioningCheck,
    requested_size,
    required_nodes,
)

AFFINITY_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
BIND_CONFLICT = "node(s) didn't find available persistent volumes to bind"
NOT_ENOUGH_SPACE = "node(s) did not have enough free storage"
VOLUME_MISSING = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


@dataclass(frozen=True, slots=True)
class StaticVolumeBinding:
    """A claim and the existing volume that it gets."""

    claim: PersistentVolumeClaim
    volume: PersistentVolume


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """What is to be done for a pod on one node: bind volumes that exist, have others made."""

    bindings: tuple[StaticVolumeBinding, ...] = ()
    provisions: tuple[PersistentVolumeClaim, ...] = ()


class _LabelReader(Protocol):
    def label_keys(self) -> Iterable[str]: ...


class VolumeFinder:
    """Decides for one pod, node after node. Reads the assumptions as they were when it was made.

    A node is out if a volume of a bound claim is missing or cannot be reached from it (`bound`, of which the first that
    fails decides), or if a claim that waits for a node cannot be served there (`find_pod_volumes`). Both are always
    looked at, so that both reasons are told."""

    def __init__(self, claims: PodClaims, assumptions: VolumeAssumptions, lookup: VolumeLookup) -> None:
        self.bound = tuple(BoundVolume(assumptions.volumes.get(claim.spec.volume_name)) for claim in claims.bound)
        self.waits = bool(claims.delayed)
        self._selected = tuple(claim for claim in claims.delayed if SELECTED_NODE in claim.metadata.annotations)
        waiting = [claim for claim in claims.delayed if SELECTED_NODE not in claim.metadata.annotations]
        self._candidates = tuple(
            CandidateVolumes(claim, assumptions.volumes_of_class(storage_class_of_claim(claim)))
            for claim in sorted(waiting, key=requested_size)  # the smallest claim takes the smallest volume
        )
        self._provisioning = {
            claim.key: ProvisioningCheck(claim, storage_class_of_claim(claim), lookup) for claim in claims.delayed
        }
        self.selected_nodes = frozenset(claim.metadata.annotations[SELECTED_NODE] for claim in self._selected)
        """The nodes that claims have been given to already: no other node will do."""

    @property
    def only_delayed_claims(self) -> tuple[CandidateVolumes, ProvisioningCheck] | None:
        """The claim that waits, if it is just one and no node was selected for it: it can be judged on columns."""
        if self._selected or len(self._candidates) != 1:
            return None
        (candidates,) = self._candidates
        return candidates, self._provisioning[candidates.claim.key]

    def label_keys(self) -> frozenset[str]:
        """The node labels that `find_pod_volumes` looks at: nodes that agree in them get the same answer."""
        parts: tuple[_LabelReader, ...] = (*self._candidates, *self._provisioning.values())
        return frozenset(key for part in parts for key in part.label_keys())

    def find_pod_volumes(self, node_name: str, labels: Labels) -> tuple[str | None, PodVolumes]:
        """Why the waiting claims cannot be served on a node (None: they can), and what is to be done for them."""
        if any(name != node_name for name in self.selected_nodes):
            return BIND_CONFLICT, PodVolumes()
        bindings: list[StaticVolumeBinding] = []
        to_make = list(self._selected)
        taken: set[str] = set()
        for candidates in self._candidates:
            volume = candidates.find(labels, taken)
            if volume is None:
                to_make.append(candidates.claim)
            else:
                taken.add(volume.name)
                bindings.append(StaticVolumeBinding(candidates.claim, volume))
        return self._conflict(to_make, labels), PodVolumes(tuple(bindings), tuple(to_make))

    def _conflict(self, to_make: list[PersistentVolumeClaim], labels: Labels) -> str | None:
        for claim in to_make:
            provisioning = self._provisioning[claim.key]
            if not provisioning.allowed(labels):
                return BIND_CONFLICT
            if not provisioning.has_room(labels):
                return NOT_ENOUGH_SPACE
        return None


class BoundVolume:
    """A volume that a claim of the pod is bound to, and the nodes it can be reached from."""

    __slots__ = ("_volume", "plugin")

    def __init__(self, volume: PersistentVolume | None) -> None:
        self._volume = volume
        self.plugin = volume_plugin(volume) if volume is not None else None

    @property
    def missing(self) -> bool:
        return self._volume is None

    def nodes(self, *, migrated: bool) -> NodeSelectorMatcher | None:
        """The nodes that can reach it (None: all), among those that have or have not migrated its in-tree plugin."""
        if self._volume is None:
            return NodeSelectorMatcher()
        if not migrated or self.plugin is None:
            return required_nodes(self._volume.spec.node_affinity)
        try:
            return required_nodes(translated_affinity(self._volume))
        except VolumeError as fault:
            raise VolumeError(f"could not translate pv: {fault}") from None

    def reachable(self, labels: Labels, migrated: frozenset[str]) -> bool:
        """Whether a node with these labels, that has migrated these plugins, can reach the volume."""
        selector = self.nodes(migrated=self.plugin is not None and self.plugin.name in migrated)
        return selector is None or selector.matches(labels)
