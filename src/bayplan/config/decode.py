"""Strict decoding of JSON into configuration structs, with Go's errors.

Go's strict decoder reports the first value of a wrong type in document order. A bad duration ends the decoding at once
and wins over it. Unknown and repeated fields are collected and reported together if there is no other error. All three
come out of one walk over the tree. Called once for a configuration and once for each plugin's arguments.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bayplan.codec.go_base64 import Base64Error, decode_base64
from bayplan.codec.go_duration import GoDuration, parse_duration
from bayplan.codec.go_text import quote
from bayplan.codec.json_text import JsonMember, JsonNumber, JsonObject, JsonValue
from bayplan.config.schema import (
    UINT8,
    ConfigField,
    ConfigStruct,
    GoBool,
    GoBytes,
    GoDurationField,
    GoFieldType,
    GoFloat,
    GoInt,
    GoRawExtension,
    GoSlice,
    GoString,
    GoStringMap,
    GoStruct,
    RawArgs,
    config_fields_by_name,
)
from bayplan.errors import ObjectError

_MAX_STRICT_ERRORS = 100
_TYPE_META = ("kind", "apiVersion")
_INTEGER = re.compile(r"-?[0-9]+\Z")

W = TypeVar("W", bound=ConfigStruct)


class DecodeError(ObjectError):
    """The document does not fit the struct. The message is Go's."""


@dataclass(frozen=True, slots=True)
class StrictDecoding:
    """An object, and the errors of strict decoding."""

    value: Any
    strict_errors: tuple[str, ...]


def decode_object(cls: type[W], node: JsonValue, text: str) -> StrictDecoding:
    """The struct that the tree of `text` describes; raises the first error that is not one of strict decoding."""
    walk = _StrictDecoder(text)
    value = cls() if node is None else walk.struct(GoStruct(cls), node, root=True)
    if walk.first_type_error is not None:
        raise DecodeError(walk.first_type_error)
    return StrictDecoding(value, tuple(walk.strict))


def json_type_name(node: JsonValue) -> str:
    """Go's name for the type of a JSON value."""
    if isinstance(node, bool):
        return "bool"
    if isinstance(node, str):
        return "string"
    if isinstance(node, list):
        return "array"
    return "number" if isinstance(node, JsonNumber) else "object"


