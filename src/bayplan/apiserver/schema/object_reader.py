"""What would Go have kept of this object? The object itself, read and written back as the API server does it.

Asked for every object that comes in, before anything else looks at it. Unknown fields and nulls go, empty values go
where Go omits them, fields that Go always writes appear, quantities and times get their one spelling. The result shares
nothing with the argument. A reader is a function of a value, put together once for each type; a pod of two kilobytes
takes some 30 µs. Readers say only that something is wrong (`Strange`); `complaints` says what, at leisure.
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
from bayplan.apiserver.schema.types import (
    Field,
    Kind,
    Shape,
    Type,
)

Read = Callable[[Any], Any]

_INT32 = 2**31
_INT64 = 2**63


class Strange(Exception):
    """A value has the wrong type for its field."""


_unknown = [0]


def unknown_fields() -> int:
    """How many fields were dropped because nobody knows them, ever: compare before and after."""
    return _unknown[0]


class Reader:
    """Reads objects of one type."""

    __slots__ = ("_always", "_fields", "_type")

    def __init__(self, type_: Type) -> None:
        self._type = type_
        self._fields: dict[str, tuple[str, Read, bool]] | None = None
        self._always: list[tuple[str, Callable[[], Any]]] = []

    def __call__(self, value: Any) -> dict[str, Any]:
        return self.read(value)

    def read(self, value: Any) -> dict[str, Any]:
        """What is kept of a value; the same as calling, without the way around that a call of an object takes."""
        if type(value) is not dict:
            if value is None:
                return self.zero()
            raise Strange
        fields = self._fields
        if fields is None:
            fields = self._compile()
        out: dict[str, Any] = {}
        for key, given in value.items():
            known = fields.get(key)
            if known is None:
                _unknown[0] += 1
            elif given is not None:
                name, read, drop_empty = known
                if type(read) is Reader:
                    reader = read
                    got = reader.read(given)
                else:
                    got = read(given)
                if got or not drop_empty:
                    out[name] = got
        for name, make in self._always:
            if name not in out:
                out[name] = make()
        return out

    def again(self, value: Any, known: Any) -> dict[str, Any]:
        """The same for a value of which parts are those of `known`, which was read before: they are taken over."""
        if type(value) is not dict or type(known) is not dict:
            return self.read(value)
        fields = self._fields
        if fields is None:
            fields = self._compile()
        out: dict[str, Any] = {}
        for key, given in value.items():
            if given is None:
                if key not in fields:
                    _unknown[0] += 1
                continue
            before = known.get(key)
            if given is before:
                out[key] = given
            elif key not in fields:
                _unknown[0] += 1
            else:
                name, read, drop_empty = fields[key]
                if type(read) is Reader:
                    reader = read
                    got = reader.again(given, before)
                else:
                    got = read(given)
                if got or not drop_empty:
                    out[name] = got
        for name, make in self._always:
            if name not in out:
                out[name] = make()
        return out

    def zero(self) -> dict[str, Any]:
        """What Go writes for a struct of which nothing was given."""
        if self._fields is None:
            self._compile()
        return {name: make() for name, make in self._always}

    def _compile(self) -> dict[str, tuple[str, Read, bool]]:
        fields = {}
        for each in self._type.fields.values():
            fields[each.name] = (each.name, field_reader(each), each.dropped_when_empty)
            if (make := _always_written(each)) is not None:
                self._always.append((each.name, make))
        self._fields = fields
        return fields


def reader_of(type_: Type) -> Reader:
    made: Reader | None = type_.memory.get("reader")
    if made is None:
        made = type_.memory["reader"] = Reader(type_)
    return made


def _always_written(each: Field) -> Callable[[], Any] | None:
    """What stands in for a field that was not given, None if nothing does."""
    if each.omitzero or (each.omitempty and (each.pointer or each.dropped_when_empty)):
        return None
    if each.pointer:
        return _nothing
    return zero_of(each.shape)


def zero_of(shape: Shape) -> Callable[[], Any]:
    """What Go writes for a value of this shape that was not given."""
    return reader_of(shape.type).zero if shape.kind is Kind.STRUCT else _ZEROS[shape.kind]


def _nothing() -> None:
    return None


_ZEROS: dict[Kind, Callable[[], Any]] = {
    Kind.STRING: str,
    Kind.BOOL: bool,
    Kind.INT32: int,
    Kind.INT64: int,
    Kind.FLOAT: int,
    Kind.QUANTITY: lambda: "0",
    Kind.INT_OR_STRING: int,
    Kind.DURATION: lambda: "0s",
    **dict.fromkeys(
        (
            *(Kind.BYTES, Kind.LIST, Kind.MAP, Kind.TIME, Kind.MICRO_TIME, Kind.RAW, Kind.FIELDS, Kind.JSON),
            *(Kind.SCHEMA_OR_ARRAY, Kind.SCHEMA_OR_BOOL, Kind.SCHEMA_OR_STRINGS),
        ),
        _nothing,
    ),
}


def field_reader(each: Field) -> Read:
    read = shape_reader(each.shape)
    if each.dropped_when_empty or each.pointer or each.shape.kind not in (Kind.LIST, Kind.MAP):
        return read
    # An empty list that Go must write comes back from storage as none at all.
    return lambda value: read(value) or None


def shape_reader(shape: Shape) -> Read:
    if shape.kind is Kind.STRUCT:
        return reader_of(shape.type)
    if shape.kind is Kind.LIST:
        assert shape.item is not None
        return _list_reader(shape_reader(shape.item), zero_of(shape.item))
    if shape.kind is Kind.MAP:
        assert shape.item is not None
        return _map_reader(shape_reader(shape.item), zero_of(shape.item))
    if shape.kind in _SCHEMAS:
        return _schema_reader(shape)
    return _SCALARS[shape.kind]


def _list_reader(read: Read, zero: Callable[[], Any]) -> Read:
    if type(read) is Reader:
        read = read.read

    def items(value: Any) -> Any:
        if type(value) is not list:
            raise Strange
        return [read(item) if item is not None else zero() for item in value]

    return items


def _map_reader(read: Read, zero: Callable[[], Any]) -> Read:
    def members(value: Any) -> Any:
        if type(value) is not dict:
            raise Strange
        return {key: read(item) if item is not None else zero() for key, item in value.items()}

    return members


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    raise Strange


def _bool(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise Strange


def _int32(value: Any) -> int:
    if type(value) is int and -_INT32 <= value < _INT32:
        return value
    raise Strange


def _int64(value: Any) -> int:
    if type(value) is int and -_INT64 <= value < _INT64:
        return value
    raise Strange


def _float(value: Any) -> float:
    if type(value) is int or type(value) is float:
        return value
    raise Strange


def _int_or_string(value: Any) -> int | str:
    return value if type(value) is str else _int32(value)


def _quantity(value: Any) -> str:
    if type(value) not in (str, int, float):
        raise Strange
    try:
        return canonical_quantity(value)
    except ScalarError:
        raise Strange from None


def _text_reader(canonical: Callable[[str], str]) -> Read:
    def read(value: Any) -> str:
        if type(value) is not str:
            raise Strange
        try:
            return canonical(value)
        except ScalarError:
            raise Strange from None

    return read


def copied(value: Any) -> Any:
    """A copy of plain JSON that shares no dict and no list."""
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    if type(value) is list:
        return [copied(item) for item in value]
    return value


_SCALARS: dict[Kind, Read] = {
    Kind.STRING: _string,
    Kind.BOOL: _bool,
    Kind.INT32: _int32,
    Kind.INT64: _int64,
    Kind.FLOAT: _float,
    Kind.BYTES: _text_reader(canonical_base64),
    Kind.TIME: _text_reader(canonical_time),
    Kind.MICRO_TIME: _text_reader(canonical_micro_time),
    Kind.DURATION: _string,
    Kind.QUANTITY: _quantity,
    Kind.INT_OR_STRING: _int_or_string,
    Kind.RAW: copied,
    Kind.FIELDS: copied,
    Kind.JSON: copied,
}
_SCHEMAS = frozenset({Kind.SCHEMA_OR_ARRAY, Kind.SCHEMA_OR_BOOL, Kind.SCHEMA_OR_STRINGS})


def _schema_reader(shape: Shape) -> Read:
    """Where a schema may stand, or something simpler."""
    schema = reader_of(shape.type).read

    def read(value: Any) -> Any:
        if type(value) is dict:
            return schema(value)
        if shape.kind is Kind.SCHEMA_OR_BOOL:
            return _bool(value)
        if type(value) is not list:
            raise Strange
        return [schema(item) if shape.kind is Kind.SCHEMA_OR_ARRAY else _string(item) for item in value]

    return read
