"""Volumes to bind or provision for a pod on a node.

VolumeBinding queries `VolumeFinder` for each node; `volume_intents` carries out the chosen decision. Cost: everything
that does not depend on the node is computed once per pod; a node costs a few selector matches.
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
from bayplan.volumes.volume_matcher import CandidateVolumes, Labels, ProvisioningCheck, requested_size, required_nodes

AFFINITY_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
BIND_CONFLICT = "node(s) didn't find available persistent volumes to bind"
NOT_ENOUGH_SPACE = "node(s) did not have enough free storage"
VOLUME_MISSING = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


@dataclass(frozen=True, slots=True)
class StaticVolumeBinding:
    """A claim and the existing volume for it."""

    claim: PersistentVolumeClaim
    volume: PersistentVolume


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """The work for a pod on one node: volumes to bind, and claims to provision."""

    bindings: tuple[StaticVolumeBinding, ...] = ()
    provisions: tuple[PersistentVolumeClaim, ...] = ()


class _LabelReader(Protocol):
    def label_keys(self) -> Iterable[str]: ...


class VolumeFinder:
    """Finds volumes for one pod, node by node. It uses the assumptions at the time of its creation.

    A node is infeasible if a volume of a bound claim is missing or not reachable from it (`bound`; the first failure
    decides), or if a delayed claim cannot be served there (`find_pod_volumes`). Both are always checked, so that both
    reasons are reported.
    """

    def __init__(self, claims: PodClaims, assumptions: VolumeAssumptions, lookup: VolumeLookup) -> None:
        self.bound = tuple(BoundVolume(assumptions.volumes.get(claim.spec.volume_name)) for claim in claims.bound)
        self.waits = bool(claims.delayed)
        self._selected = tuple(claim for claim in claims.delayed if SELECTED_NODE in claim.metadata.annotations)
        waiting = [claim for claim in claims.delayed if SELECTED_NODE not in claim.metadata.annotations]
        self._candidates = tuple(
            CandidateVolumes(claim, assumptions.volumes_of_class(storage_class_of_claim(claim)))
            for claim in sorted(waiting, key=requested_size)  # the smallest claim gets the smallest volume
        )
        self._provisioning = {
            claim.key: ProvisioningCheck(claim, storage_class_of_claim(claim), lookup) for claim in claims.delayed
        }
        self.selected_nodes = frozenset(claim.metadata.annotations[SELECTED_NODE] for claim in self._selected)
        """The nodes already selected for claims: no other node is possible."""

    @property
    def only_delayed_claims(self) -> tuple[CandidateVolumes, ProvisioningCheck] | None:
        """The delayed claim, if it is the only one and has no selected node: it can be evaluated on columns."""
        if self._selected or len(self._candidates) != 1:
            return None
        (candidates,) = self._candidates
        return candidates, self._provisioning[candidates.claim.key]

    def label_keys(self) -> frozenset[str]:
        """The node labels that `find_pod_volumes` depends on: nodes with equal values get the same result."""
        parts: tuple[_LabelReader, ...] = (*self._candidates, *self._provisioning.values())
        return frozenset(key for part in parts for key in part.label_keys())

    def find_pod_volumes(self, node_name: str, labels: Labels) -> tuple[str | None, PodVolumes]:
        """Why the delayed claims cannot be served on a node (None: they can), and the work to do."""
        if any(name != node_name for name in self.selected_nodes):
            return BIND_CONFLICT, PodVolumes()
        bindings: list[StaticVolumeBinding] = []
        to_provision = list(self._selected)
        taken: set[str] = set()
        for candidates in self._candidates:
            volume = candidates.find(labels, taken)
            if volume is None:
                to_provision.append(candidates.claim)
            else:
                taken.add(volume.name)
                bindings.append(StaticVolumeBinding(candidates.claim, volume))
        return self._conflict(to_provision, labels), PodVolumes(tuple(bindings), tuple(to_provision))

    def _conflict(self, to_provision: list[PersistentVolumeClaim], labels: Labels) -> str | None:
        for claim in to_provision:
            provisioning = self._provisioning[claim.key]
            if not provisioning.allowed(labels):
                return BIND_CONFLICT
            if not provisioning.has_room(labels):
                return NOT_ENOUGH_SPACE
        return None


class BoundVolume:
    """A volume that a claim of the pod is bound to, and the nodes that can reach it."""

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
        """Whether a node with these labels and migrated plugins can reach the volume."""
        selector = self.nodes(migrated=self.plugin is not None and self.plugin.name in migrated)
        return selector is None or selector.matches(labels)