@dataclass(slots=True)
class _StrictDecoder:
    """The position of the decoder and the errors found so far."""

    text: str
    first_type_error: str | None = None
    strict: dict[str, None] = field(default_factory=dict)
    _struct: str = ""
    _path: list[str] = field(default_factory=list)
    _place: str = ""

    def value(self, shape: GoFieldType, node: JsonValue) -> Any:
        """The value of a node that is not null; the zero value after an error, since decoding continues."""
        match shape:
            case GoStruct():
                return self.struct(shape, node)
            case GoSlice():
                return self._list(shape, node)
            case GoInt():
                return self._integer(shape, node)
            case GoFloat():
                return self._float(shape, node)
            case GoBool():
                return node if isinstance(node, bool) else self._wrong_type(node, shape.go_type)
            case GoString():
                return node if isinstance(node, str) else self._wrong_type(node, shape.go_type)
            case GoDurationField():
                return self._duration(node)
            case GoBytes():
                return self._bytes(shape, node)
            case GoStringMap():
                return self._map(shape, node)
            case GoRawExtension():
                raise AssertionError("raw values are cut out of the text by their struct")

    def struct(self, shape: GoStruct, node: JsonValue, *, root: bool = False) -> Any:
        if not isinstance(node, JsonObject):
            self._wrong_type(node, shape.go_type)
            return shape.cls()
        values: dict[str, Any] = {}
        seen: set[str] = set()
        known = config_fields_by_name(shape.cls)
        for member in node.members:
            described = known.get(member.key)
            if described is None and not (root and member.key in _TYPE_META):
                self._strict_error("unknown field", member.key)
                continue
            if member.key in seen:
                self._strict_error("duplicate field", member.key)
            seen.add(member.key)
            if described is not None:
                self._member(shape, described, member, values)
        return shape.cls(**values)

    def _member(self, shape: GoStruct, described: ConfigField, member: JsonMember, values: dict[str, Any]) -> None:
        if isinstance(described.shape, GoRawExtension):
            # A raw value accepts anything; null means that it is absent.
            values[described.attribute] = RawArgs("" if member.value is None else self.text[member.start : member.end])
            return
        with self._inside(shape.name, described):
            if member.value is not None:
                values[described.attribute] = self.value(described.shape, member.value)
                return
            values.pop(described.attribute, None)
            if isinstance(described.shape, GoDurationField) and not described.nullable:
                parse_duration("")  # raises: Go decodes null into a duration as the empty text

    @contextmanager
    def _inside(self, name: str, described: ConfigField) -> Iterator[None]:
        outer_struct, outer_place, depth = self._struct, self._place, len(self._path)
        self._struct = name
        self._path += [described.name] if described.embedded is None else [described.embedded, described.name]
        self._place = f"{outer_place}.{described.name}" if outer_place else described.name
        yield
        self._struct, self._place = outer_struct, outer_place
        del self._path[depth:]

    def _list(self, shape: GoSlice, node: JsonValue) -> tuple[Any, ...]:
        if not isinstance(node, list):
            self._wrong_type(node, shape.go_type)
            return ()
        return tuple(self._items(shape.item, node))

    def _items(self, shape: GoFieldType, nodes: list[JsonValue]) -> Iterator[Any]:
        place = self._place
        for index, item in enumerate(nodes):
            self._place = f"{place}[{index}]"
            found = self.value(shape, item) if item is not None else None
            yield _zero_value(shape) if found is None else found
        self._place = place

    def _map(self, shape: GoStringMap, node: JsonValue) -> dict[str, str]:
        if not isinstance(node, JsonObject):
            self._wrong_type(node, shape.go_type)
            return {}
        found: dict[str, str] = {}
        for member in node.members:
            if member.key in found:
                self._strict_error("duplicate field", member.key)
            text = "" if member.value is None else self.value(GoString(), member.value)
            found[member.key] = text or ""
        return found

    def _integer(self, shape: GoInt, node: JsonValue) -> Any:
        if not isinstance(node, JsonNumber):
            return self._wrong_type(node, shape.go_type)
        if _INTEGER.match(node.text) and shape.low <= int(node.text) <= shape.high:
            return int(node.text)
        return self._record_type_error(f"number {node.text}", shape.go_type)

    def _float(self, shape: GoFloat, node: JsonValue) -> Any:
        if not isinstance(node, JsonNumber):
            return self._wrong_type(node, shape.go_type)
        try:
            struct.pack("<f", float(node.text))
        except OverflowError:
            return self._record_type_error(f"number {node.text}", shape.go_type)
        if float(node.text) in (float("inf"), float("-inf")):
            return self._record_type_error(f"number {node.text}", shape.go_type)
        return float(node.text)

    def _duration(self, node: JsonValue) -> GoDuration:
        if not isinstance(node, str):
            raise DecodeError(self._type_fault(json_type_name(node), "string"))
        return parse_duration(node)

    def _bytes(self, shape: GoBytes, node: JsonValue) -> Any:
        if isinstance(node, list):
            return bytes(self._items(UINT8, node))
        if not isinstance(node, str):
            return self._wrong_type(node, shape.go_type)
        try:
            return decode_base64(node)
        except Base64Error as error:
            self.first_type_error = self.first_type_error or str(error)
            return None

    def _wrong_type(self, node: JsonValue, go_type: str) -> Any:
        return self._record_type_error(json_type_name(node), go_type)

    def _record_type_error(self, found: str, go_type: str) -> Any:
        """Record the first error. The returned value is not used."""
        self.first_type_error = self.first_type_error or self._type_fault(found, go_type)
        return None

    def _type_fault(self, found: str, go_type: str) -> str:
        into = f"struct field {self._struct}.{'.'.join(self._path)}" if self._path else "value"
        return f"json: cannot unmarshal {found} into Go {into} of type {go_type}"

    def _strict_error(self, what: str, key: str) -> None:
        if len(self.strict) < _MAX_STRICT_ERRORS:
            self.strict[f"{what} {quote(f'{self._place}.{key}' if self._place else key)}"] = None


def _zero_value(shape: GoFieldType) -> Any:
    match shape:
        case GoStruct():
            return shape.cls()
        case GoInt():
            return 0
        case GoString():
            return ""
    raise AssertionError(f"no list holds items of type {shape.go_type}")
