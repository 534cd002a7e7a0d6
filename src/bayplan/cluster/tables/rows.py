"""Which columns does a kind have, and which cells does an object put into them?

`kubectl get` asks for lists as Tables and prints what it gets. All columns are always sent; those of priority 1 show
with `-o wide`. Custom resources have the columns of their definition. Some five microseconds a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from bayplan.cluster.kinds import Resource, Tree
from bayplan.cluster.tables import basics, custom, networks, parts, workloads
from bayplan.cluster.tables.pods import pod_cells, pod_row_conditions

Cells = Callable[[Tree, datetime], list[Any]]
_TYPES = {"i": "integer", "b": "boolean", "d": "date"}
_WORKLOAD = "Containers~, Images~, Selector~"
_COUNTS = "Desired/i, Current/i, Ready/i"
_CLASSES = "StorageClass, VolumeAttributesClass"
_BINDING = "Role, Age, Users~, Groups~, ServiceAccounts~"

_TABLES: Mapping[tuple[str, str], tuple[str, Cells]] = {
    ("", "ConfigMap"): ("Data, Age", basics.config_map),
    ("", "Endpoints"): ("Endpoints, Age", networks.endpoints),
    ("", "Event"): (
        "-Last Seen, Type, Reason, Object, Subobject~, Source~, Message, First Seen~, Count~, Name~/n",
        basics.event,
    ),
    ("", "Namespace"): ("Status, Age", basics.namespace),
    ("", "Node"): (
        "Status, Roles, Age, Version, Internal-IP~, External-IP~, OS-Image~, Kernel-Version~, Container-Runtime~",
        basics.node,
    ),
    ("", "PersistentVolume"): (
        f"Capacity, Access Modes, Reclaim Policy, Status, Claim, {_CLASSES}, Reason, Age, VolumeMode~",
        networks.persistent_volume,
    ),
    ("", "PersistentVolumeClaim"): (
        f"Status, Volume, Capacity, Access Modes, {_CLASSES}, Age, VolumeMode~",
        networks.volume_claim,
    ),
    ("", "Pod"): ("Ready, Status, Restarts, Age, IP~, Node~, Nominated Node~, Readiness Gates~", pod_cells),
    ("", "PodTemplate"): ("Containers, Images, Pod Labels", workloads.pod_template),
    ("", "ReplicationController"): (f"{_COUNTS}, Age, {_WORKLOAD}", workloads.replication_controller),
    ("", "ResourceQuota"): ("Request, Limit, Age", basics.resource_quota),
    ("", "Secret"): ("Type, Data, Age", basics.secret),
    ("", "Service"): ("Type, Cluster-IP, External-IP, Port(s), Age, Selector~", networks.service),
    ("", "ServiceAccount"): ("Age", parts.plain),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"): (
        "Mutations/i, ParamKind, Age",
        basics.admission_policy,
    ),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding"): (
        "PolicyName, ParamRef, Age",
        basics.admission_policy_binding,
    ),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): ("Webhooks/i, Age", basics.webhooks),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): (
        "Validations/i, ParamKind, Age",
        basics.admission_policy,
    ),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): (
        "PolicyName, ParamRef, Age",
        basics.admission_policy_binding,
    ),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): ("Webhooks/i, Age", basics.webhooks),
    ("apiregistration.k8s.io", "APIService"): ("Service, Available, Age", basics.api_service),
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
    ("autoscaling", "Scale"): ("-Name, Desired/i, Available/i, Age", basics.scale),
    ("batch", "CronJob"): (
        f"Schedule, Timezone, Suspend/b, Active/i, Last Schedule, Age, {_WORKLOAD}",
        workloads.cron_job,
    ),
    ("batch", "Job"): (f"Status, Completions, Duration, Age, {_WORKLOAD}", workloads.job),
    ("certificates.k8s.io", "CertificateSigningRequest"): (
        "Age, SignerName, Requestor, RequestedDuration, Condition",
        basics.signing_request,
    ),
    ("coordination.k8s.io", "Lease"): ("Holder, Age", basics.lease),
    ("discovery.k8s.io", "EndpointSlice"): ("AddressType, Ports, Endpoints, Age", networks.endpoint_slice),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"): (
        "PriorityLevel, MatchingPrecedence, DistinguisherMethod, Age, MissingPL",
        basics.flow_schema,
    ),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"): (
        "Type, NominalConcurrencyShares, Queues, HandSize, QueueLengthLimit, Age",
        basics.priority_level,
    ),
    ("networking.k8s.io", "IPAddress"): (
        "ParentRef",
        networks.ip_address,
    ),  # upstream too sends an age without a column
    ("networking.k8s.io", "Ingress"): ("Class, Hosts, Address, Ports, Age", networks.ingress),
    ("networking.k8s.io", "IngressClass"): ("Controller, Parameters, Age", networks.ingress_class),
    ("networking.k8s.io", "NetworkPolicy"): ("Pod-Selector, Age", networks.network_policy),
    ("networking.k8s.io", "ServiceCIDR"): ("CIDRs, Age", networks.service_cidr),
    ("node.k8s.io", "RuntimeClass"): ("Handler, Age", basics.runtime_class),
    ("policy", "PodDisruptionBudget"): ("Min Available, Max Unavailable, Allowed Disruptions/i, Age", workloads.budget),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): (_BINDING, basics.role_binding),
    ("rbac.authorization.k8s.io", "RoleBinding"): (_BINDING, basics.role_binding),
    ("resource.k8s.io", "DeviceClass"): ("Age", parts.plain),
    ("resource.k8s.io", "ResourceClaim"): ("State, Age", basics.resource_claim),
    ("resource.k8s.io", "ResourceClaimTemplate"): ("Age", parts.plain),
    ("resource.k8s.io", "ResourceSlice"): ("Node, Driver, Pool, Age", basics.resource_slice),
    ("scheduling.k8s.io", "PodGroup"): ("Policy, Workload, Status, Age", basics.pod_group),
    ("scheduling.k8s.io", "PriorityClass"): ("Value/i, Global-Default/b, Age, PreemptionPolicy", basics.priority_class),
    ("scheduling.k8s.io", "Workload"): ("Age", parts.plain),
    ("storage.k8s.io", "CSIDriver"): (
        "AttachRequired/b, PodInfoOnMount/b, StorageCapacity/b, TokenRequests, RequiresRepublish/b, Modes, Age",
        networks.csi_driver,
    ),
    ("storage.k8s.io", "CSINode"): ("Drivers/i, Age", networks.csi_node),
    ("storage.k8s.io", "StorageClass"): (
        "Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age",
        networks.storage_class,
    ),
    ("storage.k8s.io", "VolumeAttachment"): ("Attacher/n, PV, Node, Attached/b, Age", networks.volume_attachment),
    ("storage.k8s.io", "VolumeAttributesClass"): ("DriverName, Age", networks.attributes_class),
}
"""Columns after the name (a dash: in place of it), and who fills them. `~` is priority 1, `/i` and so on the type."""

_UNKNOWN: tuple[str, Cells] = ("Created At/d", parts.created)


def columns(resource: Resource) -> list[Tree]:
    """The column definitions of a kind."""
    if resource.definition is not None:
        return custom.columns(resource.definition)
    return _columns(_TABLES.get(_key(resource), _UNKNOWN)[0])


def cells(resource: Resource, item: Tree, now: datetime) -> list[Any]:
    """One object's cells, a column each."""
    if resource.definition is not None:
        return custom.cells(resource.definition, item, now)
    return _TABLES.get(_key(resource), _UNKNOWN)[1](item, now)


def row_conditions(resource: Resource, item: Tree) -> list[Tree]:
    """What a row is marked with besides its cells; only pods that have ended are."""
    return pod_row_conditions(item) if resource.kind == "Pod" and not resource.group else []


def _key(resource: Resource) -> tuple[str, str]:
    """Both groups of events have the same columns."""
    return (
        ("", "Event")
        if resource.kind == "Event" and resource.group == "events.k8s.io"
        else (resource.group, resource.kind)
    )


@lru_cache(maxsize=128)
def _columns(text: str) -> list[Tree]:
    named = [] if text.startswith("-") else [_column("Name/n")]
    return [*named, *map(_column, text.removeprefix("-").split(", "))]


def _column(text: str) -> Tree:
    called, _, mark = text.partition("/")
    name = called.removesuffix("~")
    return {
        "name": name,
        "type": _TYPES.get(mark, "string"),
        "format": "name" if mark == "n" else "",
        "description": "",
        "priority": int(called.endswith("~")),
    }
