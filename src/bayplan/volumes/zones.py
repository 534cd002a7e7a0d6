"""Zones and regions in the labels of a volume.

VolumeZone uses it for each bound volume of a pod. In-tree cloud volumes have these labels; a volume in several zones
lists them separated by `__`. Cost: four dictionary lookups per volume.
"""

from __future__ import annotations

from typing import NamedTuple

from bayplan.objects.storage import PersistentVolume

BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
BETA_REGION = "failure-domain.beta.kubernetes.io/region"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
TOPOLOGY_LABELS = (BETA_ZONE, BETA_REGION, ZONE, REGION)
SUCCESSOR = {BETA_ZONE: ZONE, BETA_REGION: REGION}
DELIMITER = "__"


class ZoneRequirement(NamedTuple):
    """A node that has any topology label must have one of these values under this key (or its successor)."""

    key: str
    values: frozenset[str]


def zone_requirements(volume: PersistentVolume) -> tuple[ZoneRequirement, ...]:
    """The node requirements of a volume's labels. A label with an empty part is ignored."""
    labels = volume.metadata.labels
    demands = (ZoneRequirement(key, zones_of_label(labels[key])) for key in TOPOLOGY_LABELS if key in labels)
    return tuple(demand for demand in demands if demand.values)


def zones_of_label(value: str) -> frozenset[str]:
    """The zones in a label's value; empty if one of them is empty."""
    zones = frozenset(zone.strip() for zone in value.split(DELIMITER))
    return zones if "" not in zones else frozenset()
