"""What is a BindRequest to an API server? Its CustomResourceDefinition: upstream's fields, and the pod's uid.

Asked by `bayplan crds`. Allocations are kept as they come: their shape is that of the resource.k8s.io group, which the
API server checks when they are written to the claims.
"""

from __future__ import annotations

import copy
from typing import Any

from bayplan.objects.kai.bind_request import GROUP, VERSION

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "format": "int32"}
_AS_IT_COMES: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _told(description: str, schema: Schema) -> Schema:
    """What `kubectl explain` says of a field."""
    return {"description": description, **schema}


def _fields(required: tuple[str, ...] = (), **properties: Any) -> Schema:
    found: Schema = {"type": "object", "properties": properties}
    return found | {"required": list(required)} if required else found


def _each(of: Schema) -> Schema:
    return {"type": "array", "items": of}


_GPU = _fields(
    count=_told("How many devices.", _COUNT),
    portion=_told("The share of each: a decimal with two digits, 1.00 for a whole one.", _TEXT),
)
_CLAIM = _fields(
    name=_told("The entry in the pod's spec.resourceClaims, which is not the name of the claim.", _TEXT),
    allocation=_told("The AllocationResult of resource.k8s.io that is written to the claim.", _AS_IT_COMES),
)
_MAPPING = _fields(
    containerName=_told("The container that asks for the resource.", _TEXT),
    resourceName=_told("The extended resource that it asks for.", _TEXT),
    requestName=_told("The request of the claim that stands for that.", _TEXT),
)
_EXTENDED = _fields(
    allocation=_told("The AllocationResult of resource.k8s.io of that claim.", _AS_IT_COMES),
    deviceRequests=_told("What the claim asks for.", _each(_AS_IT_COMES)),
    containerMappings=_told("Which container gets the devices of which request.", _each(_MAPPING)),
)
_SPEC = _fields(
    ("podName", "selectedNode"),
    podName=_told("The pod that is to be bound, in the namespace of the request.", _TEXT),
    podUID=_told("Which pod of that name is meant; where it is not said the owner of the request tells.", _TEXT),
    selectedNode=_told("The node that the pod is to be bound to.", _TEXT),
    receivedResourceType=_told(
        "In which way the pod gets devices: Regular, Fraction or MigInstance. The bound pod is annotated with it.",
        _TEXT,
    ),
    receivedGPU=_told("The GPUs that the pod gets.", _GPU),
    selectedGPUGroups=_told("The groups that share a GPU which the pod joins; for Fraction alone.", _each(_TEXT)),
    resourceClaimAllocations=_told("What was allocated to the pod's device claims.", _each(_CLAIM)),
    extendedResourceClaimAllocation=_told(
        "What was allocated where devices stand behind extended resources; the binder makes the claim.", _EXTENDED
    ),
    predictedNUMAZones=_told(
        "The NUMA zones that the scheduler expects the pod to get, with amounts; the pod is annotated with them.",
        _each(_AS_IT_COMES),
    ),
    backoffLimit=_told(
        "After so many failed attempts the binder gives up; after the first where it is not said.", _COUNT
    ),
)
_STATUS = _fields(
    phase=_told("Pending or nothing, Succeeded, or Failed; below the limit Failed is tried again.", _TEXT),
    reason=_told("Why the last attempt failed.", _TEXT),
    failedAttempts=_told("How many attempts have failed.", _COUNT),
)
_WHOLE = _told(
    "The request of a scheduler to bind a pod to a node, with what was decided for that; the binder carries it out.",
    _fields(
        apiVersion=_TEXT,
        kind=_TEXT,
        metadata={"type": "object"},
        spec=_told("What was decided.", _SPEC),
        status=_told("How far the binder has come.", _STATUS),
    ),
)
_COLUMNS = (
    ("Pod", "string", ".spec.podName"),
    ("Node", "string", ".spec.selectedNode"),
    ("Phase", "string", ".status.phase"),
    ("Attempts", "integer", ".status.failedAttempts"),
    ("Age", "date", ".metadata.creationTimestamp"),
)


def bind_request_definition() -> dict[str, Any]:
    """The definition, made anew: whoever changes it changes their own."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"bindrequests.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": "BindRequest",
                "listKind": "BindRequestList",
                "plural": "bindrequests",
                "singular": "bindrequest",
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "selectableFields": [{"jsonPath": ".status.phase"}],  # so that engines are told of failures alone
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in _COLUMNS
                    ],
                    "schema": {"openAPIV3Schema": copy.deepcopy(_WHOLE)},
                }
            ],
        },
    }
