"""What do the controllers read of each kind? Pods typed, since there are many; workloads as trees, whole.

A template must reach its pods with every field that its author wrote, so a workload's spec and status stay as they
came. Pods are `objects.Pod` with what only a controller asks for: how containers ended, addresses, readiness gates.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from bayplan.client import Resource, resource_of
from bayplan.objects.core import Container, ContainerPort, ContainerStatus, Node, Pod, PodSpec, PodStatus
from bayplan.objects.kinds import Kind, kind_of
from bayplan.objects.meta import Api, Condition, KubeObject
from bayplan.objects.storage import PersistentVolume, PersistentVolumeSpec, StorageClass
from bayplan.objects.volumes import PersistentVolumeClaim

Tree = dict[str, Any]


class Whole(KubeObject, frozen=True):
    """An object whose spec and status are kept as they came."""

    spec: Tree = {}
    status: Tree = {}

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None


class Terminated(Api, frozen=True):
    exit_code: int = 0
    reason: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Running(Api, frozen=True):
    started_at: datetime | None = None


class Waiting(Api, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerState(Api, frozen=True):
    running: Running | None = None
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class SeenContainer(ContainerStatus, frozen=True):
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodAddress(Api, frozen=True):
    ip: str = ""


class NamedPort(ContainerPort, frozen=True):
    name: str = ""


class SeenContainerSpec(Container, frozen=True):
    ports: tuple[NamedPort, ...] = ()


class SeenPodSpec(PodSpec, frozen=True):
    containers: tuple[SeenContainerSpec, ...] = ()
    restart_policy: str = ""
    hostname: str = ""
    subdomain: str = ""
    active_deadline_seconds: int | None = None


class SeenPodStatus(PodStatus, frozen=True):
    reason: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodAddress, ...] = msgspec.field(default=(), name="podIPs")
    container_statuses: tuple[SeenContainer, ...] = ()
    init_container_statuses: tuple[SeenContainer, ...] = ()


class SeenPod(Pod, frozen=True):
    """A pod as controllers read it."""

    spec: SeenPodSpec = SeenPodSpec()
    status: SeenPodStatus = SeenPodStatus()

    @property
    def finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def active(self) -> bool:
        """Whether it runs or may yet, and nobody has deleted it."""
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
        """0 if it is available now, after how long it will be if it stays ready, None if it is not ready."""
        if not self.ready:
            return None
        if not min_ready_s:
            return 0.0
        since = self.ready_since
        return max(0.0, min_ready_s - (now - since).total_seconds()) if since is not None else None


class Revision(Whole, frozen=True):
    """A ControllerRevision."""

    data: Any = None
    revision: int = 0


class SeenVolumeSpec(PersistentVolumeSpec, frozen=True):
    persistent_volume_reclaim_policy: str = ""


class SeenVolume(PersistentVolume, frozen=True):
    spec: SeenVolumeSpec = SeenVolumeSpec()


class SeenClass(StorageClass, frozen=True):
    reclaim_policy: str | None = None
    mount_options: tuple[str, ...] = ()


class SeenSlice(KubeObject, frozen=True):
    """An EndpointSlice."""

    address_type: str = ""
    endpoints: list[Tree] | None = None
    ports: list[Tree] | None = None


class SeenEndpoints(KubeObject, frozen=True):
    subsets: list[Tree] | None = None


class Account(KubeObject, frozen=True):
    """A ServiceAccount."""


class ConfigMap(KubeObject, frozen=True):
    data: dict[str, str] = {}


def _resource(
    name: str, plural: str, group: str, struct: type[KubeObject] = Whole, *, namespaced: bool = True
) -> Resource:
    return resource_of(Kind(name, plural, group, struct, namespaced=namespaced))


PODS = _resource("Pod", "pods", "", SeenPod)
NODES = resource_of(kind_of(Node))
NAMESPACES = _resource("Namespace", "namespaces", "", namespaced=False)
REPLICA_SETS = _resource("ReplicaSet", "replicasets", "apps")
DEPLOYMENTS = _resource("Deployment", "deployments", "apps")
STATEFUL_SETS = _resource("StatefulSet", "statefulsets", "apps")
DAEMON_SETS = _resource("DaemonSet", "daemonsets", "apps")
REVISIONS = _resource("ControllerRevision", "controllerrevisions", "apps", Revision)
JOBS = _resource("Job", "jobs", "batch")
CRON_JOBS = _resource("CronJob", "cronjobs", "batch")
BUDGETS = _resource("PodDisruptionBudget", "poddisruptionbudgets", "policy")
QUOTAS = _resource("ResourceQuota", "resourcequotas", "")
SERVICES = _resource("Service", "services", "")
SLICES = _resource("EndpointSlice", "endpointslices", "discovery.k8s.io", SeenSlice)
ENDPOINTS = _resource("Endpoints", "endpoints", "", SeenEndpoints)
CLAIMS = resource_of(kind_of(PersistentVolumeClaim))
VOLUMES = _resource("PersistentVolume", "persistentvolumes", "", SeenVolume, namespaced=False)
CLASSES = _resource("StorageClass", "storageclasses", "storage.k8s.io", SeenClass, namespaced=False)
NODE_LEASES = _resource("Lease", "leases", "coordination.k8s.io")
ACCOUNTS = _resource("ServiceAccount", "serviceaccounts", "", Account)
DEVICE_CLAIMS = _resource("ResourceClaim", "resourceclaims", "resource.k8s.io")
CLAIM_TEMPLATES = _resource("ResourceClaimTemplate", "resourceclaimtemplates", "resource.k8s.io")
CONFIG_MAPS = _resource("ConfigMap", "configmaps", "", ConfigMap)
