"""API types that the controllers read. Pods are typed, since there are many; workloads keep spec and status as trees.

A pod must get every field of its template, so a workload's spec and status stay as the API server sent them. Pods are
`objects.Pod` with fields that only controllers need: container states, addresses, readiness gates.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from bayplan.client import GroupVersionResource, resource_of
from bayplan.objects.core import Container, ContainerPort, ContainerStatus, Node, Pod, PodSpec, PodStatus
from bayplan.objects.kinds import Kind, kind_of
from bayplan.objects.meta import Api, Condition, KubeObject
from bayplan.objects.storage import PersistentVolume, PersistentVolumeSpec, StorageClass
from bayplan.objects.volumes import PersistentVolumeClaim

Tree = dict[str, Any]


class UntypedObject(KubeObject, frozen=True):
    """An object whose spec and status are not decoded."""

    spec: Tree = {}
    status: Tree = {}

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None


class ContainerStateTerminated(Api, frozen=True):
    exit_code: int = 0
    reason: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerStateRunning(Api, frozen=True):
    started_at: datetime | None = None


class ContainerStateWaiting(Api, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerState(Api, frozen=True):
    running: ContainerStateRunning | None = None
    waiting: ContainerStateWaiting | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatusFields(ContainerStatus, frozen=True):
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodIp(Api, frozen=True):
    ip: str = ""


class ContainerPortFields(ContainerPort, frozen=True):
    name: str = ""


class ContainerFields(Container, frozen=True):
    ports: tuple[ContainerPortFields, ...] = ()


class PodSpecFields(PodSpec, frozen=True):
    containers: tuple[ContainerFields, ...] = ()
    restart_policy: str = ""
    hostname: str = ""
    subdomain: str = ""
    active_deadline_seconds: int | None = None


class PodStatusFields(PodStatus, frozen=True):
    reason: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIp, ...] = msgspec.field(default=(), name="podIPs")
    container_statuses: tuple[ContainerStatusFields, ...] = ()
    init_container_statuses: tuple[ContainerStatusFields, ...] = ()


class PodFields(Pod, frozen=True):
    """A pod with the fields that controllers read."""

    spec: PodSpecFields = PodSpecFields()
    status: PodStatusFields = PodStatusFields()

    @property
    def finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def active(self) -> bool:
        """Whether the pod has not ended and is not being deleted."""
        return not self.finished and not self.terminating

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.status.conditions if each.type == kind), None)

    @property
    def ready(self) -> bool:
        found = self.condition("Ready")
        return found is not None and found.status == "True"

    @property
    def ready_since(self) -> datetime | None:
        found = self.condition("Ready")
        return found.last_transition_time if found is not None and found.status == "True" else None

    def available_in_s(self, min_ready_s: int, now: datetime) -> float | None:
        """Seconds until the pod is available if it stays ready: 0 if it is available now, None if it is not ready."""
        if not self.ready:
            return None
        if not min_ready_s:
            return 0.0
        since = self.ready_since
        return max(0.0, min_ready_s - (now - since).total_seconds()) if since is not None else None


class ControllerRevision(UntypedObject, frozen=True):
    data: Any = None
    revision: int = 0


class PersistentVolumeSpecFields(PersistentVolumeSpec, frozen=True):
    persistent_volume_reclaim_policy: str = ""


class PersistentVolumeFields(PersistentVolume, frozen=True):
    spec: PersistentVolumeSpecFields = PersistentVolumeSpecFields()


class StorageClassFields(StorageClass, frozen=True):
    reclaim_policy: str | None = None
    mount_options: tuple[str, ...] = ()


class EndpointSliceFields(KubeObject, frozen=True):
    address_type: str = ""
    endpoints: list[Tree] | None = None
    ports: list[Tree] | None = None


class ServiceAccountFields(KubeObject, frozen=True):
    """A ServiceAccount."""


class ConfigMap(KubeObject, frozen=True):
    data: dict[str, str] = {}


def _resource(
    name: str, plural: str, group: str, struct: type[KubeObject] = UntypedObject, *, namespaced: bool = True
) -> GroupVersionResource:
    return resource_of(Kind(name, plural, group, struct, namespaced=namespaced))


PODS = _resource("Pod", "pods", "", PodFields)
NODES = resource_of(kind_of(Node))
NAMESPACES = _resource("Namespace", "namespaces", "", namespaced=False)
REPLICA_SETS = _resource("ReplicaSet", "replicasets", "apps")
DEPLOYMENTS = _resource("Deployment", "deployments", "apps")
STATEFUL_SETS = _resource("StatefulSet", "statefulsets", "apps")
DAEMON_SETS = _resource("DaemonSet", "daemonsets", "apps")
CONTROLLER_REVISIONS = _resource("ControllerRevision", "controllerrevisions", "apps", ControllerRevision)
JOBS = _resource("Job", "jobs", "batch")
CRON_JOBS = _resource("CronJob", "cronjobs", "batch")
POD_DISRUPTION_BUDGETS = _resource("PodDisruptionBudget", "poddisruptionbudgets", "policy")
RESOURCE_QUOTAS = _resource("ResourceQuota", "resourcequotas", "")
SERVICES = _resource("Service", "services", "")
ENDPOINT_SLICES = _resource("EndpointSlice", "endpointslices", "discovery.k8s.io", EndpointSliceFields)
PERSISTENT_VOLUME_CLAIMS = resource_of(kind_of(PersistentVolumeClaim))
PERSISTENT_VOLUMES = _resource("PersistentVolume", "persistentvolumes", "", PersistentVolumeFields, namespaced=False)
STORAGE_CLASSES = _resource("StorageClass", "storageclasses", "storage.k8s.io", StorageClassFields, namespaced=False)
NODE_LEASES = _resource("Lease", "leases", "coordination.k8s.io")
SERVICE_ACCOUNTS = _resource("ServiceAccount", "serviceaccounts", "", ServiceAccountFields)
RESOURCE_CLAIMS = _resource("ResourceClaim", "resourceclaims", "resource.k8s.io")
RESOURCE_CLAIM_TEMPLATES = _resource("ResourceClaimTemplate", "resourceclaimtemplates", "resource.k8s.io")
CONFIG_MAPS = _resource("ConfigMap", "configmaps", "", ConfigMap)
