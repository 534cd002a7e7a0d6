"""The CustomResourceDefinition of BindRequest: upstream's fields, and the uid of the pod.

Used by `bayplan crds`. Allocations are stored without validation: they have the form of the resource.k8s.io group,
which the API server validates when they are written to the claims.
"""

from __future__ import annotations

import copy
from typing import Any

from bayplan.objects.kai.bind_request import GROUP, VERSION

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer", "format": "int32"}
_UNSTRUCTURED: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _describe(description: str, schema: Schema) -> Schema:
    """Add a description, which `kubectl explain` shows."""
    return {"description": description, **schema}


def _object(required: tuple[str, ...] = (), **properties: Any) -> Schema:
    found: Schema = {"type": "object", "properties": properties}
    return found | {"required": list(required)} if required else found


def _array_of(of: Schema) -> Schema:
    return {"type": "array", "items": of}


_GPU = _object(
    count=_describe("The number of devices.", _INTEGER),
    portion=_describe("The share of each: a decimal with two digits, 1.00 for a whole one.", _STRING),
)
_CLAIM = _object(
    name=_describe("The entry in the pod's spec.resourceClaims, which is not the name of the claim.", _STRING),
    allocation=_describe("The AllocationResult of resource.k8s.io that is written to the claim.", _UNSTRUCTURED),
)
_MAPPING = _object(
    containerName=_describe("The container that requests the resource.", _STRING),
    resourceName=_describe("The extended resource that it requests.", _STRING),
    requestName=_describe("The request of the claim for that resource.", _STRING),
)
_EXTENDED = _object(
    allocation=_describe("The AllocationResult of resource.k8s.io of that claim.", _UNSTRUCTURED),
    deviceRequests=_describe("The device requests of the claim.", _array_of(_UNSTRUCTURED)),
    containerMappings=_describe("The device request of each container and extended resource.", _array_of(_MAPPING)),
)
_SPEC = _object(
    ("podName", "selectedNode"),
    podName=_describe("The pod to bind, in the namespace of the request.", _STRING),
    podUID=_describe("The uid of the pod; if it is missing, the owner reference has it.", _STRING),
    selectedNode=_describe("The node to bind the pod to.", _STRING),
    receivedResourceType=_describe(
        "How the pod gets devices: Regular, Fraction or MigInstance. The bound pod is annotated with it.", _STRING
    ),
    receivedGPU=_describe("The GPUs that the pod gets.", _GPU),
    selectedGPUGroups=_describe("The GPU groups that the pod joins; for Fraction only.", _array_of(_STRING)),
    resourceClaimAllocations=_describe("The allocations of the pod's device claims.", _array_of(_CLAIM)),
    extendedResourceClaimAllocation=_describe(
        "The allocation for extended resources backed by devices; the binder creates the claim.", _EXTENDED
    ),
    predictedNUMAZones=_describe(
        "The NUMA zones that the scheduler expects the pod to get, with amounts; the pod is annotated with them.",
        _array_of(_UNSTRUCTURED),
    ),
    backoffLimit=_describe("The number of failed attempts after which the binder gives up; one by default.", _INTEGER),
)
_STATUS = _object(
    phase=_describe("Empty, Pending, Succeeded, or Failed; below the limit Failed is retried.", _STRING),
    reason=_describe("Why the last attempt failed.", _STRING),
    failedAttempts=_describe("The number of failed attempts.", _INTEGER),
)
_SCHEMA = _describe(
    "A scheduler's request to bind a pod to a node, with its decisions; the binder carries it out.",
    _object(
        apiVersion=_STRING,
        kind=_STRING,
        metadata={"type": "object"},
        spec=_describe("The decisions of the scheduler.", _SPEC),
        status=_describe("The progress of the binder.", _STATUS),
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
    """A new copy of the definition, which the caller may change."""
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
                    "selectableFields": [{"jsonPath": ".status.phase"}],  # so that engines can watch failures only
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in _PRINTER_COLUMNS
                    ],
                    "schema": {"openAPIV3Schema": copy.deepcopy(_SCHEMA)},
                }
            ],
        },
    }
