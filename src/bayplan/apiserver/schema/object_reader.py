"""Reads and rewrites objects of built-in kinds as Go does.

Called for every object in a request, before any other check. Unknown fields and nulls are dropped, empty values are
dropped where Go omits them, and fields that Go always writes are added. Quantities and times get their canonical form.
The result shares nothing with the argument. A reader is a function of a value, built once per type; a pod of two
kilobytes takes about 30 µs. Readers report only that a value is wrong (`WrongTypeError`); `decode_errors` finds out
what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bayplan.apiserver.schema.scalars import (
    ScalarError,
    canonical_base64,
    canonical_micro_time,
    canonical_quantity,
    canonical_time,
)
from bayplan.apiserver.schema.types import FieldType, SchemaField, StructType, WireType

ReadFunction = Callable[[Any], Any]

_INT32 = 2**31
_INT64 = 2**63


class WrongTypeError(Exception):
    """A value has the wrong type for its field."""


_unknown_count = [0]


def unknown_field_count() -> int:
    """The number of unknown fields dropped so far in this process; callers compare it before and after a read."""
    return _unknown_count[0]


class ObjectReader:
    __slots__ = ("_always", "_fields", "_type")

    def __init__(self, type_: StructType) -> None:
        self._type = type_
        self._fields: dict[str, tuple[str, ReadFunction, bool]] | None = None
        self._always: list[tuple[str, Callable[[], Any]]] = []

    def __call__(self, value: Any) -> dict[str, Any]:
        return self.read(value)

    def read(self, value: Any) -> dict[str, Any]:
        """The object as stored. Equal to calling the reader, without the cost of `__call__`."""
        if type(value) is not dict:
            if value is None:
                return self.zero()
            raise WrongTypeError
        fields = self._fields
        if fields is None:
            fields = self._compile()
        out: dict[str, Any] = {}
        for key, given in value.items():
            known = fields.get(key)
            if known is None:
                _unknown_count[0] += 1
            elif given is not None:
                name, read, drop_empty = known
                if type(read) is ObjectReader:
                    reader = read
                    result = reader.read(given)
                else:
                    result = read(given)
                if result or not drop_empty:
                    out[name] = result
        for name, make in self._always:
            if name not in out:
                out[name] = make()
        return out

    def read_changed(self, value: Any, known: Any) -> dict[str, Any]:
        """Read a value that shares parts with `known`, an object that was read before.

        Shared parts are reused as they are.
        """
        if type(value) is not dict or type(known) is not dict:
            return self.read(value)
        fields = self._fields
        if fields is None:
            fields = self._compile()
        out: dict[str, Any] = {}
        for key, given in value.items():
            if given is None:
                if key not in fields:
                    _unknown_count[0] += 1
                continue
            before = known.get(key)
            if given is before:
                out[key] = given
            elif key not in fields:
                _unknown_count[0] += 1
            else:
                name, read, drop_empty = fields[key]
                if type(read) is ObjectReader:
                    reader = read
                    result = reader.read_changed(given, before)
                else:
                    result = read(given)
                if result or not drop_empty:
                    out[name] = result
        for name, make in self._always:
            if name not in out:
                out[name] = make()
        return out

    def zero(self) -> dict[str, Any]:
        """The value that Go writes for a struct without fields."""
        if self._fields is None:
            self._compile()
        return {name: make() for name, make in self._always}

    def _compile(self) -> dict[str, tuple[str, ReadFunction, bool]]:
        fields = {}
        for each in self._type.fields.values():
            fields[each.name] = (each.name, field_reader(each), each.omitted_when_empty)
            if (make := _missing_value_factory(each)) is not None:
                self._always.append((each.name, make))
        self._fields = fields
        return fields


def reader_of(type_: StructType) -> ObjectReader:
    reader: ObjectReader | None = type_.memory.get("reader")
    if reader is None:
        reader = type_.memory["reader"] = ObjectReader(type_)
    return reader


def _missing_value_factory(each: SchemaField) -> Callable[[], Any] | None:
    """The function that makes the value of a missing field; None if Go omits it."""
    if each.omitzero or (each.omitempty and (each.pointer or each.omitted_when_empty)):
        return None
    if each.pointer:
        return _return_none
    return zero_of(each.shape)


def zero_of(shape: FieldType) -> Callable[[], Any]:
    """The function that makes Go's zero value of this shape."""
    return reader_of(shape.type).zero if shape.kind is WireType.STRUCT else _ZEROS[shape.kind]


def _return_none() -> None:
    return None


