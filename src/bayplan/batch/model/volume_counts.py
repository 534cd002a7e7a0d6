"""How many volumes does a task attach, and how many can a node take, by CSI driver?

Volcano counts both as a resource, `attachable-volumes-csi-<driver>`, in whole units: a task with a claim fits no node
without its driver, and takes part in quotas with its volumes. A volume that two pods share counts for each. What a pod
attaches is found out when the pod comes; once more, as long as a claim of its, or the class of that, is not there yet.
Cost: a few lookups a claim; nothing for pods without claims.
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
"""The parameter of a storage class that names its driver where the provisioner does not."""

IGNORED_PROVISIONERS = frozenset({"rancher.io/local-path", "hostpath.csi.k8s.io", HOST_PATH_PROVISIONER})
"""Volcano's two, and our own: what they make lies on nodes that name no driver for it, and would fit none of them."""

UNLIMITED = float(2**31 - 1)

_LONGEST_NAME = 63
_KINDS = (PersistentVolumeClaim, PersistentVolume, StorageClass)


class VolumeCounts:
    """Volumes of tasks, and limits of nodes, as the catalog has them."""

    def __init__(self, catalog: Catalog, ignored: Iterable[str] = ()) -> None:
        """`ignored`: provisioners that do not count, besides those that never do."""
        self._catalog = catalog
        self._ignored = IGNORED_PROVISIONERS.union(ignored)
        self._unresolved: set[str] = set()  # uids of pods of which something is not there yet
        self._revisions: tuple[int, ...] = ()
        self._csi_nodes: dict[str, CsiNode] = {}
        self._csi_revision = -1

    def with_volume_requests(self, task: Task) -> Task:
        """The task, what it attaches among what it asks for."""
        self._unresolved.discard(task.uid)
        counts = self._count(task.pod) if task.pod.spec.volumes else {}
        if counts is None:
            self._unresolved.add(task.uid)
        return _add_volume_requests(task, counts)

    def with_volume_requests_uncached(self, task: Task) -> Task:
        """The same for a task of which nothing is remembered."""
        return _add_volume_requests(task, self._count(task.pod) if task.pod.spec.volumes else {})

    def with_volume_limits(self, node_name: str, allocatable: Amounts) -> Amounts:
        """What a node offers, with what can be attached to it."""
        csi_node = self._csi_nodes.get(node_name)
        if csi_node is None or not csi_node.spec.drivers:
            return allocatable
        offered = allocatable.clone()
        for driver in csi_node.spec.drivers:
            limit = driver.allocatable.count if driver.allocatable is not None else None
            offered.set_scalar(attach_resource_name(driver.name), UNLIMITED if limit is None else float(limit))
        return offered

    def newly_resolvable(self) -> list[str]:
        """The uids of pods that should be counted again: something that was missing may be there now."""
        revisions = tuple(self._catalog.revision(kind) for kind in _KINDS)
        if revisions == self._revisions:
            return []
        self._revisions = revisions
        found, self._unresolved = sorted(self._unresolved), set()
        return found

    def changed_nodes(self) -> list[str]:
        """The names of nodes whose limits may be others than before."""
        if self._csi_revision == (revision := self._catalog.revision(CsiNode)):
            return []
        self._csi_revision = revision
        before, self._csi_nodes = self._csi_nodes, dict(self._catalog.table(CsiNode))
        return [name for name in before | self._csi_nodes if before.get(name) is not self._csi_nodes.get(name)]

    def _count(self, pod: Pod) -> Mapping[str, int] | None:
        """Volumes by driver; None as long as not everything is there."""
        counts: dict[str, int] = {}
        try:
            for driver in self._drivers(pod):
                if driver and driver not in self._ignored:
                    counts[driver] = counts.get(driver, 0) + 1
        except LookupError:  # nothing counts until everything is there
            return None
        return counts

    def _drivers(self, pod: Pod) -> Iterator[str]:
        """The driver of each claim of a pod, nothing for one without; raises where that cannot be told yet."""
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
    """The task, volumes among what it asks for."""
    if counts:
        asked = task.resreq.clone()
        for driver, number in counts.items():
            asked.add_scalar(attach_resource_name(driver), float(number))
        task.resreq = task.init_resreq = asked
        task.best_effort = asked.is_empty()
    return task


def attach_resource_name(driver: str) -> str:
    """The name under which volumes of a driver are counted; long ones are cut and made unique again."""
    if len(ATTACHABLE_VOLUMES_PREFIX) + len(driver) < _LONGEST_NAME:
        return ATTACHABLE_VOLUMES_PREFIX + driver
    return (
        ATTACHABLE_VOLUMES_PREFIX + driver[:23] + hashlib.sha1(driver.encode(), usedforsecurity=False).hexdigest()[:16]
    )
