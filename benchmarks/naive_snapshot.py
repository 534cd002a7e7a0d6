"""The view of a cluster that the naive twins read: a snapshot as lists of API objects.

Built once a decision. A twin that reads all volumes or devices for every node gets only those that concern the node;
otherwise its cost would be quadratic, which no realistic implementation would have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from bayplan.devices import DeviceAssumptions
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import DeviceClass, ResourceClaim, ResourceSlice
from bayplan.objects.storage import (
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from bayplan.snapshot import Snapshot
from naive.storage import claim_names
from naive.twin import Case, Cluster

Objects = Mapping[type[KubeObject], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class SnapshotObjects(Cluster):
    """A whole snapshot."""

    snapshot: Snapshot = field(kw_only=True)

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot) -> SnapshotObjects:
        return cls(tuple(snapshot.nodes.nodes[: len(snapshot)]), snapshot=snapshot)

    def pods_on(self, node: Node) -> list[Pod]:
        columns = self.snapshot.nodes
        return [info.pod for info in columns.pods[columns.index[node.name]]]

    def of(self, kind: type[KubeObject]) -> list[Any]:
        return list(self.snapshot.catalog.table(kind).values())


@dataclass(frozen=True, eq=False)
class NodeObjects(Cluster):
    """One node, its pods, and the related objects."""

    known: Objects = field(kw_only=True)

    def of(self, kind: type[KubeObject]) -> list[Any]:
        return list(self.known.get(kind, ()))


class NaiveSnapshot:
    """The objects for one pod."""

    def __init__(self, pod: Pod, snapshot: Snapshot, devices: DeviceAssumptions) -> None:
        self.case = Case(pod, SnapshotObjects.of_snapshot(snapshot))
        self._pod = pod
        self._catalog = snapshot.catalog
        self._devices = devices

    # storage

    def with_storage_of(self, node: Node) -> Case:
        """Claims of the pod and of the pods on the node, with their volumes, and unbound volumes."""
        pods = self.case.cluster.pods_on(node)
        claims = [claim for each in (self._pod, *pods) for claim in self._claims_of(each)]
        volumes = self._catalog.persistent_volumes
        own = [volumes[claim.spec.volume_name] for claim in claims if claim.spec.volume_name in volumes]
        csi_node = self._catalog.csi_nodes.get(node.name)
        objects: dict[type[KubeObject], Sequence[Any]] = {
            PersistentVolumeClaim: claims,
            PersistentVolume: [*own, *self._free_volumes],
            CsiNode: [] if csi_node is None else [csi_node],
            VolumeAttachment: self._attachments[node.name],
            StorageClass: list(self._catalog.storage_classes.values()),
            CsiDriver: list(self._catalog.csi_drivers.values()),
            CsiStorageCapacity: list(self._catalog.csi_storage_capacities.values()),
        }
        return Case(self._pod, NodeObjects((node,), tuple(pods), known=objects))

    def _claims_of(self, pod: Pod) -> Iterator[PersistentVolumeClaim]:
        for name, _ in claim_names(pod, with_ephemeral=True):
            claim = self._catalog.persistent_volume_claims.get(f"{pod.namespace}/{name}")
            if claim is not None:
                yield claim

    @cached_property
    def _free_volumes(self) -> list[PersistentVolume]:
        return [each for each in self._catalog.persistent_volumes.values() if each.spec.claim_ref is None]

    @cached_property
    def _attachments(self) -> Mapping[str, list[VolumeAttachment]]:
        found = defaultdict(list)
        for each in self._catalog.volume_attachments.values():
            found[each.spec.node_name].append(each)
        return found

    # devices

    def with_devices_of(self, node: Node) -> Case:
        """The slices of the node, the claims with allocated devices of it, and the pod's own claims."""
        slices = [*self._slices[node.name], *self._slices[None]]
        holders = [claim for name in {each.spec.pool.name for each in slices} for claim in self._holders[name]]
        objects: dict[type[KubeObject], Sequence[Any]] = {
            ResourceSlice: slices,
            ResourceClaim: [*self._own_claims, *holders],
            DeviceClass: list(self._catalog.device_classes.values()),
        }
        return Case(self._pod, NodeObjects((node,), tuple(self.case.cluster.pods_on(node)), known=objects))

    @cached_property
    def _slices(self) -> Mapping[str | None, list[ResourceSlice]]:
        """Slices by the node that they belong to; under None those that several nodes may use."""
        found = defaultdict(list)
        for each in self._catalog.resource_slices.values():
            found[each.spec.node_name].append(each)
        return found

    @cached_property
    def _holders(self) -> Mapping[str, list[ResourceClaim]]:
        """Claims by the pools of their allocated devices, written or assumed."""
        found = defaultdict(list)
        for claim in self._devices.claims.values():
            known = self._with_decision(claim)
            if known.status.allocation is not None:
                for name in {result.pool for result in known.status.allocation.devices.results}:
                    found[name].append(known)
        return found

    @cached_property
    def _own_claims(self) -> list[ResourceClaim]:
        names = [each.resource_claim_name for each in self._pod.spec.resource_claims]
        names += [each.resource_claim_name for each in self._pod.status.resource_claim_statuses]
        keys = [f"{self._pod.namespace}/{name}" for name in names if name is not None]
        return [self._with_decision(self._devices.claims[key]) for key in keys if key in self._devices.claims]

    def _with_decision(self, claim: ResourceClaim) -> ResourceClaim:
        pending = self._devices.pending(claim.metadata.uid)
        if pending is None:
            return claim
        return replace(claim, status=replace(claim.status, allocation=pending))