_ZEROS: dict[WireType, Callable[[], Any]] = {
    WireType.STRING: str,
    WireType.BOOL: bool,
    WireType.INT32: int,
    WireType.INT64: int,
    WireType.FLOAT: int,
    WireType.QUANTITY: lambda: "0",
    WireType.INT_OR_STRING: int,
    WireType.DURATION: lambda: "0s",
    **dict.fromkeys(
        (
            *(
                WireType.BYTES,
                WireType.LIST,
                WireType.MAP,
                WireType.TIME,
                WireType.MICRO_TIME,
                WireType.RAW,
                WireType.FIELDS,
                WireType.JSON,
            ),
            *(WireType.SCHEMA_OR_ARRAY, WireType.SCHEMA_OR_BOOL, WireType.SCHEMA_OR_STRINGS),
        ),
        _return_none,
    ),
}


def field_reader(each: SchemaField) -> ReadFunction:
    read = shape_reader(each.shape)
    if each.omitted_when_empty or each.pointer or each.shape.kind not in (WireType.LIST, WireType.MAP):
        return read
    # Go writes an empty list here; storage returns it as null.
    return lambda value: read(value) or None


def shape_reader(shape: FieldType) -> ReadFunction:
    if shape.kind is WireType.STRUCT:
        return reader_of(shape.type)
    if shape.kind is WireType.LIST:
        assert shape.item is not None
        return _list_reader(shape_reader(shape.item), zero_of(shape.item))
    if shape.kind is WireType.MAP:
        assert shape.item is not None
        return _map_reader(shape_reader(shape.item), zero_of(shape.item))
    if shape.kind in _SCHEMAS:
        return _schema_reader(shape)
    return _SCALARS[shape.kind]


def _list_reader(read: ReadFunction, zero: Callable[[], Any]) -> ReadFunction:
    if type(read) is ObjectReader:
        read = read.read

    def items(value: Any) -> Any:
        if type(value) is not list:
            raise WrongTypeError
        return [read(item) if item is not None else zero() for item in value]

    return items


def _map_reader(read: ReadFunction, zero: Callable[[], Any]) -> ReadFunction:
    def members(value: Any) -> Any:
        if type(value) is not dict:
            raise WrongTypeError
        return {key: read(item) if item is not None else zero() for key, item in value.items()}

    return members


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    raise WrongTypeError


def _bool(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise WrongTypeError


def _int32(value: Any) -> int:
    if type(value) is int and -_INT32 <= value < _INT32:
        return value
    raise WrongTypeError


def _int64(value: Any) -> int:
    if type(value) is int and -_INT64 <= value < _INT64:
        return value
    raise WrongTypeError


def _float(value: Any) -> float:
    if type(value) is int or type(value) is float:
        return value
    raise WrongTypeError


def _int_or_string(value: Any) -> int | str:
    return value if type(value) is str else _int32(value)


def _quantity(value: Any) -> str:
    if type(value) not in (str, int, float):
        raise WrongTypeError
    try:
        return canonical_quantity(value)
    except ScalarError:
        raise WrongTypeError from None


def _text_reader(canonical: Callable[[str], str]) -> ReadFunction:
    def read(value: Any) -> str:
        if type(value) is not str:
            raise WrongTypeError
        try:
            return canonical(value)
        except ScalarError:
            raise WrongTypeError from None

    return read


def deep_copy(value: Any) -> Any:
    if type(value) is dict:
        return {key: deep_copy(item) for key, item in value.items()}
    if type(value) is list:
        return [deep_copy(item) for item in value]
    return value


_SCALARS: dict[WireType, ReadFunction] = {
    WireType.STRING: _string,
    WireType.BOOL: _bool,
    WireType.INT32: _int32,
    WireType.INT64: _int64,
    WireType.FLOAT: _float,
    WireType.BYTES: _text_reader(canonical_base64),
    WireType.TIME: _text_reader(canonical_time),
    WireType.MICRO_TIME: _text_reader(canonical_micro_time),
    WireType.DURATION: _string,
    WireType.QUANTITY: _quantity,
    WireType.INT_OR_STRING: _int_or_string,
    WireType.RAW: deep_copy,
    WireType.FIELDS: deep_copy,
    WireType.JSON: deep_copy,
}
_SCHEMAS = frozenset({WireType.SCHEMA_OR_ARRAY, WireType.SCHEMA_OR_BOOL, WireType.SCHEMA_OR_STRINGS})


def _schema_reader(shape: FieldType) -> ReadFunction:
    """The reader of a schema, or of the simpler values that may stand in its place."""
    schema = reader_of(shape.type).read

    def read(value: Any) -> Any:
        if type(value) is dict:
            return schema(value)
        if shape.kind is WireType.SCHEMA_OR_BOOL:
            return _bool(value)
        if type(value) is not list:
            raise WrongTypeError
        return [schema(item) if shape.kind is WireType.SCHEMA_OR_ARRAY else _string(item) for item in value]

    return read
