"""Is this object as it must be; may it be changed like this?

The writing side asks after `strategies`, with objects that have their defaults. Every fault is told, in the words of
the API server; an empty list is the usual answer. Custom resources are checked against their schema elsewhere; their
metadata is checked here. A plain pod takes some twenty microseconds, most kinds less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bayplan.cluster.kinds import Resource, Tree
from bayplan.cluster.rules import signing
from bayplan.cluster.rules.checking import (
    access,
    autoscalers,
    basics,
    devices,
    events,
    jobs,
    pod_updates,
    pods,
    services,
    storage,
    webhooks,
    workloads,
)
from bayplan.cluster.rules.checking.metadata import check_metadata, check_metadata_update
from bayplan.cluster.rules.checking.statuses import check_status
from bayplan.cluster.rules.field_errors import Faults, FieldError
from bayplan.cluster.rules.names import dns_subdomain

OnCreate = Callable[[Faults, Tree], None]
OnUpdate = Callable[[Faults, Tree, Tree], None]

_CORE: Mapping[str, tuple[OnCreate, OnUpdate]] = {
    "ConfigMap": (basics.check_config_map, basics.check_config_map_update),
    "Endpoints": (services.check_endpoints, services.check_endpoints_update),
    "Event": (events.check_core_event, events.check_core_event_update),
    "LimitRange": (basics.check_limit_range, basics.check_limit_range_update),
    "Namespace": (basics.check_namespace, basics.check_metadata_only_update),
    "Node": (basics.check_node, basics.check_node_update),
    "PersistentVolume": (storage.check_volume, storage.check_volume_update),
    "PersistentVolumeClaim": (storage.check_claim, storage.check_claim_update),
    "Pod": (pods.check_new_pod, pod_updates.check_pod_update),
    "PodTemplate": (basics.check_pod_template, basics.check_pod_template_update),
    "ReplicationController": (workloads.check_replication_controller, workloads.check_replication_controller_update),
    "ResourceQuota": (basics.check_quota, basics.check_quota_update),
    "Secret": (basics.check_secret, basics.check_secret_update),
    "Service": (services.check_new_service, services.check_service_update),
    "ServiceAccount": (basics.check_plain, basics.check_plain_update),
}
_APPS: Mapping[str, tuple[OnCreate, OnUpdate]] = {
    "ControllerRevision": (workloads.check_revision, workloads.check_revision_update),
    "DaemonSet": (workloads.check_daemon_set, workloads.check_daemon_set_update),
    "Deployment": (workloads.check_deployment, workloads.check_deployment_update),
    "ReplicaSet": (workloads.check_replica_set, workloads.check_replica_set_update),
    "StatefulSet": (workloads.check_stateful_set, workloads.check_stateful_set_update),
}
_BATCH: Mapping[str, tuple[OnCreate, OnUpdate]] = {
    "CronJob": (jobs.check_cron_job, jobs.check_cron_job_update),
    "Job": (jobs.check_job, jobs.check_job_update),
}
_NETWORKING: Mapping[str, tuple[OnCreate, OnUpdate]] = {
    "Ingress": (access.check_new_ingress, access.check_ingress_update),
    "IngressClass": (access.check_ingress_class, access.check_ingress_class_update),
    "NetworkPolicy": (access.check_network_policy, access.check_network_policy_update),
}
_RBAC: Mapping[str, tuple[OnCreate, OnUpdate]] = {
    "ClusterRole": (access.check_cluster_role, access.check_cluster_role_update),
    "ClusterRoleBinding": (access.check_cluster_binding, access.check_cluster_binding_update),
    "Role": (access.check_role, access.check_role_update),
    "RoleBinding": (access.check_binding, access.check_binding_update),
}
_RESOURCE: Mapping[str, tuple[OnCreate, OnUpdate]] = {
    "DeviceClass": (devices.check_device_class, devices.check_device_class_update),
    "ResourceClaim": (devices.check_resource_claim, devices.check_resource_claim_update),
    "ResourceClaimTemplate": (devices.check_claim_template, devices.check_claim_template_update),
    "ResourceSlice": (devices.check_resource_slice, devices.check_resource_slice_update),
}
_STORAGE: Mapping[str, tuple[OnCreate, OnUpdate]] = {
    "CSIDriver": (storage.check_csi_driver, storage.check_csi_driver_update),
    "CSINode": (storage.check_csi_node, storage.check_csi_node_update),
    "CSIStorageCapacity": (storage.check_capacity, storage.check_capacity_update),
    "StorageClass": (storage.check_storage_class, storage.check_storage_class_update),
    "VolumeAttachment": (storage.check_attachment, storage.check_attachment_update),
    "VolumeAttributesClass": (storage.check_attributes_class, storage.check_attributes_class_update),
}
_WEBHOOKS: Mapping[str, tuple[OnCreate, OnUpdate]] = dict.fromkeys(
    ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
    (webhooks.check_webhooks, webhooks.check_webhooks_update),
)
_CHECKS: Mapping[str, Mapping[str, tuple[OnCreate, OnUpdate]]] = {
    "": _CORE,
    "admissionregistration.k8s.io": _WEBHOOKS,
    "apps": _APPS,
    "autoscaling": {"HorizontalPodAutoscaler": (autoscalers.check_autoscaler, autoscalers.check_autoscaler_update)},
    "batch": _BATCH,
    "certificates.k8s.io": {"CertificateSigningRequest": (signing.check_request, signing.check_request_update)},
    "coordination.k8s.io": {"Lease": (basics.check_lease, basics.check_lease_update)},
    "discovery.k8s.io": {"EndpointSlice": (services.check_slice, services.check_slice_update)},
    "events.k8s.io": {"Event": (events.check_new_event, events.check_new_event_update)},
    "networking.k8s.io": _NETWORKING,
    "node.k8s.io": {"RuntimeClass": (basics.check_runtime_class, basics.check_runtime_class_update)},
    "policy": {"PodDisruptionBudget": (workloads.check_new_budget, workloads.check_budget_update)},
    "rbac.authorization.k8s.io": _RBAC,
    "resource.k8s.io": _RESOURCE,
    "scheduling.k8s.io": {"PriorityClass": (basics.check_priority_class, basics.check_priority_class_update)},
    "storage.k8s.io": _STORAGE,
}


def on_create(resource: Resource, item: Tree) -> list[FieldError]:
    """The faults of a new object."""
    faults = Faults()
    checks = None if resource.custom else _CHECKS.get(resource.group, {}).get(resource.kind)
    if checks is not None:
        checks[0](faults, item)
    else:
        check_metadata(faults, item["metadata"], dns_subdomain, namespaced=resource.namespaced, kube=False)
    return faults


_PARTS: Mapping[str, OnUpdate] = {
    "approval": signing.check_approval,
    "ephemeralcontainers": pod_updates.check_ephemeral_containers,
    "resize": pod_updates.check_resize,
}


def on_update(resource: Resource, item: Tree, old: Tree, subresource: str = "") -> list[FieldError]:
    """The faults of a change, by the main resource or by one of its sub-resources."""
    faults = Faults()
    checks = None if resource.custom else _CHECKS.get(resource.group, {}).get(resource.kind)
    check_metadata_update(faults, item["metadata"], old["metadata"], kube=False)
    if subresource in _PARTS:
        _PARTS[subresource](faults, item, old)
    elif subresource == "status" and resource.kind == "Pod" and not resource.group:
        pod_updates.check_pod_status(faults, item, old)
    elif subresource == "status" and not resource.custom:
        if resource.kind in ("Node", "CertificateSigningRequest") and checks is not None:
            checks[1](faults, item, old)
        check_status(faults, resource, item, old)
    elif not subresource and checks is not None:
        checks[1](faults, item, old)
    return faults
