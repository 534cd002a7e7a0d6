"""As what is the body of a request read? The type of each kind, built-in or custom, behind one door.

Every write comes by. Cost: that of `schema.decoding`; types are made once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from bayplan.apiserver import api_errors
from bayplan.apiserver.resources.autoscaler_conversion import (
    AUTOSCALERS,
    OLD_AUTOSCALING,
    to_new,
    to_old,
)
from bayplan.apiserver.resources.kinds import Resource, SubResource, Tree
from bayplan.apiserver.schema.decoder import (
    BuiltIn,
    Decoded,
    Expected,
    Validation,
    decode,
    decode_applied,
)
from bayplan.apiserver.schema.managed_fields.server_side_apply import Convert, described
from bayplan.apiserver.schema.patches import (
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    patched,
)
from bayplan.apiserver.schema.types import Type, built_in_types

if TYPE_CHECKING:
    from bayplan.apiserver.schema.crd.custom_type import CustomType

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
APPLY = "application/apply-patch+yaml"
_ACCEPTED = f"{JSON}, {YAML}, {PROTOBUF}"


def type_of(group: str, version: str, kind: str) -> Type:
    found = built_in_types().of(group, version, kind)
    if found is None:
        raise api_errors.no_such_resource()
    return found


def custom_type(resource: Resource) -> CustomType:
    """How objects of a custom resource are read. With it comes a language for rules, which a plain start can spare."""
    found: CustomType | None = resource.memory.get("type")
    if found is None:
        from bayplan.apiserver.schema.crd.custom_type import CustomType

        assert resource.definition is not None
        found = resource.memory["type"] = CustomType(resource.group, resource.kind, resource.definition)
    return found


def managed_type(resource: Resource) -> Type | CustomType:
    """The type that managed fields are about."""
    return custom_type(resource) if resource.custom else body_type(resource)[0]


def converter(resource: Resource) -> Convert | None:
    """How an object of the kind looks in its other versions, if that is more than another name."""
    return _converted_autoscaler if resource.plural == AUTOSCALERS and resource.group == "autoscaling" else None


def _converted_autoscaler(tree: Tree, api_version: str) -> tuple[Tree, Type]:
    if tree.get("apiVersion") != api_version:
        tree = to_old(tree) if api_version == OLD_AUTOSCALING else to_new(tree)
    group, _, version = api_version.partition("/")
    return tree, type_of(group, version, "HorizontalPodAutoscaler")


def _is_custom(resource: Resource, sub: SubResource | None) -> bool:
    return resource.custom and (sub is None or not sub.group)


def body_type(resource: Resource, sub: SubResource | None = None) -> tuple[Type, Expected]:
    """The type of what is sent to a built-in resource, or to a part of any."""
    key = sub.name if sub is not None else ""
    known: tuple[Type, Expected] | None = resource.memory.get(key)
    if known is None:
        group, version, kind = resource.group, resource.version, resource.kind
        if sub is not None:
            group, version, kind = sub.group or group, sub.version or version, sub.kind
        known = resource.memory[key] = type_of(group, version, kind), Expected(group, version, kind)
    return known


def media_type(content_type: str) -> str:
    """The bare type of a body; without one it is JSON, which is what some clients mean by saying nothing."""
    bare = content_type.partition(";")[0].strip().lower()
    return JSON if bare in ("", "application/octet-stream") else bare


def read_body(
    resource: Resource, raw: bytes, content_type: str, validation: str, sub: SubResource | None = None
) -> Decoded:
    """The object that a POST or PUT carries."""
    media = media_type(content_type)
    if media not in (JSON, YAML, PROTOBUF):
        raise api_errors.unsupported_media_type(_ACCEPTED)
    if _is_custom(resource, sub):
        if media == PROTOBUF:
            raise api_errors.unsupported_media_type(f"{JSON}, {YAML}")
        return custom_type(resource).decode(raw, cast("Validation", validation), yaml=media == YAML)
    found, expected = body_type(resource, sub)
    if media == PROTOBUF:
        return _read_protobuf(found, expected, raw)
    return decode(found, raw, cast("Validation", validation), expected=expected, yaml=media == YAML)


def _read_protobuf(type_: Type, expected: Expected, raw: bytes) -> Decoded:
    from bayplan.apiserver.schema.protobuf import decode_protobuf

    api_version, kind, tree = decode_protobuf(raw, built_in_types())
    return decode(
        type_, msgspec.json.encode({**tree, "apiVersion": api_version, "kind": kind}), "Ignore", expected=expected
    )


def read_applied(resource: Resource, raw: bytes, validation: str) -> Decoded:
    """The configuration of a server-side apply."""
    expected = custom_type(resource).expected if resource.custom else body_type(resource)[1]
    return decode_applied(raw, cast("Validation", validation), expected=expected)


def reread(resource: Resource, tree: Tree) -> Tree:
    """An object that was put together here, as if it had been sent."""
    reader = custom_type(resource) if resource.custom else BuiltIn(*body_type(resource))
    found, _, wrong = reader.read(tree)
    if wrong is not None:
        raise api_errors.Refusal(500, "", _unconverted(tree, wrong))
    return found


def _unconverted(tree: Tree, wrong: str) -> str:
    """What upstream says of an object that was applied and cannot be read."""
    told = described(tree)
    kind = told.partition("; ")[2]
    wrong = f"error decoding from json: {wrong}" if "base64" in wrong else wrong
    why = f"unable to convert unstructured object to {kind}: {wrong}"
    return f"failed to convert new object ({told}) to proper version: {why}"


def read_patch(
    resource: Resource, live: Tree, raw: bytes, media: str, validation: str, sub: SubResource | None = None
) -> Decoded:
    """The object that a patch makes of the one that is there."""
    checked = cast("Validation", validation)
    if _is_custom(resource, sub):
        if media == STRATEGIC_PATCH:
            raise api_errors.unsupported_media_type(f"{JSON_PATCH}, {MERGE_PATCH}, {APPLY}")
        return patched(custom_type(resource), live, raw, media, checked)
    found, expected = body_type(resource, sub)
    strategic = found if media == STRATEGIC_PATCH else None
    return patched(BuiltIn(found, expected), live, raw, media, checked, strategic=strategic)
