"""What would have to be bound or made for a pod on this node, and is that possible?

VolumeBinding asks `VolumeDecider` about nodes; what follows from the chosen decision is in `promises`.
Cost: what does not depend on the node is worked out once a pod; a node costs a few selectors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from bayplan.objects.storage import CsiNode, PersistentVolume, PersistentVolumeClaim
from bayplan.volumes.assumptions import VolumeAssumptions
from bayplan.volumes.claims import SELECTED_NODE, PodClaims, class_of_claim
from bayplan.volumes.csi import migrated_on, translated_affinity, volume_plugin
from bayplan.volumes.faults import VolumeError
from bayplan.volumes.lookup import VolumeLookup
from bayplan.volumes.matching import (
    Candidates,
    Labels,
    Provisioning,
    reachable,
    requested_size,
    required_nodes,
    selector_keys,
)

AFFINITY_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
BIND_CONFLICT = "node(s) didn't find available persistent volumes to bind"
NOT_ENOUGH_SPACE = "node(s) did not have enough free storage"
VOLUME_MISSING = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


@dataclass(frozen=True, slots=True)
class StaticBinding:
    """A claim and the existing volume that it gets."""

    claim: PersistentVolumeClaim
    volume: PersistentVolume


@dataclass(frozen=True, slots=True)
class BindingInfo:
    """What is to be done for a pod on one node: bind volumes that exist, have others made."""

    bindings: tuple[StaticBinding, ...] = ()
    provisions: tuple[PersistentVolumeClaim, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """A node's answer: the reasons against it or, where there are none, what is to be done."""

    reasons: tuple[str, ...] = ()
    info: BindingInfo = BindingInfo()


NOTHING_TO_DO = Decision()


class _LabelReader(Protocol):
    def label_keys(self) -> Iterable[str]: ...


class VolumeDecider:
    """Decides for one pod, node after node. Reads the assumptions as they were when it was made."""

    def __init__(self, claims: PodClaims, assumptions: VolumeAssumptions, lookup: VolumeLookup) -> None:
        self._bound = tuple(BoundVolume(assumptions.volumes.get(claim.spec.volume_name)) for claim in claims.bound)
        self._selected = tuple(claim for claim in claims.delayed if SELECTED_NODE in claim.metadata.annotations)
        waiting = [claim for claim in claims.delayed if SELECTED_NODE not in claim.metadata.annotations]
        self._candidates = tuple(
            Candidates(claim, assumptions.volumes_of_class(class_of_claim(claim)))
            for claim in sorted(waiting, key=requested_size)  # the smallest claim takes the smallest volume
        )
        self._provisioning = {claim.key: Provisioning(claim, class_of_claim(claim), lookup) for claim in claims.delayed}

    @property
    def selected_nodes(self) -> frozenset[str]:
        """The nodes that claims have been given to already."""
        return frozenset(claim.metadata.annotations[SELECTED_NODE] for claim in self._selected)

    @property
    def depends_on_migration(self) -> bool:
        """Whether it matters which in-tree plugins a node has migrated."""
        return any(volume.migratable for volume in self._bound)

    def label_keys(self) -> frozenset[str]:
        """The node labels that decisions depend on: nodes that agree in them get the same decision."""
        parts: tuple[_LabelReader, ...] = (*self._bound, *self._candidates, *self._provisioning.values())
        return frozenset(key for part in parts for key in part.label_keys())

    def decide(self, node_name: str, labels: Labels, csi_node: CsiNode | None) -> Decision:
        """The answer of one node; raises where no answer can be given."""
        affinity, missing = self._check_bound(labels, csi_node)
        conflict, info = self._place_unbound(node_name, labels)
        reasons = tuple(reason for reason in (affinity, conflict, missing) if reason is not None)
        return Decision(reasons) if reasons else Decision(info=info)

    def _check_bound(self, labels: Labels, csi_node: CsiNode | None) -> tuple[str | None, str | None]:
        """The first bound claim that fails decides: its volume is out of reach, or not there at all."""
        migrated = migrated_on(csi_node)
        for volume in self._bound:
            if volume.missing:
                return None, VOLUME_MISSING
            if not volume.reachable(labels, migrated):
                return AFFINITY_CONFLICT, None
        return None, None

    def _place_unbound(self, node_name: str, labels: Labels) -> tuple[str | None, BindingInfo]:
        if any(claim.metadata.annotations[SELECTED_NODE] != node_name for claim in self._selected):
            return BIND_CONFLICT, BindingInfo()
        bindings: list[StaticBinding] = []
        to_make = list(self._selected)
        taken: set[str] = set()
        for candidates in self._candidates:
            volume = candidates.find(labels, taken)
            if volume is None:
                to_make.append(candidates.claim)
            else:
                taken.add(volume.name)
                bindings.append(StaticBinding(candidates.claim, volume))
        return self._provision_conflict(to_make, labels), BindingInfo(tuple(bindings), tuple(to_make))

    def _provision_conflict(self, claims: list[PersistentVolumeClaim], labels: Labels) -> str | None:
        for claim in claims:
            provisioning = self._provisioning[claim.key]
            if not provisioning.allowed(labels):
                return BIND_CONFLICT
            if not provisioning.has_room(labels):
                return NOT_ENOUGH_SPACE
        return None


class BoundVolume:
    """A volume that a claim of the pod is bound to, and the nodes it can be reached from."""

    __slots__ = ("_plugin", "_volume")

    def __init__(self, volume: PersistentVolume | None) -> None:
        self._volume = volume
        self._plugin = volume_plugin(volume) if volume is not None else None

    @property
    def missing(self) -> bool:
        return self._volume is None

    @property
    def migratable(self) -> bool:
        return self._plugin is not None

    def reachable(self, labels: Labels, migrated: frozenset[str]) -> bool:
        """Whether a node with these labels, that has migrated these plugins, can reach the volume."""
        if self._volume is None:
            return False
        affinity = self._volume.spec.node_affinity
        if self._plugin is not None and self._plugin.name in migrated:
            try:
                affinity = translated_affinity(self._volume)
            except VolumeError as fault:
                raise VolumeError(f"could not translate pv: {fault}") from None
        return reachable(affinity, labels)

    def label_keys(self) -> frozenset[str]:
        if self._volume is None:
            return frozenset()
        keys = frozenset(selector_keys(required_nodes(self._volume.spec.node_affinity)))
        if self._plugin is not None:
            keys |= self._translated_keys(self._volume)
        return keys

    def _translated_keys(self, volume: PersistentVolume) -> frozenset[str]:
        try:
            return frozenset(selector_keys(required_nodes(translated_affinity(volume))))
        except VolumeError:
            return frozenset()  # the fault does not depend on labels
