"""OpenAPI documents of the API server.

kubectl reads them for apply, edit, explain and validation. A document is built from the table of types, for one group
version and on request. Descriptions are left out. Custom resources bring their own schemas. Cost: about 20 ms for the
core group; the caller caches it by its etag.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bayplan.apiserver.resources.kinds import ServedResource, Subresource
from bayplan.apiserver.schema.crd.structural_schema import OBJECT_META_FIELDS, meta_type
from bayplan.apiserver.schema.types import UNSET, FieldType, SchemaField, StructType, WireType, built_in_types

Tree = dict[str, Any]

RELEASE = "v1.36.4"
V2 = b"\n\x032.0"
"""The whole document of version 2: `swagger: "2.0"`, in the protobuf form that kubectl reads."""

_REF = "#/components/schemas/"
_MACHINERY = "io.k8s.apimachinery.pkg."
_SCALARS: dict[WireType, Tree] = {
    WireType.STRING: {"type": "string"},
    WireType.BOOL: {"type": "boolean"},
    WireType.INT32: {"type": "integer", "format": "int32"},
    WireType.INT64: {"type": "integer", "format": "int64"},
    WireType.FLOAT: {"type": "number", "format": "double"},
    WireType.BYTES: {"type": "string", "format": "byte"},
}
_EXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."
_NAMED_TYPES: dict[WireType, tuple[str, Tree]] = {
    WireType.TIME: (f"{_MACHINERY}apis.meta.v1.Time", {"type": "string", "format": "date-time"}),
    WireType.MICRO_TIME: (f"{_MACHINERY}apis.meta.v1.MicroTime", {"type": "string", "format": "date-time"}),
    WireType.DURATION: (f"{_MACHINERY}apis.meta.v1.Duration", {"type": "string"}),
    WireType.QUANTITY: (f"{_MACHINERY}api.resource.Quantity", {"oneOf": [{"type": "string"}, {"type": "number"}]}),
    WireType.INT_OR_STRING: (
        f"{_MACHINERY}util.intstr.IntOrString",
        {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    ),
    WireType.RAW: (f"{_MACHINERY}runtime.RawExtension", {"type": "object"}),
    WireType.FIELDS: (f"{_MACHINERY}apis.meta.v1.FieldsV1", {"type": "object"}),
    WireType.JSON: (f"{_EXTENSIONS}JSON", {}),
    WireType.SCHEMA_OR_ARRAY: (f"{_EXTENSIONS}JSONSchemaPropsOrArray", {}),
    WireType.SCHEMA_OR_BOOL: (f"{_EXTENSIONS}JSONSchemaPropsOrBool", {}),
    WireType.SCHEMA_OR_STRINGS: (f"{_EXTENSIONS}JSONSchemaPropsOrStringArray", {}),
}
_ACTIONS = {"create": "post", "update": "put", "patch": "patch", "delete": "delete", "get": "get"}
_JSON_PATCHES = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
_STRATEGIC = "application/strategic-merge-patch+json"


def index(groups: Mapping[str, Sequence[ServedResource]]) -> Tree:
    """The index of the documents by path: `api/v1`, `apis/apps/v1`."""
    return {
        "paths": {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={etag(resources)}"}
            for path, resources in groups.items()
        }
    }


def etag(resources: Iterable[ServedResource]) -> str:
    """A hash that changes with the document of these resources."""
    identity = [(each.api_version, each.kind, each.plural, each.definition) for each in resources]
    return hashlib.sha256(RELEASE.encode() + msgspec.json.encode(identity)).hexdigest().upper()


def document(resources: Sequence[ServedResource]) -> Tree:
    schemas = _Schemas()
    paths: Tree = {}
    for resource in resources:
        name = schemas.add_resource(resource)
        paths |= _paths(resource, name, schemas)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": RELEASE},
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.found.items()))},
    }


# Schemas.


class _Schemas:
    """The schemas of a document. Adding one adds all schemas that it refers to."""

    def __init__(self) -> None:
        self.found: Tree = {}

    def add_resource(self, resource: ServedResource) -> str:
        if resource.definition is not None:
            return self._add_custom(resource, resource.definition)
        return self.add_kind(resource.group, resource.version, resource.kind)

    def add_kind(self, group: str, version: str, kind: str) -> str:
        type_ = built_in_types().of(group, version, kind)
        if type_ is None:
            return ""
        self.add(type_)
        known = {"group": group, "kind": kind, "version": version}
        kinds = self.found[type_.openapi_name].setdefault("x-kubernetes-group-version-kind", [])
        if known not in kinds:
            kinds.append(known)
        return type_.openapi_name

    def add(self, type_: StructType) -> str:
        if type_.openapi_name not in self.found:
            schema: Tree = {"type": "object"}
            self.found[type_.openapi_name] = schema
            if type_.atomic:
                schema["x-kubernetes-map-type"] = "atomic"
            schema["properties"] = {each.name: self._property(each) for each in type_.fields.values()}
            required = [each.name for each in type_.fields.values() if each.required]
            if required:
                schema["required"] = sorted(required)
        return type_.openapi_name

    def _property(self, each: SchemaField) -> Tree:
        schema = self._shape(each.shape)
        if "$ref" in schema:
            schema = {"allOf": [schema]}
        facts = {
            "x-kubernetes-list-type": each.list_type,
            "x-kubernetes-list-map-keys": list(each.keys),
            "x-kubernetes-map-type": each.map_type,
            "x-kubernetes-patch-strategy": each.strategy,
            "x-kubernetes-patch-merge-key": each.merge_key,
        }
        schema |= {name: value for name, value in facts.items() if value}
        if each.default is not UNSET:
            schema["default"] = each.default
        return schema

    def _shape(self, shape: FieldType) -> Tree:
        if shape.kind is WireType.STRUCT:
            return {"$ref": f"{_REF}{self.add(shape.type)}"}
        if shape.kind is WireType.LIST and shape.item is not None:
            return {"type": "array", "items": self._shape(shape.item)}
        if shape.kind is WireType.MAP and shape.item is not None:
            return {"type": "object", "additionalProperties": self._shape(shape.item)}
        if shape.kind in _SCALARS:
            return {**_SCALARS[shape.kind], **({"enum": list(shape.values)} if shape.values else {})}
        name, schema = _NAMED_TYPES[shape.kind]
        self.found.setdefault(name, schema)
        return {"$ref": f"{_REF}{name}"}

    def _add_custom(self, resource: ServedResource, definition: Mapping[str, Any]) -> str:
        name = ".".join((*reversed(resource.group.split(".")), resource.version, resource.kind))
        given = (definition.get("schema") or {}).get("openAPIV3Schema") or {"type": "object"}
        metadata = {"allOf": [{"$ref": f"{_REF}{self.add(meta_type())}"}]}
        fields = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": metadata}
        own = {key: value for key, value in given.get("properties", {}).items() if key not in OBJECT_META_FIELDS}
        kind = {"group": resource.group, "kind": resource.kind, "version": resource.version}
        self.found[name] = {**given, "properties": {**fields, **own}, "x-kubernetes-group-version-kind": [kind]}
        return name


# Paths.


def _paths(resource: ServedResource, schema: str, schemas: _Schemas) -> Tree:
    root = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"
    many = f"{root}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"
    kind = {"group": resource.group, "kind": resource.kind, "version": resource.version}
    found: Tree = {many: _operations(resource.verbs, kind, schema, many=True)}
    if resource.stored:
        item = f"{many}/{{name}}"
        found[item] = _operations(resource.verbs, kind, schema, strategic=not resource.custom)
        for sub in resource.subresources:
            found[f"{item}/{sub.name}"] = _sub_operations(resource, sub, schema, schemas)
    return {path: operations for path, operations in found.items() if operations}


def _sub_operations(resource: ServedResource, sub: Subresource, schema: str, schemas: _Schemas) -> Tree:
    group, version = (sub.group, sub.version) if sub.version else (resource.group, resource.version)
    if sub.kind != resource.kind:
        schema = "" if sub.kind.endswith("Options") else schemas.add_kind(group, version, sub.kind)
    kind = {"group": group, "kind": sub.kind, "version": version}
    return _operations(sub.verbs, kind, schema, strategic=not resource.custom, creates=True)


def _operations(
    verbs: Iterable[str], kind: Tree, schema: str, *, many: bool = False, strategic: bool = False, creates: bool = False
) -> Tree:
    """The operations of a path. `many` marks the path of a list."""
    wanted = {"list", "create", "deletecollection"} if many else {"get", "update", "patch", "delete"}
    wanted |= {"create"} if creates else set()
    found: Tree = {}
    for verb in verbs:
        if verb not in wanted:
            continue
        method = {"list": "get", "deletecollection": "delete"}.get(verb) or _ACTIONS[verb]
        found[method] = _operation(verb, kind, schema, strategic=strategic)
    return found


def _operation(verb: str, kind: Tree, schema: str, *, strategic: bool) -> Tree:
    body = {"schema": {"$ref": f"{_REF}{schema}"}} if schema else {}
    operation: Tree = {
        "x-kubernetes-action": {"create": "post", "update": "put"}.get(verb, verb),
        "x-kubernetes-group-version-kind": kind,
        "responses": {"200": {"description": "OK", "content": {"application/json": body}}},
    }
    if verb in ("create", "update", "patch"):
        names = ("dryRun", "fieldManager", "fieldValidation", *(("force",) if verb == "patch" else ()))
        operation["parameters"] = [_parameter(name) for name in names]
        patches = (*_JSON_PATCHES, _STRATEGIC) if strategic else _JSON_PATCHES
        media = patches if verb == "patch" else ("application/json",)
        operation["requestBody"] = {"content": dict.fromkeys(media, body), "required": True}
    return operation


def _parameter(name: str) -> Tree:
    schema = {"type": "boolean" if name == "force" else "string", "uniqueItems": True}
    return {"name": name, "in": "query", "schema": schema}
