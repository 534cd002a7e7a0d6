"""Finds a volume for a claim on a node, or checks whether one can be provisioned.

`binding` uses it for each delayed claim of a pod. Conditions that do not depend on the node (size, mode, labels,
access) are evaluated once per claim; a node costs a few selector matches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache

from bayplan.codec.quantity import Quantity, parse_quantity
from bayplan.objects.core import NodeSelector
from bayplan.objects.selectors.label_selectors import LabelMatcher, SelectorError, compile_label_selector
from bayplan.objects.selectors.node_selectors import (
    NodeSelectorMatcher,
    TopologyMatcher,
    compile_node_selector,
    compile_topology_terms,
)
from bayplan.objects.storage import (
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeNodeAffinity,
)
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.lookup import VolumeLookup
from bayplan.volumes.selector_index import (
    RequiredLabel,
    SelectorIndex,
    required_label_of_selector,
    required_label_of_terms,
)

NO_PROVISIONER = "kubernetes.io/no-provisioner"
HOST_PATH_PROVISIONER = "bayplan.dev/hostpath"
"""Bayplan's own provisioner, for volumes without storage: the volume binder creates them, and no node has its driver.
"""

FILESYSTEM = "Filesystem"
_ZERO = Quantity()

Labels = Mapping[str, str]


# Sizes and affinities.


def requested_size(claim: PersistentVolumeClaim) -> Quantity:
    """The requested size of a claim; zero if it has none."""
    requested = claim.spec.resources.requests.get("storage")
    return parse_quantity(requested) if requested is not None else _ZERO


def volume_size(volume: PersistentVolume) -> Quantity:
    size = volume.spec.capacity.get("storage")
    return parse_quantity(size) if size is not None else _ZERO


def largest_volume(capacity: CsiStorageCapacity) -> Quantity | None:
    """The largest volume of a storage pool; None if the pool does not report it."""
    limit = capacity.maximum_volume_size if capacity.maximum_volume_size is not None else capacity.capacity
    return parse_quantity(limit) if limit is not None else None


def required_nodes(affinity: VolumeNodeAffinity | None) -> NodeSelectorMatcher | None:
    """The nodes that can reach a volume; None for every node."""
    return _compile(affinity.required) if affinity is not None and affinity.required is not None else None


def reachable(affinity: VolumeNodeAffinity | None, labels: Labels) -> bool:
    """Whether a node with these labels can reach the volume. Fields of the node are ignored."""
    matcher = required_nodes(affinity)
    return matcher is None or matcher.matches(labels)


@lru_cache(maxsize=8192)
def _compile(selector: NodeSelector) -> NodeSelectorMatcher:
    return compile_node_selector(selector)


# Existing volumes.


def is_reserved_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether a volume is reserved for this claim. A reservation without uid is for any claim of that name."""
    ref = volume.spec.claim_ref
    if ref is None or ref.name != claim.name or ref.namespace != claim.namespace:
        return False
    return not ref.uid or ref.uid == claim.metadata.uid


class CandidateVolumes:
    """The volumes that could serve one claim, whatever the node."""

    __slots__ = ("_available", "_fault", "_index", "_reserved", "_was_searched", "claim")

    def __init__(self, claim: PersistentVolumeClaim, volumes: Iterable[PersistentVolume]) -> None:
        self.claim = claim
        self._fault: VolumeError | None = None
        self._was_searched = False
        self._index: SelectorIndex[PersistentVolume] | None = None
        size = requested_size(claim)
        suitable = [volume for volume in volumes if _matches_claim(volume, claim, size)]
        self._reserved = [volume for volume in suitable if is_reserved_for(volume, claim)]
        self._available = self._smallest_match(suitable)

    def find(self, labels: Labels, taken: Collection[str] = ()) -> PersistentVolume | None:
        """The volume for this claim on a node with these labels; raises if the claim's selector is malformed.

        If a volume is reserved for the claim, only this one is possible. Of all other volumes the smallest is used.
        """
        self.check()
        for volume in self._reserved:
            if volume.name not in taken:
                return volume if reachable(volume.spec.node_affinity, labels) else None
        fitting = (
            volume
            for volume in self._candidates_for(labels)
            if volume.name not in taken and reachable(volume.spec.node_affinity, labels)
        )
        return min(fitting, key=volume_size, default=None)

    def matches_any_node(self) -> PersistentVolume | None:
        """The volume for this claim regardless of the node: a reserved one, else the smallest."""
        self.check()
        return self._reserved[0] if self._reserved else min(self._available, key=volume_size, default=None)

    def check(self) -> None:
        """Raise if no node can be evaluated."""
        if self._fault is not None:
            raise self._fault

    def reaches(self) -> Iterator[NodeSelectorMatcher | None]:
        """The nodes with a volume for this claim if no other claim uses it (None: all nodes)."""
        for volume in self._reserved[:1] or self._available:
            yield required_nodes(volume.spec.node_affinity)

    def label_keys(self) -> Iterator[str]:
        """The node labels that `find` may read."""
        for volume in (*self._reserved, *self._available):
            yield from selector_keys(required_nodes(volume.spec.node_affinity))

    def _candidates_for(self, labels: Labels) -> Iterable[PersistentVolume]:
        """For one node all volumes are checked; the index is built for the second one."""
        if self._index is None and self._was_searched:
            self._index = SelectorIndex((volume, _required_label(volume)) for volume in self._available)
        self._was_searched = True
        return self._available if self._index is None else self._index.candidates_for(labels)

    def _smallest_match(self, volumes: Iterable[PersistentVolume]) -> list[PersistentVolume]:
        try:
            selector = _claim_selector(self.claim)
        except VolumeError as fault:
            self._fault = fault
            return []
        wanted = frozenset(self.claim.spec.access_modes)
        return [
            volume
            for volume in volumes
            if volume.spec.claim_ref is None
            and volume.status.phase == "Available"
            and (selector is None or selector.matches(volume.metadata.labels))
            and wanted.issubset(volume.spec.access_modes)
        ]


