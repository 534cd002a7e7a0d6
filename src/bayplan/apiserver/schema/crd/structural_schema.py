"""What does a custom resource keep of what was sent: which fields go, which defaults come, which metadata is sound?

Asked for every write of a custom resource, before it is validated. The schema is the CRD's, as it stands there; trees
are changed in place, so callers hand in their own copy. Cost: linear in the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bayplan.apiserver.schema.decode_errors import DecodeErrors
from bayplan.apiserver.schema.object_reader import (
    WrongTypeError,
    deep_copy,
    reader_of,
    unknown_field_count,
)
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
    """The schema of fields that are not declared; the empty one if anything goes, None if nothing does."""
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        return more
    return {PRESERVE_UNKNOWN_FIELDS: True} if more is True else None


# Unknown fields.


def prune(tree: Tree, schema: Schema) -> list[str]:
    """Drop what the schema does not know; the paths of what went, sorted."""
    gone: list[str] = []
    _prune_map(tree, schema, "", gone, root=True)
    return sorted(gone)


def _prune(value: Any, schema: Schema | None, path: str, gone: list[str]) -> None:
    if isinstance(value, dict):
        _prune_map(value, schema, path, gone)
    elif isinstance(value, list):
        for at, each in enumerate(value):
            _prune(each, _items(schema), f"{path}[{at}]", gone)


def _items(schema: Schema | None) -> Schema | None:
    """The schema of a list's elements; below something that is kept whole everything is."""
    if schema is None:
        return None
    items = schema.get("items")
    if isinstance(items, dict):
        return items
    return {PRESERVE_UNKNOWN_FIELDS: True} if schema.get(PRESERVE_UNKNOWN_FIELDS) else None


def _prune_map(value: Tree, schema: Schema | None, path: str, gone: list[str], *, root: bool = False) -> None:
    known = schema.get("properties", {}) if schema else {}
    others = additional_properties(schema) if schema else None
    keeps_all = bool(schema and schema.get(PRESERVE_UNKNOWN_FIELDS))
    embedded = root or bool(schema and schema.get(EMBEDDED_RESOURCE))
    for key in list(value):
        if embedded and key in OBJECT_META_FIELDS:
            continue
        at = f"{path}.{key}" if path else key
        if key in known:
            _prune(value[key], known[key], at, gone)
        elif others is not None:
            _prune(value[key], others, at, gone)
        elif not keeps_all:
            gone.append(at)
            del value[key]


# Nulls and defaults.


def drop_nulls(value: Any, schema: Schema | None) -> None:
    """Drop nulls where null is not allowed and no default would take their place."""
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
    """The defaults of a schema and of what is below it; only places with defaults have one."""

    own: dict[str, tuple[Any, bool]] = field(default_factory=dict)
    """By field: the default, and whether null may stay."""
    fields: dict[str, SchemaDefaults] = field(default_factory=dict)
    others: SchemaDefaults | None = None
    items: SchemaDefaults | None = None
    element: tuple[Any, bool] | None = None
    """The default of fields that are not declared, or of elements."""


def compile_defaults(schema: Schema) -> SchemaDefaults | None:
    """What `apply_defaults` works by; None if there is nothing to fill in."""
    made = SchemaDefaults()
    for name, below in schema.get("properties", {}).items():
        if below.get("default") is not None:
            made.own[name] = (below["default"], bool(below.get("nullable")))
        if (found := compile_defaults(below)) is not None:
            made.fields[name] = found
    for inner in (schema.get("additionalProperties"), schema.get("items")):
        if isinstance(inner, Mapping) and inner.get("default") is not None:
            made.element = (inner["default"], bool(inner.get("nullable")))
    more, items = schema.get("additionalProperties"), schema.get("items")
    made.others = compile_defaults(more) if isinstance(more, Mapping) else None
    made.items = compile_defaults(items) if isinstance(items, Mapping) else None
    return made if made.own or made.fields or made.others or made.items or made.element else None


def apply_defaults(value: Any, filling: SchemaDefaults) -> None:
    """Put in the defaults, in place."""
    if isinstance(value, dict):
        for name, (default, nullable) in filling.own.items():
            if name not in value or (value[name] is None and not nullable):
                value[name] = deep_copy(default)
        for name, below in filling.fields.items():
            if name in value:
                apply_defaults(value[name], below)
        if filling.others is not None or filling.element is not None:
            for name in value:
                value[name] = _with_defaults(value[name], filling, filling.others)
    elif isinstance(value, list):
        for at, each in enumerate(value):
            value[at] = _with_defaults(each, filling, filling.items)


def _with_defaults(value: Any, filling: SchemaDefaults, below: SchemaDefaults | None) -> Any:
    if value is None and filling.element is not None and not filling.element[1]:
        value = deep_copy(filling.element[0])
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
    """Metadata that cannot be read; the message is the API server's."""


def coerce_metadata(tree: Tree, schema: Schema | None) -> list[str]:
    """Bring metadata into its form; with a schema that of embedded resources too. The unknown fields that went."""
    gone: list[str] = []
    if "metadata" in tree:
        tree["metadata"] = _metadata(tree["metadata"], "metadata", gone)
    _coerce(tree, schema, "", gone)
    return gone


def _coerce(value: Any, schema: Schema | None, path: str, gone: list[str]) -> None:
    if schema is None:
        return
    if isinstance(value, dict):
        if path and schema.get(EMBEDDED_RESOURCE) and value.get("metadata") is not None:
            try:
                value["metadata"] = _metadata(value["metadata"], f"{path}.metadata", gone)
            except MetadataError as error:
                shown = json_text(value["metadata"])
                raise MetadataError(f"{path}.metadata: Invalid value: {shown}: {error}") from None
        for key, each in value.items():
            _coerce(each, _field(schema, key), f"{path}.{key}" if path else key, gone)
    elif isinstance(value, list):
        items = schema.get("items")
        for at, each in enumerate(value):
            _coerce(each, items, f"{path}[{at}]", gone)


def _metadata(value: Any, path: str, gone: list[str]) -> Tree:
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
        gone += [each.replace('"', f'"{path}.', 1) for each in DecodeErrors(value, type_).unknown_fields]
    return read
