"""Filters nodes by the zone and region labels of the pod's volumes.

PreFilter reads the labels of bound volumes; Filter compares them with the label columns of all nodes. Cost: nothing for
pods without claims; a few operations over all rows for each labeled volume.
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
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
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
from bayplan.volumes.errors import binding_mode_missing, claim_not_found, class_not_found, volume_not_found
from bayplan.volumes.lookup import claim_key
from bayplan.volumes.zones import SUCCESSOR, TOPOLOGY_LABELS, ZoneRequirement, zone_requirements

REASON = "node(s) had no available volume zone"

ZoneRequirements = tuple[ZoneRequirement, ...]
STATE: StateKey[ZoneRequirements] = StateKey("PreFilterVolumeZone")


def hint_on_storage_class_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """Only a class with WaitForFirstConsumer lets an unbound claim pass this plugin."""
    assert isinstance(new, StorageClass)
    return queue_hint_if(new.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER)


def hint_on_claim_change(claims: ClaimNames, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    assert isinstance(new, PersistentVolumeClaim)
    return queue_hint_if(claims.include(new))


def hint_on_volume_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A volume was added or its zones changed."""
    assert isinstance(new, PersistentVolume)
    return queue_hint_if(not isinstance(old, PersistentVolume) or zone_requirements(old) != zone_requirements(new))


class VolumeZone:
    """Keeps pods in the zones of their volumes."""

    name = "VolumeZone"
    traits = PluginTraits(depends_on=row_local, looks_at_pods=False)
    events_to_register = (
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
        """A pod without claims has no dependency; otherwise answers depend on the claims' volumes."""
        return None if any(True for _ in named_claims(pod)) else ()

    def pre_filter(self, cycle: Cycle) -> Status | None:
        requirements = self._zone_requirements(cycle.pod)
        if isinstance(requirements, Status):
            return requirements
        if not requirements:
            return SKIP
        cycle.put(STATE, requirements)
        return None

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        requirements = cycle.find(STATE)
        if requirements is None:  # PreFilter is disabled in this profile
            found = self._zone_requirements(cycle.pod)
            if isinstance(found, Status):
                yield Rejection(np.ones(len(nodes), dtype=np.bool_), found.message, resolvable=False)
                return
            requirements = found
        if requirements:
            yield Rejection(
                _has_topology_labels(nodes) & ~_satisfied_rows(nodes, requirements), REASON, resolvable=False
            )

    def _zone_requirements(self, pod: Pod) -> ZoneRequirements | Status:
        """Return the requirements of all bound volumes of the pod, or why the pod cannot be scheduled."""
        requirements: list[ZoneRequirement] = []
        for name in named_claims(pod):
            volume = self._volume(pod, name)
            if isinstance(volume, str):
                return unresolvable(volume)
            if volume is not None:
                requirements.extend(zone_requirements(volume))
        return tuple(requirements)

    def _volume(self, pod: Pod, name: str) -> PersistentVolume | str | None:
        """Return the volume of a claim, None if it is not yet chosen, or the error."""
        if not name:
            return "PersistentVolumeClaim had no name"
        claim = self._catalog.persistent_volume_claims.get(claim_key(pod.namespace, name))
        if claim is None:
            return claim_not_found(name)
        volume_name = claim.spec.volume_name
        if not volume_name:
            return self._unbound_claim_error(storage_class_of_claim(claim))
        return self._catalog.persistent_volumes.get(volume_name) or volume_not_found(volume_name)

    def _unbound_claim_error(self, class_name: str) -> str | None:
        if not class_name:
            return "PersistentVolumeClaim had no pv name and storageClass name"
        storage_class = self._catalog.storage_classes.get(class_name)
        if storage_class is None:
            return class_not_found(class_name)
        if storage_class.volume_binding_mode is None:
            return binding_mode_missing(class_name)
        return None if storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER else "PersistentVolume had no name"


def _has_topology_labels(nodes: NodeTable) -> BoolVector:
    """Return the nodes with a zone or region label.

    Nodes without one accept every volume, as in a cluster without zones.
    """
    has_zone_label = np.zeros(len(nodes), dtype=np.bool_)
    for key in TOPOLOGY_LABELS:
        has_zone_label |= nodes.label_ids(key) >= 0
    return has_zone_label


def _satisfied_rows(nodes: NodeTable, requirements: ZoneRequirements) -> BoolVector:
    satisfied = np.ones(len(nodes), dtype=np.bool_)
    for key, values in requirements:
        fits = nodes.where_label_in(key, values)
        successor = SUCCESSOR.get(key)
        if successor is not None:  # an old volume label, and a node that has only the new label
            fits |= (nodes.label_ids(key) < 0) & nodes.where_label_in(successor, values)
        satisfied &= fits
    return satisfied