def selector_keys(selector: NodeSelectorMatcher | None) -> Iterator[str]:
    """The node labels that a volume's affinity reads."""
    for term in selector.terms if selector is not None else ():
        for requirement in term.requirements:
            yield requirement.key


def _matches_claim(volume: PersistentVolume, claim: PersistentVolumeClaim, size: Quantity) -> bool:
    spec = volume.spec
    return (
        not volume_size(volume) < size
        and (spec.volume_mode or FILESYSTEM) == (claim.spec.volume_mode or FILESYSTEM)
        and (spec.volume_attributes_class_name or "") == (claim.spec.volume_attributes_class_name or "")
        and volume.metadata.deletion_timestamp is None
    )


def _required_label(volume: PersistentVolume) -> RequiredLabel | None:
    matcher = required_nodes(volume.spec.node_affinity)
    return required_label_of_terms(matcher) if matcher is not None else None


def _claim_selector(claim: PersistentVolumeClaim) -> LabelMatcher | None:
    if claim.spec.selector is None:
        return None
    try:
        return compile_label_selector(claim.spec.selector)
    except SelectorError as fault:
        raise VolumeError(
            f"error creating internal label selector for claim: {claim.namespace}/{claim.name}: {fault.reason}"
        ) from None


# Volumes to provision.


class ProvisioningCheck:
    """Whether a volume for one claim can be provisioned, node by node."""

    __slots__ = ("_index", "claim", "pools", "topology")

    def __init__(self, claim: PersistentVolumeClaim, class_name: str, lookup: VolumeLookup) -> None:
        self.claim = claim
        self.topology: TopologyMatcher | None = None  # None: the class provisions no volumes
        self.pools: tuple[LabelMatcher, ...] | None = None  # nodes with enough capacity; None: capacity is not tracked
        storage_class = lookup.storage_classes.get(class_name)
        if storage_class is not None and storage_class.provisioner not in ("", NO_PROVISIONER):
            self.topology = compile_topology_terms(storage_class.allowed_topologies)
            self.pools = _capacity_selectors(claim, storage_class, lookup)
        self._index: SelectorIndex[LabelMatcher] | None = None

    def allowed(self, labels: Labels) -> bool:
        """Whether the class provisions volumes that a node with these labels can reach."""
        return self.topology is not None and self.topology.matches(labels)

    def has_room(self, labels: Labels) -> bool:
        """Whether some storage pool of the node is large enough, if the driver publishes capacities."""
        if self.pools is None:
            return True
        if self._index is None:
            self._index = SelectorIndex((selector, required_label_of_selector(selector)) for selector in self.pools)
        return any(selector.matches(labels) for selector in self._index.candidates_for(labels))

    def label_keys(self) -> Iterator[str]:
        """The node labels that the results depend on."""
        terms = self.topology.terms if self.topology is not None else ()
        for matcher in (*terms, *(self.pools or ())):
            for requirement in matcher.requirements:
                yield requirement.key


def _capacity_selectors(
    claim: PersistentVolumeClaim, storage_class: StorageClass, lookup: VolumeLookup
) -> tuple[LabelMatcher, ...] | None:
    """The nodes with enough storage for a claim; None if capacity is not tracked."""
    driver = lookup.csi_drivers.get(storage_class.provisioner)
    if "storage" not in claim.spec.resources.requests or driver is None or not driver.spec.storage_capacity:
        return None
    size = requested_size(claim).value()
    selectors = (
        _capacity_nodes(capacity)
        for capacity in lookup.csi_storage_capacities.values()
        if capacity.storage_class_name == storage_class.name and _is_large_enough(capacity, size)
    )
    return tuple(dict.fromkeys(selector for selector in selectors if selector is not None))


def _is_large_enough(capacity: CsiStorageCapacity, size: int) -> bool:
    limit = largest_volume(capacity)
    return limit is not None and limit.value() >= size


def _capacity_nodes(capacity: CsiStorageCapacity) -> LabelMatcher | None:
    """The nodes that can use a pool; None if the pool has no selector or an invalid one."""
    try:
        return compile_label_selector(capacity.node_topology) if capacity.node_topology is not None else None
    except SelectorError:
        return None
