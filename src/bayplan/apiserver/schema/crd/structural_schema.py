"""Prunes and defaults custom resources, and coerces their metadata.

Called for every write of a custom resource, before its validation. The schema is the CRD's own. Functions change trees
in place, so callers pass a copy. Cost: linear in the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bayplan.apiserver.schema.decode_errors import DecodeErrors
from bayplan.apiserver.schema.object_reader import WrongTypeError, deep_copy, reader_of, unknown_field_count
from bayplan.apiserver.schema.types import StructType, built_in_types
from bayplan.codec.go_text import json_text

Schema = Mapping[str, Any]
Tree = dict[str, Any]

PRESERVE_UNKNOWN_FIELDS = "x-kubernetes-preserve-unknown-fields"
EMBEDDED_RESOURCE = "x-kubernetes-embedded-resource"
OBJECT_META_FIELDS = ("apiVersion", "kind", "metadata")


def meta_type() -> StructType:
    """ObjectMeta."""
    type_ = built_in_types().of("", "v1", "Pod")
    assert type_ is not None
    return type_.fields["metadata"].shape.type


def additional_properties(schema: Schema) -> Schema | None:
    """The schema of undeclared fields: the empty one if any value is allowed, None if no such field is."""
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        return more
    return {PRESERVE_UNKNOWN_FIELDS: True} if more is True else None


# Unknown fields.


def prune(tree: Tree, schema: Schema) -> list[str]:
    """Drop the fields that the schema does not declare. Returns their paths, sorted."""
    dropped: list[str] = []
    _prune_map(tree, schema, "", dropped, root=True)
    return sorted(dropped)


def _prune(value: Any, schema: Schema | None, path: str, dropped: list[str]) -> None:
    if isinstance(value, dict):
        _prune_map(value, schema, path, dropped)
    elif isinstance(value, list):
        for at, each in enumerate(value):
            _prune(each, _items(schema), f"{path}[{at}]", dropped)


def _items(schema: Schema | None) -> Schema | None:
    """The schema of a list's elements. Below a value that preserves unknown fields, elements preserve them too."""
    if schema is None:
        return None
    items = schema.get("items")
    if isinstance(items, dict):
        return items
    return {PRESERVE_UNKNOWN_FIELDS: True} if schema.get(PRESERVE_UNKNOWN_FIELDS) else None


def _prune_map(value: Tree, schema: Schema | None, path: str, dropped: list[str], *, root: bool = False) -> None:
    known = schema.get("properties", {}) if schema else {}
    undeclared = additional_properties(schema) if schema else None
    keeps_all = bool(schema and schema.get(PRESERVE_UNKNOWN_FIELDS))
    embedded = root or bool(schema and schema.get(EMBEDDED_RESOURCE))
    for key in list(value):
        if embedded and key in OBJECT_META_FIELDS:
            continue
        at = f"{path}.{key}" if path else key
        if key in known:
            _prune(value[key], known[key], at, dropped)
        elif undeclared is not None:
            _prune(value[key], undeclared, at, dropped)
        elif not keeps_all:
            dropped.append(at)
            del value[key]


# Nulls and defaults.


def drop_nulls(value: Any, schema: Schema | None) -> None:
    """Drop nulls where the schema does not allow null and has no default in their place."""
    if isinstance(value, dict):
        for key in list(value):
            below = _field(schema, key)
            if value[key] is None and below is not None and not below.get("nullable") and below.get("default") is None:
                del value[key]
            else:
                drop_nulls(value[key], below)
    elif isinstance(value, list):
        items = schema.get("items") if schema else None
        for each in value:
            drop_nulls(each, items)


@dataclass(slots=True)
class SchemaDefaults:
    """The defaults of a schema and of its subschemas; None stands for a schema without defaults."""

    own: dict[str, tuple[Any, bool]] = field(default_factory=dict)
    """By field: the default, and whether null is allowed."""
    fields: dict[str, SchemaDefaults] = field(default_factory=dict)
    undeclared: SchemaDefaults | None = None
    items: SchemaDefaults | None = None
    element: tuple[Any, bool] | None = None
    """The default of undeclared fields or of elements, and whether null is allowed."""


