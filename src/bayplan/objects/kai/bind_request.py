"""KAI-Scheduler's BindRequest: pod, node, allocations, and the progress of the binder.

An engine creates it for a placed pod, the binder carries it out, and it is deleted with the pod. Properties of a
request are defined here for all modules that write, read or count requests. The uid of the pod is in the owner
reference and, if the server's definition has the field, in `spec.podUID`; `pod_uid` reads both.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from bayplan.objects.core import ContainerExtendedResourceRequest, Pod
from bayplan.objects.meta import Api, KubeObject, ObjectMeta, OwnerReference, ResourceList
from bayplan.objects.name_validation import dns_subdomain_problems
from bayplan.objects.resource import AllocationResult, DeviceRequest

GROUP = "scheduling.run.ai"
VERSION = "v1alpha2"

HANDLED_BY_LABEL = "bayplan.dev/binder"
HANDLED_BY_BAYPLAN = "bayplan"
"""The label of requests that Bayplan's binder handles; it ignores requests with another value."""
BINDER_LEASE_NAME = "bayplan-binder"
"""The holder identity of that binder, and the name of its lease."""
NODE_LABEL = "selected-node"
SCHEDULER_LABEL = "bayplan.dev/scheduler"
"""The label with the name of the pod's scheduler, so that a scheduler can watch the requests of other schedulers."""
RECEIVED_TYPE = "received-resource-type"
"""The annotation of a bound pod with the way in which it got its devices."""
NUMA_ZONES = "kai.scheduler/predicted-numa-zones"

STALE_FACTOR = 6
"""A request is deleted after so many times the stale time without a report of a binder."""

PENDING, SUCCEEDED, FAILED = "Pending", "Succeeded", "Failed"
REGULAR, FRACTION, MIG_INSTANCE = "Regular", "Fraction", "MigInstance"
RESOURCE_TYPES = ("", REGULAR, FRACTION, MIG_INSTANCE)

_S = TypeVar("_S", bound=msgspec.Struct)

ANNOTATION_DOMAIN = "kai.scheduler"
_MAX_RETRY_DELAY_S = 60.0
_MAX_LABEL_LENGTH = 63
_DIGEST_LENGTH = 10


class ReceivedGpu(Api, frozen=True):
    """The number of devices, and the share of each: a decimal with two digits."""

    count: int = 0
    portion: str = ""


class ClaimAllocation(Api, frozen=True):
    """The allocation of a claim; `name` is the entry in the pod's `resourceClaims`."""

    name: str = ""
    allocation: AllocationResult | None = None


class ExtendedClaimAllocation(Api, frozen=True):
    """The allocation of the special claim for a pod's extended resources."""

    allocation: AllocationResult | None = None
    device_requests: tuple[DeviceRequest, ...] = ()
    container_mappings: tuple[ContainerExtendedResourceRequest, ...] = ()


class NumaZone(Api, frozen=True):
    zone: str | int = ""
    amount: ResourceList = {}


class BindRequestSpec(Api, frozen=True):
    pod_name: str = ""
    pod_uid: str = msgspec.field(default="", name="podUID")
    selected_node: str = ""
    received_resource_type: str = ""
    received_gpu: ReceivedGpu | None = msgspec.field(default=None, name="receivedGPU")
    selected_gpu_groups: tuple[str, ...] = msgspec.field(default=(), name="selectedGPUGroups")
    resource_claim_allocations: tuple[ClaimAllocation, ...] = ()
    extended_resource_claim_allocation: ExtendedClaimAllocation | None = None
    predicted_numa_zones: tuple[NumaZone, ...] = msgspec.field(default=(), name="predictedNUMAZones")
    backoff_limit: int | None = None


class BindRequestStatus(Api, frozen=True):
    phase: str = ""
    reason: str = ""
    failed_attempts: int = 0


class BindRequest(KubeObject, frozen=True):
    """scheduling.run.ai BindRequest."""

    spec: BindRequestSpec = BindRequestSpec()
    status: BindRequestStatus = BindRequestStatus()

    @property
    def pod_key(self) -> str:
        return f"{self.metadata.namespace}/{self.spec.pod_name}"

    @property
    def pod_uid(self) -> str:
        """The uid of the pod; empty if the request does not have it."""
        return self.spec.pod_uid or next(
            (owner.uid for owner in self.metadata.owner_references if owner.kind == "Pod"), ""
        )

    @property
    def version(self) -> int:
        """The resource version as a number; the larger one is the later state."""
        text = self.metadata.resource_version
        return int(text) if text.isdecimal() else 0

    @property
    def is_handled_by_bayplan(self) -> bool:
        return self.metadata.labels.get(HANDLED_BY_LABEL) == HANDLED_BY_BAYPLAN

    @property
    def was_attempted(self) -> bool:
        return self.is_finished or self.status.failed_attempts > 0

    @property
    def is_finished(self) -> bool:
        """Whether the last attempt has a result; `Pending` counts as none."""
        return self.status.phase not in ("", PENDING)

    @property
    def has_succeeded(self) -> bool:
        return self.status.phase == SUCCEEDED

    @property
    def has_failed(self) -> bool:
        """Whether the binder will not try it again."""
        limit = self.spec.backoff_limit
        return self.status.phase == FAILED and (limit is None or self.status.failed_attempts >= limit)

    @property
    def is_active(self) -> bool:
        """Whether the pod is bound or may still be bound, so that its resources on the node are taken."""
        return not self.has_failed and self.metadata.deletion_timestamp is None

    @property
    def is_fraction(self) -> bool:
        return self.spec.received_resource_type == FRACTION

    @property
    def has_valid_pod_name(self) -> bool:
        """Whether the pod name is valid; the API server refuses other names without a lookup."""
        return not dns_subdomain_problems(self.spec.pod_name)

    def is_for(self, pod: Pod) -> bool:
        """Whether the request is for this pod, and not for an earlier pod of the same name."""
        meta, spec = pod.metadata, self.spec
        if spec.pod_name != meta.name or self.metadata.namespace != meta.namespace:
            return False
        uid = spec.pod_uid or self.pod_uid
        return uid == meta.uid or not uid


