"""Errors of request bodies that do not fit their type: Go's error for the first wrong type, and all unknown fields.

Called only when the fast reader failed, dropped a field or found a repeated key, so speed does not matter. It walks the
parsed text, which has the order of keys, repeated keys and the digits of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bayplan.apiserver.schema.scalars import (
    ScalarError,
    canonical_base64,
    canonical_micro_time,
    canonical_quantity,
    canonical_time,
)
from bayplan.apiserver.schema.types import FieldType, SchemaField, StructType, WireType
from bayplan.codec.go_text import json_float, quote
from bayplan.codec.json_text import JsonNumber, JsonObject, JsonValue
from bayplan.codec.quantity import FORMAT_ERROR

_MAX_UNKNOWN_FIELDS = 100
_GO_SCALARS = {
    WireType.TIME: "string",
    WireType.MICRO_TIME: "string",
    WireType.DURATION: "string",
    WireType.INT_OR_STRING: "int32",
    WireType.BYTES: "[]uint8",
}
_WANTED: dict[WireType, str] = {
    WireType.STRING: "string",
    WireType.BYTES: "string",
    WireType.TIME: "string",
    WireType.MICRO_TIME: "string",
    WireType.DURATION: "string",
    WireType.BOOL: "bool",
    WireType.INT32: "number",
    WireType.INT64: "number",
    WireType.FLOAT: "number",
    WireType.LIST: "array",
    WireType.MAP: "object",
    WireType.STRUCT: "object",
}
_CANONICAL: dict[WireType, Callable[[str], str]] = {
    WireType.TIME: canonical_time,
    WireType.MICRO_TIME: canonical_micro_time,
    WireType.BYTES: canonical_base64,
}
_BITS = {WireType.INT32: 31, WireType.INT64: 63, WireType.INT_OR_STRING: 31}
_SCHEMA_WORDS = {
    WireType.SCHEMA_OR_ARRAY: "array",
    WireType.SCHEMA_OR_BOOL: "bool",
    WireType.SCHEMA_OR_STRINGS: "array",
}


class DecodeErrors:
    """`type_error` is the first value that does not fit its field.

    `unknown_fields` are unknown and repeated fields, in order.
    """

    def __init__(self, tree: JsonValue, type_: StructType, *, converted: bool = False) -> None:
        """`converted` selects the messages of upstream's map-to-struct converter instead of its JSON reader's."""
        self.type_error: str | None = None
        self._converted = converted
        self._unknown_fields: dict[str, None] = {}
        self._struct(tree, type_, "", ("", ""))

    @property
    def unknown_fields(self) -> list[str]:
        return list(self._unknown_fields)[:_MAX_UNKNOWN_FIELDS]

    def _struct(self, node: JsonValue, type_: StructType, path: str, place: tuple[str, str]) -> None:
        """`place` is the position in Go: the struct that holds the field, and the field path to it."""
        seen: set[str] = set()
        for key, value in _members(node):
            at = f"{path}.{key}" if path else key
            known = type_.fields.get(key)
            if known is None:
                self._unknown_fields[f"unknown field {quote(at)}"] = None
                continue
            if key in seen:
                self._unknown_fields[f"duplicate field {quote(at)}"] = None
            seen.add(key)
            self._field(value, known, at, (type_.struct, _join_path(place[1], known)))

    def _field(self, value: JsonValue, known: SchemaField, at: str, place: tuple[str, str]) -> None:
        if value is not None:
            self._value(value, known.shape, at, place)

    def _value(self, value: JsonValue, shape: FieldType, at: str, place: tuple[str, str]) -> None:
        if value is None:
            return
        kind, found = shape.kind, _word(value)
        if kind in (WireType.RAW, WireType.FIELDS, WireType.JSON):
            return
        if kind is WireType.QUANTITY:
            self._quantity(value)
        elif kind is WireType.INT_OR_STRING and found == "string":
            return
        elif kind in _SCHEMA_WORDS:
            self._schema(value, shape, at, place)
        elif found != _WANTED.get(kind, "number"):
            self._mismatch(found, shape, place)
        elif kind in _CANONICAL:
            self._text(value, kind)
        elif kind in _BITS:
            self._integer(value, shape, place)
        elif kind is WireType.STRUCT:
            self._struct(value, shape.type, at, place)
        elif shape.item is not None:
            self._inside(value, shape.item, at, place)

    def _inside(self, value: JsonValue, item: FieldType, at: str, place: tuple[str, str]) -> None:
        if isinstance(value, list):
            for index, each in enumerate(value):
                self._value(each, item, f"{at}[{index}]", place)
            return
        seen: set[str] = set()
        for key, each in _members(value):
            if key in seen:
                self._unknown_fields[f"duplicate field {quote(f'{at}.{key}')}"] = None
            seen.add(key)
            self._value(each, item, f"{at}.{key}", place)

    def _schema(self, value: JsonValue, shape: FieldType, at: str, place: tuple[str, str]) -> None:
        found = _word(value)
        if found == "object":
            self._struct(value, shape.type, at, place)
        elif found != _SCHEMA_WORDS[shape.kind]:
            self._report("boolean or JSON schema expected")
        elif shape.kind is WireType.SCHEMA_OR_ARRAY:
            for index, each in enumerate(value):
                self._struct(each, shape.type, f"{at}[{index}]", place)

    def _quantity(self, value: JsonValue) -> None:
        plain = value.text if isinstance(value, JsonNumber) else value
        if isinstance(plain, bool) or not isinstance(plain, (str, int, float)):
            self._report(FORMAT_ERROR)
            return
        try:
            canonical_quantity(plain)
        except ScalarError as error:
            self._report(str(error))

    def _text(self, value: str, kind: WireType) -> None:
        try:
            _CANONICAL[kind](value)
        except ScalarError as error:
            self._report(str(error))

    def _integer(self, value: JsonValue, shape: FieldType, place: tuple[str, str]) -> None:
        text = (
            value.text
            if isinstance(value, JsonNumber)
            else json_float(value)
            if isinstance(value, float)
            else str(value)
        )
        bound = 2 ** _BITS[shape.kind]
        if not (text.lstrip("-").isdigit() and -bound <= int(text) < bound):
            self._mismatch(f"number {text}", shape, place)

    def _mismatch(self, found: str, shape: FieldType, place: tuple[str, str]) -> None:
        if self._converted:
            self._report(_conversion_error(found, shape))
            return
        wanted = _GO_SCALARS.get(shape.kind, shape.go_name)
        where = f"Go struct field {place[0]}.{place[1]}" if place[0] else "Go value"
        self._report(f"json: cannot unmarshal {found} into {where} of type {wanted}")

    def _report(self, text: str) -> None:
        if self.type_error is None:
            self.type_error = text


_KINDS = {"object": "map", "array": "slice", "number": "int64"}
_NOT_RESTORED = {
    WireType.MAP: "cannot restore map from {}",
    WireType.LIST: "cannot restore slice from {}",
    WireType.BYTES: "cannot restore slice from {}",
    WireType.STRUCT: "cannot restore struct from: {}",
}


def _conversion_error(found: str, shape: FieldType) -> str:
    kind = _KINDS.get(found, found)
    if shape.kind in _NOT_RESTORED:
        return _NOT_RESTORED[shape.kind].format(kind)
    if shape.kind in (WireType.TIME, WireType.MICRO_TIME, WireType.INT_OR_STRING):
        return f"json: cannot unmarshal {found} into Go value of type {_GO_SCALARS[shape.kind]}"
    if kind == "int64" and shape.kind is WireType.STRING:
        return f"cannot convert int64 to {shape.go_name}"
    if found.startswith("number "):
        return f"cannot convert float64 to {shape.go_name}"
    return f"unrecognized type: {shape.kind}"


def _join_path(way: str, known: SchemaField) -> str:
    name = known.go_path or known.name
    return f"{way}.{name}" if way else name


def _members(node: JsonValue) -> Iterator[tuple[str, Any]]:
    if isinstance(node, JsonObject):
        return ((member.key, member.value) for member in node.members)
    return iter(node.items() if isinstance(node, dict) else ())


def _word(value: JsonValue) -> str:
    """Go's name for the type of a value."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, (dict, JsonObject)) else "number"


def duplicate_keys(node: JsonValue, path: str = "") -> list[str]:
    """The paths of all keys that occur twice in one object of the text, in order."""
    if isinstance(node, list):
        return [each for at, item in enumerate(node) for each in duplicate_keys(item, f"{path}[{at}]")]
    found: list[str] = []
    seen: set[str] = set()
    for key, value in _members(node):
        at = f"{path}.{key}" if path else key
        if key in seen and at not in found:
            found.append(at)
        seen.add(key)
        found += duplicate_keys(value, at)
    return found