def compile_defaults(schema: Schema) -> SchemaDefaults | None:
    """The defaults for `apply_defaults`; None if there are none."""
    defaults = SchemaDefaults()
    for name, below in schema.get("properties", {}).items():
        if below.get("default") is not None:
            defaults.own[name] = (below["default"], bool(below.get("nullable")))
        if (found := compile_defaults(below)) is not None:
            defaults.fields[name] = found
    for inner in (schema.get("additionalProperties"), schema.get("items")):
        if isinstance(inner, Mapping) and inner.get("default") is not None:
            defaults.element = (inner["default"], bool(inner.get("nullable")))
    more, items = schema.get("additionalProperties"), schema.get("items")
    defaults.undeclared = compile_defaults(more) if isinstance(more, Mapping) else None
    defaults.items = compile_defaults(items) if isinstance(items, Mapping) else None
    return (
        defaults
        if defaults.own or defaults.fields or defaults.undeclared or defaults.items or defaults.element
        else None
    )


def apply_defaults(value: Any, defaults: SchemaDefaults) -> None:
    """Fill in the defaults, in place."""
    if isinstance(value, dict):
        for name, (default, nullable) in defaults.own.items():
            if name not in value or (value[name] is None and not nullable):
                value[name] = deep_copy(default)
        for name, below in defaults.fields.items():
            if name in value:
                apply_defaults(value[name], below)
        if defaults.undeclared is not None or defaults.element is not None:
            for name in value:
                value[name] = _apply_element_defaults(value[name], defaults, defaults.undeclared)
    elif isinstance(value, list):
        for at, each in enumerate(value):
            value[at] = _apply_element_defaults(each, defaults, defaults.items)


def _apply_element_defaults(value: Any, defaults: SchemaDefaults, below: SchemaDefaults | None) -> Any:
    if value is None and defaults.element is not None and not defaults.element[1]:
        value = deep_copy(defaults.element[0])
    if below is not None:
        apply_defaults(value, below)
    return value


def _field(schema: Schema | None, key: str) -> Schema | None:
    if schema is None:
        return None
    known: Schema | None = schema.get("properties", {}).get(key)
    if known is not None:
        return known
    more = schema.get("additionalProperties")
    return more if isinstance(more, Mapping) else None


# Metadata.


class MetadataError(Exception):
    """Metadata that cannot be decoded. The message is the API server's."""


def coerce_metadata(tree: Tree, schema: Schema | None) -> list[str]:
    """Coerce the metadata, with a schema also that of embedded resources.

    Returns the unknown fields that were dropped.
    """
    dropped: list[str] = []
    if "metadata" in tree:
        tree["metadata"] = _metadata(tree["metadata"], "metadata", dropped)
    _coerce(tree, schema, "", dropped)
    return dropped


def _coerce(value: Any, schema: Schema | None, path: str, dropped: list[str]) -> None:
    if schema is None:
        return
    if isinstance(value, dict):
        if path and schema.get(EMBEDDED_RESOURCE) and value.get("metadata") is not None:
            try:
                value["metadata"] = _metadata(value["metadata"], f"{path}.metadata", dropped)
            except MetadataError as error:
                shown = json_text(value["metadata"])
                raise MetadataError(f"{path}.metadata: Invalid value: {shown}: {error}") from None
        for key, each in value.items():
            _coerce(each, _field(schema, key), f"{path}.{key}" if path else key, dropped)
    elif isinstance(value, list):
        items = schema.get("items")
        for at, each in enumerate(value):
            _coerce(each, items, f"{path}[{at}]", dropped)


def _metadata(value: Any, path: str, dropped: list[str]) -> Tree:
    type_ = meta_type()
    if value is not None and not isinstance(value, dict):
        word = {list: "array", str: "string", bool: "bool"}.get(type(value), "number")
        raise MetadataError(f"json: cannot unmarshal {word} into Go value of type {type_.name}")
    before = unknown_field_count()
    try:
        read = reader_of(type_)(value)
    except WrongTypeError:
        raise MetadataError(str(DecodeErrors(value, type_).type_error)) from None
    if unknown_field_count() != before:
        dropped += [each.replace('"', f'"{path}.', 1) for each in DecodeErrors(value, type_).unknown_fields]
    return read
