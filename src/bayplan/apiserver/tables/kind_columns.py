"""Columns of a kind, and the cells of an object.

`kubectl get` requests lists as Tables and prints them. All columns are always returned; those of priority 1 are shown
with `-o wide`. Custom resources have the columns of their definition. Cost: some five microseconds a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.tables import core_kinds, custom_resources, network_storage_kinds, object_parts, workloads
from bayplan.apiserver.tables.pods import pod_cells, pod_row_conditions

Cells = Callable[[Tree, datetime], list[Any]]
_TYPES = {"i": "integer", "b": "boolean", "d": "date"}
_WORKLOAD = "Containers~, Images~, Selector~"
_COUNTS = "Desired/i, Current/i, Ready/i"
_CLASSES = "StorageClass, VolumeAttributesClass"
_BINDING = "Role, Age, Users~, Groups~, ServiceAccounts~"

_TABLES: Mapping[tuple[str, str], tuple[str, Cells]] = {
    ("", "ConfigMap"): ("Data, Age", core_kinds.config_map),
    ("", "Endpoints"): ("Endpoints, Age", network_storage_kinds.endpoints),
    ("", "Event"): (
        "-Last Seen, Type, Reason, Object, Subobject~, Source~, Message, First Seen~, Count~, Name~/n",
        core_kinds.event,
    ),
    ("", "Namespace"): ("Status, Age", core_kinds.namespace),
    ("", "Node"): (
        "Status, Roles, Age, Version, Internal-IP~, External-IP~, OS-Image~, Kernel-Version~, Container-Runtime~",
        core_kinds.node,
    ),
    ("", "PersistentVolume"): (
        f"Capacity, Access Modes, Reclaim Policy, Status, Claim, {_CLASSES}, Reason, Age, VolumeMode~",
        network_storage_kinds.persistent_volume,
    ),
    ("", "PersistentVolumeClaim"): (
        f"Status, Volume, Capacity, Access Modes, {_CLASSES}, Age, VolumeMode~",
        network_storage_kinds.volume_claim,
    ),
    ("", "Pod"): ("Ready, Status, Restarts, Age, IP~, Node~, Nominated Node~, Readiness Gates~", pod_cells),
    ("", "PodTemplate"): ("Containers, Images, Pod Labels", workloads.pod_template),
    ("", "ReplicationController"): (f"{_COUNTS}, Age, {_WORKLOAD}", workloads.replication_controller),
    ("", "ResourceQuota"): ("Request, Limit, Age", core_kinds.resource_quota),
    ("", "Secret"): ("Type, Data, Age", core_kinds.secret),
    ("", "Service"): ("Type, Cluster-IP, External-IP, Port(s), Age, Selector~", network_storage_kinds.service),
    ("", "ServiceAccount"): ("Age", object_parts.name_and_age),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"): (
        "Mutations/i, ParamKind, Age",
        core_kinds.admission_policy,
    ),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding"): (
        "PolicyName, ParamRef, Age",
        core_kinds.admission_policy_binding,
    ),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): ("Webhooks/i, Age", core_kinds.webhooks),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): (
        "Validations/i, ParamKind, Age",
        core_kinds.admission_policy,
    ),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): (
        "PolicyName, ParamRef, Age",
        core_kinds.admission_policy_binding,
    ),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): ("Webhooks/i, Age", core_kinds.webhooks),
    ("apiregistration.k8s.io", "APIService"): ("Service, Available, Age", core_kinds.api_service),
    ("apps", "ControllerRevision"): ("Controller, Revision, Age", workloads.controller_revision),
    ("apps", "DaemonSet"): (
        f"{_COUNTS}, Up-to-date/i, Available/i, Node Selector, Age, {_WORKLOAD}",
        workloads.daemon_set,
    ),
    ("apps", "Deployment"): (f"Ready, Up-to-date, Available, Age, {_WORKLOAD}", workloads.deployment),
    ("apps", "ReplicaSet"): (f"{_COUNTS}, Age, {_WORKLOAD}", workloads.replica_set),
    ("apps", "StatefulSet"): ("Ready, Age, Containers~, Images~", workloads.stateful_set),
    ("autoscaling", "HorizontalPodAutoscaler"): (
        "Reference, Targets, MinPods, MaxPods, Replicas, Age",
        workloads.autoscaler,
    ),
    ("autoscaling", "Scale"): ("-Name, Desired/i, Available/i, Age", core_kinds.scale),
    ("batch", "CronJob"): (
        f"Schedule, Timezone, Suspend/b, Active/i, Last Schedule, Age, {_WORKLOAD}",
        workloads.cron_job,
    ),
    ("batch", "Job"): (f"Status, Completions, Duration, Age, {_WORKLOAD}", workloads.job),
    ("certificates.k8s.io", "CertificateSigningRequest"): (
        "Age, SignerName, Requestor, RequestedDuration, Condition",
        core_kinds.certificate_signing_request,
    ),
    ("coordination.k8s.io", "Lease"): ("Holder, Age", core_kinds.lease),
    ("discovery.k8s.io", "EndpointSlice"): ("AddressType, Ports, Endpoints, Age", network_storage_kinds.endpoint_slice),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"): (
        "PriorityLevel, MatchingPrecedence, DistinguisherMethod, Age, MissingPL",
        core_kinds.flow_schema,
    ),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"): (
        "Type, NominalConcurrencyShares, Queues, HandSize, QueueLengthLimit, Age",
        core_kinds.priority_level,
    ),
    ("networking.k8s.io", "IPAddress"): (
        "ParentRef",
        network_storage_kinds.ip_address,
    ),  # upstream too sends an age without a column
    ("networking.k8s.io", "Ingress"): ("Class, Hosts, Address, Ports, Age", network_storage_kinds.ingress),
    ("networking.k8s.io", "IngressClass"): ("Controller, Parameters, Age", network_storage_kinds.ingress_class),
    ("networking.k8s.io", "NetworkPolicy"): ("Pod-Selector, Age", network_storage_kinds.network_policy),
    ("networking.k8s.io", "ServiceCIDR"): ("CIDRs, Age", network_storage_kinds.service_cidr),
    ("node.k8s.io", "RuntimeClass"): ("Handler, Age", core_kinds.runtime_class),
    ("policy", "PodDisruptionBudget"): ("Min Available, Max Unavailable, Allowed Disruptions/i, Age", workloads.budget),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): (_BINDING, core_kinds.role_binding),
    ("rbac.authorization.k8s.io", "RoleBinding"): (_BINDING, core_kinds.role_binding),
    ("resource.k8s.io", "DeviceClass"): ("Age", object_parts.name_and_age),
    ("resource.k8s.io", "ResourceClaim"): ("State, Age", core_kinds.resource_claim),
    ("resource.k8s.io", "ResourceClaimTemplate"): ("Age", object_parts.name_and_age),
    ("resource.k8s.io", "ResourceSlice"): ("Node, Driver, Pool, Age", core_kinds.resource_slice),
    ("scheduling.k8s.io", "PodGroup"): ("Policy, Workload, Status, Age", core_kinds.pod_group),
    ("scheduling.k8s.io", "PriorityClass"): (
        "Value/i, Global-Default/b, Age, PreemptionPolicy",
        core_kinds.priority_class,
    ),
    ("scheduling.k8s.io", "Workload"): ("Age", object_parts.name_and_age),
    ("storage.k8s.io", "CSIDriver"): (
        "AttachRequired/b, PodInfoOnMount/b, StorageCapacity/b, TokenRequests, RequiresRepublish/b, Modes, Age",
        network_storage_kinds.csi_driver,
    ),
    ("storage.k8s.io", "CSINode"): ("Drivers/i, Age", network_storage_kinds.csi_node),
    ("storage.k8s.io", "StorageClass"): (
        "Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age",
        network_storage_kinds.storage_class,
    ),
    ("storage.k8s.io", "VolumeAttachment"): (
        "Attacher/n, PV, Node, Attached/b, Age",
        network_storage_kinds.volume_attachment,
    ),
    ("storage.k8s.io", "VolumeAttributesClass"): ("DriverName, Age", network_storage_kinds.volume_attributes_class),
}
"""Columns after the name (after a dash: instead of the name) and the function of the cells. `~`: priority 1; `/i`,
`/b`, `/d`: type."""

_UNKNOWN: tuple[str, Cells] = ("Created At/d", object_parts.name_and_creation_time)


def columns(resource: ServedResource) -> list[Tree]:
    if resource.definition is not None:
        return custom_resources.columns(resource.definition)
    return _columns(_TABLES.get(_key(resource), _UNKNOWN)[0])


def cells(resource: ServedResource, item: Tree, now: datetime) -> list[Any]:
    if resource.definition is not None:
        return custom_resources.cells(resource.definition, item, now)
    return _TABLES.get(_key(resource), _UNKNOWN)[1](item, now)


def row_conditions(resource: ServedResource, item: Tree) -> list[Tree]:
    """The conditions of a row; only rows of finished pods have one."""
    return pod_row_conditions(item) if resource.kind == "Pod" and not resource.group else []


def _key(resource: ServedResource) -> tuple[str, str]:
    """Key of the kind in the table; both groups of events share one."""
    return (
        ("", "Event")
        if resource.kind == "Event" and resource.group == "events.k8s.io"
        else (resource.group, resource.kind)
    )


@lru_cache(maxsize=128)
def _columns(text: str) -> list[Tree]:
    name_columns = [] if text.startswith("-") else [_column("Name/n")]
    return [*name_columns, *map(_column, text.removeprefix("-").split(", "))]


def _column(text: str) -> Tree:
    header, _, type_mark = text.partition("/")
    name = header.removesuffix("~")
    return {
        "name": name,
        "type": _TYPES.get(type_mark, "string"),
        "format": "name" if type_mark == "n" else "",
        "description": "",
        "priority": int(header.endswith("~")),
    }
