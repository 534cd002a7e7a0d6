"""Decodes request bodies by the type of the resource, built-in or custom.

Called for every write. Cost: that of `schema.decoder`; each type is built once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from bayplan.apiserver import api_errors
from bayplan.apiserver.resources.autoscaler_conversion import AUTOSCALERS, AUTOSCALING_V1, to_v1, to_v2
from bayplan.apiserver.resources.kinds import ServedResource, Subresource, Tree
from bayplan.apiserver.schema.decoder import (
    BuiltInReader,
    DecodedObject,
    ExpectedKind,
    Validation,
    decode,
    decode_applied,
)
from bayplan.apiserver.schema.managed_fields.server_side_apply import Convert, object_text
from bayplan.apiserver.schema.patches import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, patch_object
from bayplan.apiserver.schema.types import StructType, built_in_types

if TYPE_CHECKING:
    from bayplan.apiserver.schema.crd.custom_type import CustomResourceType

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
APPLY = "application/apply-patch+yaml"
_ACCEPTED = f"{JSON}, {YAML}, {PROTOBUF}"


def built_in_type(group: str, version: str, kind: str) -> StructType:
    found = built_in_types().of(group, version, kind)
    if found is None:
        raise api_errors.unknown_resource()
    return found


def custom_type(resource: ServedResource) -> CustomResourceType:
    """The type of a custom resource. It loads CEL, which an API server without custom resources does not need."""
    found: CustomResourceType | None = resource.cache.get("type")
    if found is None:
        from bayplan.apiserver.schema.crd.custom_type import CustomResourceType

        assert resource.definition is not None
        found = resource.cache["type"] = CustomResourceType(resource.group, resource.kind, resource.definition)
    return found


def managed_type(resource: ServedResource) -> StructType | CustomResourceType:
    return custom_type(resource) if resource.custom else request_body_type(resource)[0]


def converter(resource: ServedResource) -> Convert | None:
    """The function that converts an object to another version; None if versions differ in `apiVersion` only."""
    return _converted_autoscaler if resource.plural == AUTOSCALERS and resource.group == "autoscaling" else None


def _converted_autoscaler(tree: Tree, api_version: str) -> tuple[Tree, StructType]:
    if tree.get("apiVersion") != api_version:
        tree = to_v1(tree) if api_version == AUTOSCALING_V1 else to_v2(tree)
    group, _, version = api_version.partition("/")
    return tree, built_in_type(group, version, "HorizontalPodAutoscaler")


def _is_custom(resource: ServedResource, sub: Subresource | None) -> bool:
    return resource.custom and (sub is None or not sub.group)


def request_body_type(resource: ServedResource, sub: Subresource | None = None) -> tuple[StructType, ExpectedKind]:
    """The type of a request body for a built-in resource or for a subresource of any resource."""
    key = sub.name if sub is not None else ""
    known: tuple[StructType, ExpectedKind] | None = resource.cache.get(key)
    if known is None:
        group, version, kind = resource.group, resource.version, resource.kind
        if sub is not None:
            group, version, kind = sub.group or group, sub.version or version, sub.kind
        known = resource.cache[key] = built_in_type(group, version, kind), ExpectedKind(group, version, kind)
    return known


def media_type(content_type: str) -> str:
    """The media type without parameters. An empty one means JSON, which some clients rely on."""
    bare = content_type.partition(";")[0].strip().lower()
    return JSON if bare in ("", "application/octet-stream") else bare


def decode_body(
    resource: ServedResource, raw: bytes, content_type: str, validation: str, sub: Subresource | None = None
) -> DecodedObject:
    media = media_type(content_type)
    if media not in (JSON, YAML, PROTOBUF):
        raise api_errors.unsupported_media_type(_ACCEPTED)
    if _is_custom(resource, sub):
        if media == PROTOBUF:
            raise api_errors.unsupported_media_type(f"{JSON}, {YAML}")
        return custom_type(resource).decode(raw, cast("Validation", validation), yaml=media == YAML)
    found, expected = request_body_type(resource, sub)
    if media == PROTOBUF:
        return _read_protobuf(found, expected, raw)
    return decode(found, raw, cast("Validation", validation), expected=expected, yaml=media == YAML)


def _read_protobuf(type_: StructType, expected: ExpectedKind, raw: bytes) -> DecodedObject:
    from bayplan.apiserver.schema.protobuf import decode_protobuf

    api_version, kind, tree = decode_protobuf(raw, built_in_types())
    return decode(
        type_, msgspec.json.encode({**tree, "apiVersion": api_version, "kind": kind}), "Ignore", expected=expected
    )


def decode_apply_body(resource: ServedResource, raw: bytes, validation: str) -> DecodedObject:
    expected = custom_type(resource).expected if resource.custom else request_body_type(resource)[1]
    return decode_applied(raw, cast("Validation", validation), expected=expected)


def decode_tree(resource: ServedResource, tree: Tree) -> Tree:
    """Read an object that the API server itself put together, as if a client had sent it."""
    reader = custom_type(resource) if resource.custom else BuiltInReader(*request_body_type(resource))
    found, _, wrong = reader.read(tree)
    if wrong is not None:
        raise api_errors.StatusError(500, "", _apply_type_error(tree, wrong))
    return found


def _apply_type_error(tree: Tree, wrong: str) -> str:
    """Upstream's message for an applied object that cannot be decoded."""
    object_name = object_text(tree)
    kind = object_name.partition("; ")[2]
    wrong = f"error decoding from json: {wrong}" if "base64" in wrong else wrong
    why = f"unable to convert unstructured object to {kind}: {wrong}"
    return f"failed to convert new object ({object_name}) to proper version: {why}"


def decode_patch(
    resource: ServedResource, live: Tree, raw: bytes, media: str, validation: str, sub: Subresource | None = None
) -> DecodedObject:
    """The object that results from a patch of the live object."""
    checked = cast("Validation", validation)
    if _is_custom(resource, sub):
        if media == STRATEGIC_PATCH:
            raise api_errors.unsupported_media_type(f"{JSON_PATCH}, {MERGE_PATCH}, {APPLY}")
        return patch_object(custom_type(resource), live, raw, media, checked)
    found, expected = request_body_type(resource, sub)
    strategic = found if media == STRATEGIC_PATCH else None
    return patch_object(BuiltInReader(found, expected), live, raw, media, checked, strategic=strategic)
