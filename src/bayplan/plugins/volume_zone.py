"""Is the node in a zone that the pod's volumes are labelled with?

Reads the zone and region labels of bound volumes in PreFilter, then compares them with the label columns of all nodes.
Cost: nothing for pods without claims; a few operations over all rows for each labelled volume.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.events import (
    ActionType,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
    no_hint_key,
    queue_hint_if,
)
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import Rejection, row_local
from bayplan.framework.api.status import SKIP, Status, unresolvable
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from bayplan.snapshot import BoolVector, NodeTable
from bayplan.volumes.claims import (
    WAIT_FOR_FIRST_CONSUMER,
    ClaimNames,
    claims_by_name,
    named_claims,
    storage_class_of_claim,
)
from bayplan.volumes.errors import (
    binding_mode_missing,
    claim_not_found,
    class_not_found,
    volume_not_found,
)
from bayplan.volumes.lookup import claim_key
from bayplan.volumes.zones import SUCCESSOR, TOPOLOGY_LABELS, ZoneRequirement, zone_requirements

REASON = "node(s) had no available volume zone"

ZoneRequirements = tuple[ZoneRequirement, ...]
STATE: StateKey[ZoneRequirements] = StateKey("PreFilterVolumeZone")


def hint_on_storage_class_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """Only a class that waits for pods lets an unbound claim pass here."""
    assert isinstance(new, StorageClass)
    return queue_hint_if(new.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER)


def hint_on_claim_change(claims: ClaimNames, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    assert isinstance(new, PersistentVolumeClaim)
    return queue_hint_if(claims.include(new))


def hint_on_volume_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A new volume, or one that says something else about its zones."""
    assert isinstance(new, PersistentVolume)
    return queue_hint_if(not isinstance(old, PersistentVolume) or zone_requirements(old) != zone_requirements(new))


class VolumeZone:
    """Keeps pods in the zones of their volumes."""

    name = "VolumeZone"
    looks_at_pods = False
    depends_on = row_local
    cured_by = (
        ClusterEventWithHint(
            EventResource.STORAGE_CLASS, ActionType.ADD, hint_on_storage_class_change, hint_key=no_hint_key
        ),
        ClusterEventWithHint(EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_LABEL),
        ClusterEventWithHint.with_hint_key(
            EventResource.PERSISTENT_VOLUME_CLAIM,
            ActionType.ADD | ActionType.UPDATE,
            claims_by_name,
            hint_on_claim_change,
        ),
        ClusterEventWithHint(
            EventResource.PERSISTENT_VOLUME,
            ActionType.ADD | ActionType.UPDATE,
            hint_on_volume_change,
            hint_key=no_hint_key,
        ),
    )

    def __init__(self, handle: Handle) -> None:
        self._catalog = handle.catalog

    @classmethod
    def factory(cls, args: object, handle: Handle) -> VolumeZone:  # noqa: ARG003
        return cls(handle)

    def signature(self, pod: Pod) -> Hashable | None:
        """A pod that names no claim is not concerned; otherwise answers depend on the claims' volumes."""
        return None if any(True for _ in named_claims(pod)) else ()

    def pre_filter(self, cycle: Cycle) -> Status | None:
        demands = self._zone_requirements(cycle.pod)
        if isinstance(demands, Status):
            return demands
        if not demands:
            return SKIP
        cycle.put(STATE, demands)
        return None

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        demands = cycle.find(STATE)
        if demands is None:  # PreFilter is switched off in this profile
            found = self._zone_requirements(cycle.pod)
            if isinstance(found, Status):
                yield Rejection(np.ones(len(nodes), dtype=np.bool_), found.message, resolvable=False)
                return
            demands = found
        if demands:
            yield Rejection(_has_topology_labels(nodes) & ~_satisfied(nodes, demands), REASON, resolvable=False)

    def _zone_requirements(self, pod: Pod) -> ZoneRequirements | Status:
        """What all bound volumes of the pod ask for, or why the pod cannot be placed at all."""
        demands: list[ZoneRequirement] = []
        for name in named_claims(pod):
            volume = self._volume(pod, name)
            if isinstance(volume, str):
                return unresolvable(volume)
            if volume is not None:
                demands.extend(zone_requirements(volume))
        return tuple(demands)

    def _volume(self, pod: Pod, name: str) -> PersistentVolume | str | None:
        """The volume behind a claim, None where it is still to be chosen, or what is wrong."""
        if not name:
            return "PersistentVolumeClaim had no name"
        claim = self._catalog.persistent_volume_claims.get(claim_key(pod.namespace, name))
        if claim is None:
            return claim_not_found(name)
        bound_to = claim.spec.volume_name
        if not bound_to:
            return self._still_unbound(storage_class_of_claim(claim))
        return self._catalog.persistent_volumes.get(bound_to) or volume_not_found(bound_to)

    def _still_unbound(self, class_name: str) -> str | None:
        if not class_name:
            return "PersistentVolumeClaim had no pv name and storageClass name"
        storage_class = self._catalog.storage_classes.get(class_name)
        if storage_class is None:
            return class_not_found(class_name)
        if storage_class.volume_binding_mode is None:
            return binding_mode_missing(class_name)
        return None if storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER else "PersistentVolume had no name"


def _has_topology_labels(nodes: NodeTable) -> BoolVector:
    """Nodes that say where they are; the others are taken for a cluster without zones and let everything in."""
    zoned = np.zeros(len(nodes), dtype=np.bool_)
    for key in TOPOLOGY_LABELS:
        zoned |= nodes.label_ids(key) >= 0
    return zoned


def _satisfied(nodes: NodeTable, demands: ZoneRequirements) -> BoolVector:
    satisfied = np.ones(len(nodes), dtype=np.bool_)
    for key, values in demands:
        fits = nodes.where_label_in(key, values)
        successor = SUCCESSOR.get(key)
        if successor is not None:  # an old volume label on a node that has only the new one
            fits |= (nodes.label_ids(key) < 0) & nodes.where_label_in(successor, values)
        satisfied &= fits
    return satisfied
