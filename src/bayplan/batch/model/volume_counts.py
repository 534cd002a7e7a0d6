"""Volumes that a task attaches and attach limits of nodes, by CSI driver.

Volcano counts both as the resource `attachable-volumes-csi-<driver>`, in whole units. A task with a claim therefore
fits no node without the claim's driver, and its volumes count against quotas. A volume shared by two pods counts for
each. The volumes of a pod are resolved when the pod is added. They are resolved again while one of its claims, or the
class of a claim, is missing. Cost: a few lookups per claim; zero for pods without claims.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.tasks import Task
from bayplan.objects.core import Pod
from bayplan.objects.storage import CsiNode, PersistentVolume, PersistentVolumeClaim, StorageClass
from bayplan.snapshot import Catalog
from bayplan.volumes.claims import claim_uses, ownership_error, storage_class_of_claim
from bayplan.volumes.lookup import claim_key
from bayplan.volumes.volume_matcher import HOST_PATH_PROVISIONER

ATTACHABLE_VOLUMES_PREFIX = "attachable-volumes-csi-"
DRIVER_NAME = "csi.storage.k8s.io/csi-driver-name"
"""The storage class parameter that names the driver when the provisioner does not."""

IGNORED_PROVISIONERS = frozenset({"rancher.io/local-path", "hostpath.csi.k8s.io", HOST_PATH_PROVISIONER})
"""Volcano's two and Bayplan's host path provisioner. Nodes report no driver for their volumes, so counted volumes would
fit no node."""

UNLIMITED = float(2**31 - 1)

_LONGEST_NAME = 63
_KINDS = (PersistentVolumeClaim, PersistentVolume, StorageClass)


class VolumeCounts:
    """Volume counts of tasks and volume limits of nodes, read from the catalog."""

    def __init__(self, catalog: Catalog, ignored: Iterable[str] = ()) -> None:
        """Read from `catalog`. `ignored` lists provisioners that do not count, besides `IGNORED_PROVISIONERS`."""
        self._catalog = catalog
        self._ignored = IGNORED_PROVISIONERS.union(ignored)
        self._unresolved: set[str] = set()  # uids of pods with a missing claim or storage class
        self._revisions: tuple[int, ...] = ()
        self._csi_nodes: dict[str, CsiNode] = {}
        self._csi_revision = -1

    def with_volume_requests(self, task: Task) -> Task:
        self._unresolved.discard(task.uid)
        counts = self._count(task.pod) if task.pod.spec.volumes else {}
        if counts is None:
            self._unresolved.add(task.uid)
        return _add_volume_requests(task, counts)

    def with_volume_requests_uncached(self, task: Task) -> Task:
        """The same for a task that this object does not track."""
        return _add_volume_requests(task, self._count(task.pod) if task.pod.spec.volumes else {})

    def with_volume_limits(self, node_name: str, allocatable: Amounts) -> Amounts:
        csi_node = self._csi_nodes.get(node_name)
        if csi_node is None or not csi_node.spec.drivers:
            return allocatable
        offered = allocatable.clone()
        for driver in csi_node.spec.drivers:
            limit = driver.allocatable.count if driver.allocatable is not None else None
            offered.set_scalar(attach_resource_name(driver.name), UNLIMITED if limit is None else float(limit))
        return offered

    def newly_resolvable(self) -> list[str]:
        """The uids of pods to count again, because a missing claim or class may exist now."""
        revisions = tuple(self._catalog.revision(kind) for kind in _KINDS)
        if revisions == self._revisions:
            return []
        self._revisions = revisions
        found, self._unresolved = sorted(self._unresolved), set()
        return found

    def changed_nodes(self) -> list[str]:
        """The names of nodes whose limits may have changed."""
        if self._csi_revision == (revision := self._catalog.revision(CsiNode)):
            return []
        self._csi_revision = revision
        before, self._csi_nodes = self._csi_nodes, dict(self._catalog.table(CsiNode))
        return [name for name in before | self._csi_nodes if before.get(name) is not self._csi_nodes.get(name)]

    def _count(self, pod: Pod) -> Mapping[str, int] | None:
        """Number of volumes by driver; None while a claim or class is missing."""
        counts: dict[str, int] = {}
        try:
            for driver in self._drivers(pod):
                if driver and driver not in self._ignored:
                    counts[driver] = counts.get(driver, 0) + 1
        except LookupError:  # nothing is counted until all claims and classes exist
            return None
        return counts

    def _drivers(self, pod: Pod) -> Iterator[str]:
        """The driver of each claim of a pod, "" for a claim without one. Raises LookupError while it is unknown."""
        claims = self._catalog.table(PersistentVolumeClaim)
        for use in claim_uses(pod):
            claim = claims[claim_key(pod.namespace, use.name)]
            if use.ephemeral and ownership_error(pod, claim) is not None:
                raise LookupError(claim.name)
            yield self._driver(claim)

    def _driver(self, claim: PersistentVolumeClaim) -> str:
        volume = self._catalog.table(PersistentVolume).get(claim.spec.volume_name)
        if volume is not None:
            return volume.spec.csi.driver if volume.spec.csi is not None else ""
        name = storage_class_of_claim(claim)
        if not name:
            return ""
        storage_class = self._catalog.table(StorageClass)[name]
        return storage_class.parameters.get(DRIVER_NAME, storage_class.provisioner)


def _add_volume_requests(task: Task, counts: Mapping[str, int] | None) -> Task:
    if counts:
        request = task.resreq.clone()
        for driver, number in counts.items():
            request.add_scalar(attach_resource_name(driver), float(number))
        task.resreq = task.init_resreq = request
        task.best_effort = request.is_empty()
    return task


def attach_resource_name(driver: str) -> str:
    """The resource name of a driver's volumes. A long name is cut and a hash makes it unique."""
    if len(ATTACHABLE_VOLUMES_PREFIX) + len(driver) < _LONGEST_NAME:
        return ATTACHABLE_VOLUMES_PREFIX + driver
    return (
        ATTACHABLE_VOLUMES_PREFIX + driver[:23] + hashlib.sha1(driver.encode(), usedforsecurity=False).hexdigest()[:16]
    )
