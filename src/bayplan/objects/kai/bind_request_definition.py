"""What is a BindRequest to an API server? Its CustomResourceDefinition: upstream's fields, and the pod's uid.

Asked by `bayplan crds`. Allocations are kept as they come: their shape is that of the resource.k8s.io group, which the
API server checks when they are written to the claims.
"""

from __future__ import annotations

import copy
from typing import Any

from bayplan.objects.kai.bind_request import GROUP, VERSION

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer", "format": "int32"}
_UNSTRUCTURED: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _described(description: str, schema: Schema) -> Schema:
    """What `kubectl explain` says of a field."""
    return {"description": description, **schema}


def _object(required: tuple[str, ...] = (), **properties: Any) -> Schema:
    found: Schema = {"type": "object", "properties": properties}
    return found | {"required": list(required)} if required else found


def _array_of(of: Schema) -> Schema:
    return {"type": "array", "items": of}


_GPU = _object(
    count=_described("How many devices.", _INTEGER),
    portion=_described("The share of each: a decimal with two digits, 1.00 for a whole one.", _STRING),
)
_CLAIM = _object(
    name=_described("The entry in the pod's spec.resourceClaims, which is not the name of the claim.", _STRING),
    allocation=_described("The AllocationResult of resource.k8s.io that is written to the claim.", _UNSTRUCTURED),
)
_MAPPING = _object(
    containerName=_described("The container that asks for the resource.", _STRING),
    resourceName=_described("The extended resource that it asks for.", _STRING),
    requestName=_described("The request of the claim that stands for that.", _STRING),
)
_EXTENDED = _object(
    allocation=_described("The AllocationResult of resource.k8s.io of that claim.", _UNSTRUCTURED),
    deviceRequests=_described("What the claim asks for.", _array_of(_UNSTRUCTURED)),
    containerMappings=_described("Which container gets the devices of which request.", _array_of(_MAPPING)),
)
_SPEC = _object(
    ("podName", "selectedNode"),
    podName=_described("The pod that is to be bound, in the namespace of the request.", _STRING),
    podUID=_described("Which pod of that name is meant; where it is not said the owner of the request tells.", _STRING),
    selectedNode=_described("The node that the pod is to be bound to.", _STRING),
    receivedResourceType=_described(
        "In which way the pod gets devices: Regular, Fraction or MigInstance. The bound pod is annotated with it.",
        _STRING,
    ),
    receivedGPU=_described("The GPUs that the pod gets.", _GPU),
    selectedGPUGroups=_described(
        "The groups that share a GPU which the pod joins; for Fraction alone.", _array_of(_STRING)
    ),
    resourceClaimAllocations=_described("What was allocated to the pod's device claims.", _array_of(_CLAIM)),
    extendedResourceClaimAllocation=_described(
        "What was allocated where devices stand behind extended resources; the binder makes the claim.", _EXTENDED
    ),
    predictedNUMAZones=_described(
        "The NUMA zones that the scheduler expects the pod to get, with amounts; the pod is annotated with them.",
        _array_of(_UNSTRUCTURED),
    ),
    backoffLimit=_described(
        "After so many failed attempts the binder gives up; after the first where it is not said.", _INTEGER
    ),
)
_STATUS = _object(
    phase=_described("Pending or nothing, Succeeded, or Failed; below the limit Failed is tried again.", _STRING),
    reason=_described("Why the last attempt failed.", _STRING),
    failedAttempts=_described("How many attempts have failed.", _INTEGER),
)
_SCHEMA = _described(
    "The request of a scheduler to bind a pod to a node, with what was decided for that; the binder carries it out.",
    _object(
        apiVersion=_STRING,
        kind=_STRING,
        metadata={"type": "object"},
        spec=_described("What was decided.", _SPEC),
        status=_described("How far the binder has come.", _STATUS),
    ),
)
_PRINTER_COLUMNS = (
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
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in _PRINTER_COLUMNS
                    ],
                    "schema": {"openAPIV3Schema": copy.deepcopy(_SCHEMA)},
                }
            ],
        },
    }
