"""What is a BindRequest to an API server? Its CustomResourceDefinition: upstream's fields, and the pod's uid.

Asked by `bayplan crds`. Allocations are kept as they come: their shape is that of the resource.k8s.io group, which the
API server checks when they are written to the claims.
"""

from __future__ import annotations

from typing import Any

from bayplan.objects.bind_requests import GROUP, VERSION

_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_COUNT = {"type": "integer", "format": "int32"}
_AS_IT_COMES = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _fields(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return found | {"required": list(required)} if required else found


def _each(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


_SPEC = _fields(
    ("podName", "selectedNode"),
    podName=_TEXT,
    podUID=_TEXT,
    selectedNode=_TEXT,
    receivedResourceType=_TEXT,
    receivedGPU=_fields(count=_COUNT, portion=_TEXT),
    selectedGPUGroups=_TEXTS,
    resourceClaimAllocations=_each(_fields(name=_TEXT, allocation=_AS_IT_COMES)),
    extendedResourceClaimAllocation=_fields(
        allocation=_AS_IT_COMES,
        deviceRequests=_each(_AS_IT_COMES),
        containerMappings=_each(_fields(containerName=_TEXT, resourceName=_TEXT, requestName=_TEXT)),
    ),
    predictedNUMAZones=_each(_AS_IT_COMES),
    backoffLimit=_COUNT,
)
_STATUS = _fields(phase=_TEXT, reason=_TEXT, failedAttempts=_COUNT)
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
                    "schema": {
                        "openAPIV3Schema": _fields(
                            apiVersion=_TEXT, kind=_TEXT, metadata={"type": "object"}, spec=_SPEC, status=_STATUS
                        )
                    },
                }
            ],
        },
    }
