"""Writes patched objects as JSON with Go's order of fields.

Only error messages about patches show it. Structs have their fields in the order of declaration; maps, and all that the
patch touched, are sorted. Called when a patch is refused. Cost: linear in the object.
"""

from __future__ import annotations

from typing import Any

from bayplan.apiserver.schema.types import FieldType, StructType, WireType
from bayplan.codec.go_text import json_text

Tree = dict[str, Any]


def encode_ordered(tree: Tree, touched: Any, type_: StructType | None) -> str:
    """The object as JSON.

    `touched` is a tree of the paths that the patch touched. Without a type all keys are sorted.
    """
    return json_text(_order_fields(tree, touched, type_) if type_ is not None else tree, sort_keys=type_ is None)


def patched_fields(patch: Any) -> Tree:
    """The tree of the fields that a patch touches: a merge patch itself, or the paths of a JSON patch."""
    if isinstance(patch, dict):
        return patch
    found: Tree = {}
    for operation in patch:
        at = found
        path = operation.get("path", "") if isinstance(operation, dict) else ""
        for name in path.split("/")[1:-1] if isinstance(path, str) else ():
            at = at.setdefault(name.replace("~1", "/").replace("~0", "~"), {})
    return found


def _order_fields(value: Any, touched: Any, type_: StructType | None) -> Any:
    touched_fields = touched if isinstance(touched, dict) else None
    if isinstance(value, list):
        return [_order_fields(each, (touched_fields or {}).get(str(at)), type_) for at, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    declared = list(type_.fields) if type_ is not None and touched_fields is None else []
    names = [name for name in declared if name in value]
    names += sorted(value.keys() - set(names))
    return {name: _order_fields(value[name], (touched_fields or {}).get(name), _type_at(type_, name)) for name in names}


def _type_at(type_: StructType | None, name: str) -> StructType | None:
    """The type of a field's value or of its elements, if that is a struct."""
    known = type_.fields.get(name) if type_ is not None else None
    shape: FieldType | None = known.shape if known is not None else None
    while shape is not None and shape.item is not None:
        shape = shape.item
    return shape.type if shape is not None and shape.kind is WireType.STRUCT else None
