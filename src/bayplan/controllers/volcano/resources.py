"""Volcano's resources on the API server. Their objects are read as trees, as in the other controllers."""

from __future__ import annotations

from bayplan.client import GroupVersionResource, resource_of
from bayplan.controllers.core.api_types import ConfigMap, Tree, UntypedObject
from bayplan.objects.kinds import Kind
from bayplan.objects.meta import KubeObject, OwnerReference


class Command(KubeObject, frozen=True):
    """bus.volcano.sh Command: an action that a user requests for a job or a queue."""

    action: str = ""
    target: OwnerReference | None = None
    reason: str = ""
    message: str = ""


def _resource(
    name: str,
    plural: str,
    group: str,
    version: str,
    struct: type[KubeObject] = UntypedObject,
    *,
    namespaced: bool = True,
) -> GroupVersionResource:
    return resource_of(Kind(name, plural, group, struct, namespaced=namespaced, versions=(version,)))


VC_JOBS = _resource("Job", "jobs", "batch.volcano.sh", "v1alpha1")
VC_CRON_JOBS = _resource("CronJob", "cronjobs", "batch.volcano.sh", "v1alpha1")
POD_GROUPS = _resource("PodGroup", "podgroups", "scheduling.volcano.sh", "v1beta1")
QUEUES = _resource("Queue", "queues", "scheduling.volcano.sh", "v1beta1", namespaced=False)
JOB_FLOWS = _resource("JobFlow", "jobflows", "flow.volcano.sh", "v1alpha1")
JOB_TEMPLATES = _resource("JobTemplate", "jobtemplates", "flow.volcano.sh", "v1alpha1")
HYPER_NODES = _resource("HyperNode", "hypernodes", "topology.volcano.sh", "v1alpha1", namespaced=False)
COMMANDS = _resource("Command", "commands", "bus.volcano.sh", "v1alpha1", Command)
SECRETS = GroupVersionResource("", "v1", "secrets")
NETWORK_POLICIES = GroupVersionResource("networking.k8s.io", "v1", "networkpolicies")
CONFIG_MAPS = _resource("ConfigMap", "configmaps", "", "v1", ConfigMap)


def object_to_dict(item: UntypedObject) -> Tree:
    """Convert an object to the tree that the admission rules read."""
    meta = item.metadata
    metadata: Tree = {"name": meta.name, "uid": meta.uid, "labels": meta.labels, "annotations": meta.annotations}
    if meta.namespace:
        metadata["namespace"] = meta.namespace
    return {"metadata": metadata, "spec": item.spec, "status": item.status}