def retry_delay_s(failures: int) -> float:
    """How long the binder waits after so many failures, before jitter: doubling, up to a minute."""
    return min(2.0 ** min(failures, 16), _MAX_RETRY_DELAY_S)


def new_request(
    pod: Pod,
    node_name: str,
    *,
    annotations: Mapping[str, str],
    backoff_limit: int | None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> BindRequest:
    """A new request to bind a pod to a node. `spec`: further fields by their Python names."""
    meta = pod.metadata
    return BindRequest(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            labels={
                **(labels or {}),
                HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN,
                NODE_LABEL: label_value(node_name),
                SCHEDULER_LABEL: label_value(pod.scheduler_name),
            },
            annotations=dict(annotations),
            owner_references=(OwnerReference(kind="Pod", name=meta.name, uid=meta.uid, api_version="v1"),),
        ),
        spec=BindRequestSpec(
            pod_name=meta.name,
            pod_uid=meta.uid,
            selected_node=node_name,
            backoff_limit=backoff_limit,
            **{"received_resource_type": REGULAR, **spec},
        ),
    )


def manifest(request: BindRequest) -> dict[str, Any]:
    """The body that creates a request. It always has the annotations field, even if it is empty."""
    tree: dict[str, Any] = msgspec.to_builtins(request)
    tree["metadata"]["annotations"] = dict(request.metadata.annotations)
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": "BindRequest", **tree}


_MANIFEST_PREFIX = msgspec.json.encode({"apiVersion": f"{GROUP}/{VERSION}", "kind": "BindRequest"})[:-1]
_META, _META_WITHOUT = b'{"metadata":{', b',"metadata":{"annotations":{},'


def manifest_text(request: BindRequest) -> bytes:
    """The manifest as JSON, at a fraction of the cost, since every pod has a request."""
    if request.metadata.annotations or not request.metadata.name:
        return msgspec.json.encode(manifest(request))
    return b"%b%b%b" % (_MANIFEST_PREFIX, _META_WITHOUT, msgspec.json.encode(request)[len(_META) :])


def decode_readable_fields(tree: Mapping[str, Any]) -> BindRequest:
    """A request without the fields that do not decode: enough to find its pod, and whether it is finished.

    A backoff limit that does not decode is missing, so a single attempt ends the request.
    """
    return BindRequest(
        metadata=_decode_readable(tree.get("metadata"), ObjectMeta),
        spec=_decode_readable(tree.get("spec"), BindRequestSpec),
        status=_decode_readable(tree.get("status"), BindRequestStatus),
    )


def _decode_readable(tree: object, struct: type[_S]) -> _S:
    given = tree if isinstance(tree, Mapping) else {}
    found = {}
    for name, key in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
        if key in given:
            with contextlib.suppress(msgspec.ValidationError):
                found[name] = getattr(msgspec.convert({key: given[key]}, struct), name)
    return struct(**found)


def label_value(name: str) -> str:
    """A name as a label value. A name that is too long is cut, and a digest makes it unique again."""
    if len(name) <= _MAX_LABEL_LENGTH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{name[: _MAX_LABEL_LENGTH - _DIGEST_LENGTH - 1].rstrip('-._')}-{digest}"


def annotation_key(plugin: str, key: str) -> str:
    """The annotation that passes data from a scheduler plugin to a binder plugin: `<plugin>.kai.scheduler/<key>`."""
    return f"{plugin}.{ANNOTATION_DOMAIN}/{key}"


def annotations_for_plugin(request: BindRequest, plugin: str) -> dict[str, str]:
    """The data of scheduler plugins for this binder plugin, by bare keys; empty with an older scheduler."""
    prefix = annotation_key(plugin, "")
    return {
        key.removeprefix(prefix): value for key, value in request.metadata.annotations.items() if key.startswith(prefix)
    }


def is_bound_with_shared_gpus(pod: Pod) -> bool:
    """Whether a pod is bound with parts of devices. The binder records this in the same write as the binding."""
    return bool(pod.spec.node_name) and pod.metadata.annotations.get(RECEIVED_TYPE) == FRACTION
