"""Paths of the kinds that the driver reads and writes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """Of one object, of a namespace, or without arguments of all namespaces."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"namespaces/{namespace}" if self.namespaced and namespace else ""
        return "/".join(filter(None, (base, inside, self.plural, name, sub)))


_ALL = (
    Kind("Namespace", "", "v1", "namespaces", namespaced=False),
    Kind("Node", "", "v1", "nodes", namespaced=False),
    Kind("Pod", "", "v1", "pods"),
    Kind("ServiceAccount", "", "v1", "serviceaccounts"),
    Kind("PersistentVolume", "", "v1", "persistentvolumes", namespaced=False),
    Kind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims"),
    Kind("StorageClass", "storage.k8s.io", "v1", "storageclasses", namespaced=False),
    Kind("CSINode", "storage.k8s.io", "v1", "csinodes", namespaced=False),
    Kind("CSIDriver", "storage.k8s.io", "v1", "csidrivers", namespaced=False),
    Kind("PriorityClass", "scheduling.k8s.io", "v1", "priorityclasses", namespaced=False),
    Kind("Lease", "coordination.k8s.io", "v1", "leases"),
    Kind("ResourceClaim", "resource.k8s.io", "v1", "resourceclaims"),
    Kind("ResourceSlice", "resource.k8s.io", "v1", "resourceslices", namespaced=False),
    Kind("DeviceClass", "resource.k8s.io", "v1", "deviceclasses", namespaced=False),
    Kind("PodGroup", "scheduling.volcano.sh", "v1beta1", "podgroups"),
    Kind("Queue", "scheduling.volcano.sh", "v1beta1", "queues", namespaced=False),
    Kind("BindRequest", "scheduling.run.ai", "v1alpha2", "bindrequests"),
)
KINDS = {each.name: each for each in _ALL}
