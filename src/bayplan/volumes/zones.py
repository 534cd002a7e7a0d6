"""Which zones and regions does a volume's own labels tie it to?

Asked by VolumeZone for each bound volume of a pod. The labels are those that in-tree cloud volumes carry; a volume in
several zones lists them with `__` between. Cost: four dictionary lookups a volume.
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
    """What a volume's labels ask of a node. A label with an empty part says nothing that can be relied on."""
    labels = volume.metadata.labels
    demands = (ZoneRequirement(key, zones_of_label(labels[key])) for key in TOPOLOGY_LABELS if key in labels)
    return tuple(demand for demand in demands if demand.values)


def zones_of_label(value: str) -> frozenset[str]:
    """The zones in a label's value; none where one of them is empty."""
    zones = frozenset(zone.strip() for zone in value.split(DELIMITER))
    return zones if "" not in zones else frozenset()
