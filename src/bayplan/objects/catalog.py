"""Index of all API objects except nodes and pods, by kind and key.

The cache writes it as events arrive; plugins read it during an attempt. kube-scheduler's plugins read live listers in
the same way, so nothing is copied: a snapshot refers to the catalog. `revision(kind)` counts the changes of a kind, so
that values derived from all objects of a kind can be cached until it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar, cast

from bayplan.objects.core import Namespace, ReplicationController, ResourceQuota, Service
from bayplan.objects.kai.bind_request import BindRequest
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
from bayplan.objects.volcano import types as volcano
from bayplan.objects.workloads import PodDisruptionBudget, PodGroup, PriorityClass, ReplicaSet, StatefulSet

T = TypeVar("T", bound=KubeObject)
_NO_LABELS: dict[str, str] = {}

CATALOG_KINDS: tuple[type[KubeObject], ...] = (
    Namespace,
    ResourceQuota,
    Service,
    ReplicationController,
    ReplicaSet,
    StatefulSet,
    PodDisruptionBudget,
    PriorityClass,
    PodGroup,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    CsiNode,
    CsiDriver,
    CsiStorageCapacity,
    VolumeAttachment,
    ResourceClaim,
    ResourceSlice,
    DeviceClass,
    volcano.PodGroup,
    volcano.Queue,
    volcano.HyperNode,
    volcano.Numatopology,
    volcano.NodeShard,
    BindRequest,
)


_SELECTOR_OWNER_KINDS = frozenset({Service, ReplicationController, ReplicaSet, StatefulSet})


class Catalog:
    """Tables of API objects. Keys are `namespace/name`, or the name of a cluster-scoped object."""

    def __init__(self, objects: Iterable[KubeObject] = ()) -> None:
        self._tables: dict[type[KubeObject], dict[str, KubeObject]] = {kind: {} for kind in CATALOG_KINDS}
        self._revisions: dict[type[KubeObject], int] = dict.fromkeys(CATALOG_KINDS, 0)
        self.membership_version = 0  # changes with services and owners, which decide what pods belong together
        for item in objects:
            self.upsert(item)

    def upsert(self, item: KubeObject) -> None:
        self._tables[type(item)][item.key] = item
        self._count_change(type(item))

    def delete(self, item: KubeObject) -> None:
        if self._tables[type(item)].pop(item.key, None) is not None:
            self._count_change(type(item))

    def _count_change(self, kind: type[KubeObject]) -> None:
        self._revisions[kind] += 1
        if kind in _SELECTOR_OWNER_KINDS:
            self.membership_version += 1

    def revision(self, kind: type[KubeObject]) -> int:
        return self._revisions[kind]

    def table(self, kind: type[T]) -> Mapping[str, T]:
        return cast("Mapping[str, T]", self._tables[kind])

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        """The labels of a namespace; empty for an unknown one."""
        namespace = self.namespaces.get(name)
        return namespace.metadata.labels if namespace is not None else _NO_LABELS

    @property
    def namespaces(self) -> Mapping[str, Namespace]:
        return self.table(Namespace)

    @property
    def services(self) -> Mapping[str, Service]:
        return self.table(Service)

    @property
    def replication_controllers(self) -> Mapping[str, ReplicationController]:
        return self.table(ReplicationController)

    @property
    def replica_sets(self) -> Mapping[str, ReplicaSet]:
        return self.table(ReplicaSet)

    @property
    def stateful_sets(self) -> Mapping[str, StatefulSet]:
        return self.table(StatefulSet)

    @property
    def pod_disruption_budgets(self) -> Mapping[str, PodDisruptionBudget]:
        return self.table(PodDisruptionBudget)

    @property
    def priority_classes(self) -> Mapping[str, PriorityClass]:
        return self.table(PriorityClass)

    @property
    def pod_groups(self) -> Mapping[str, PodGroup]:
        return self.table(PodGroup)

    @property
    def persistent_volumes(self) -> Mapping[str, PersistentVolume]:
        return self.table(PersistentVolume)

    @property
    def persistent_volume_claims(self) -> Mapping[str, PersistentVolumeClaim]:
        return self.table(PersistentVolumeClaim)

    @property
    def storage_classes(self) -> Mapping[str, StorageClass]:
        return self.table(StorageClass)

    @property
    def csi_nodes(self) -> Mapping[str, CsiNode]:
        return self.table(CsiNode)

    @property
    def csi_drivers(self) -> Mapping[str, CsiDriver]:
        return self.table(CsiDriver)

    @property
    def csi_storage_capacities(self) -> Mapping[str, CsiStorageCapacity]:
        return self.table(CsiStorageCapacity)

    @property
    def volume_attachments(self) -> Mapping[str, VolumeAttachment]:
        return self.table(VolumeAttachment)

    @property
    def resource_claims(self) -> Mapping[str, ResourceClaim]:
        return self.table(ResourceClaim)

    @property
    def resource_slices(self) -> Mapping[str, ResourceSlice]:
        return self.table(ResourceSlice)

    @property
    def device_classes(self) -> Mapping[str, DeviceClass]:
        return self.table(DeviceClass)
