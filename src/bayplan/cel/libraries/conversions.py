"""Conversions such as `int(x)` and `string(x)`."""

from __future__ import annotations

import math
from typing import Any

from bayplan.cel.errors import CelError
from bayplan.cel.types.declarations import Implementation, Overload
from bayplan.cel.types.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    CelType,
    param,
    type_of_type,
)
from bayplan.cel.values import go_format
from bayplan.cel.values.operators import MAX_SECOND, MIN_SECOND
from bayplan.cel.values.values import (
    INT_MAX,
    INT_MIN,
    TWO_TO_63,
    TWO_TO_64,
    UINT_MAX,
    CelDuration,
    CelTimestamp,
    TypeValue,
    Uint,
    type_name,
)

A = param("A")


def _identity(value: Any) -> Any:
    return value


def _conversion_error(source: CelType, target: CelType) -> CelError:
    return CelError(f"type conversion error from '{source.name}' to '{target.name}'")


def _parse_as(parse: Implementation, target: CelType) -> Implementation:
    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError:
            raise _conversion_error(STRING, target) from None

    return convert


def _int_in_range(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise ValueError
    return value


def _uint_in_range(value: int) -> Uint:
    if value > UINT_MAX:
        raise ValueError
    return Uint(value)


def _double_to_int(value: float) -> int:
    if not -TWO_TO_63 < value < TWO_TO_63:
        raise CelError("integer overflow")
    return int(value)


def _double_to_uint(value: float) -> Uint:
    if not 0 <= value < TWO_TO_64 or math.isnan(value):
        raise CelError("unsigned integer overflow")
    return Uint(int(value))


def _int_to_uint(value: int) -> Uint:
    if value < 0:
        raise CelError("unsigned integer overflow")
    return Uint(value)


def _uint_to_int(value: Uint) -> int:
    if value > INT_MAX:
        raise CelError("integer overflow")
    return int(value)


def _in_time_range(nanos: int, offset_s: int) -> CelTimestamp:
    if not MIN_SECOND <= nanos // go_format.NANOS <= MAX_SECOND:
        raise CelError("timestamp overflow")
    return CelTimestamp(nanos, offset_s)


def _bytes_to_string(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise CelError("invalid UTF-8 in bytes, cannot convert to string") from None


def _int_to_duration(_: int) -> CelDuration:
    # Declared but always an error: an integer has no unit.
    raise _conversion_error(INT, DURATION)


def type_of(value: Any) -> TypeValue:
    return TypeValue(type_name(value))


def to_string(value: Any) -> str:
    """`string()` of any convertible value; format clauses use it too."""
    for t, run in _TO_STRING:
        if t.name == type_name(value):
            return str(run(value))
    raise CelError(f"type conversion error from '{type_name(value)}' to 'string'")


_TO_STRING: list[tuple[CelType, Implementation]] = [
    (STRING, _identity),
    (BOOL, lambda v: "true" if v else "false"),
    (BYTES, _bytes_to_string),
    (DOUBLE, go_format.format_general),
    (DURATION, lambda v: go_format.format_duration(v.nanos)),
    (INT, str),
    (TIMESTAMP, lambda v: go_format.format_time(v.nanos, v.offset_s)),
    (UINT, lambda v: str(int(v))),
]
_TO_INT: dict[CelType, Implementation] = {
    INT: _identity,
    DOUBLE: _double_to_int,
    DURATION: lambda v: v.nanos,
    STRING: _parse_as(lambda text: _int_in_range(go_format.parse_int(text)), INT),
    TIMESTAMP: lambda v: v.nanos // go_format.NANOS,
    UINT: _uint_to_int,
}
_TO_UINT: dict[CelType, Implementation] = {
    UINT: _identity,
    DOUBLE: _double_to_uint,
    INT: _int_to_uint,
    STRING: _parse_as(lambda text: _uint_in_range(go_format.parse_uint(text)), UINT),
}
_TO_DOUBLE: dict[CelType, Implementation] = {
    DOUBLE: _identity,
    INT: float,
    STRING: _parse_as(go_format.parse_float, DOUBLE),
    UINT: lambda v: float(int(v)),
}
_TO_BOOL: dict[CelType, Implementation] = {BOOL: _identity, STRING: _parse_as(go_format.parse_bool, BOOL)}
_TO_BYTES: dict[CelType, Implementation] = {BYTES: _identity, STRING: lambda text: text.encode()}
_TO_DURATION: dict[CelType, Implementation] = {
    DURATION: _identity,
    INT: _int_to_duration,
    STRING: _parse_as(lambda text: CelDuration(go_format.parse_duration(text)), DURATION),
}
_TO_TIMESTAMP: dict[CelType, Implementation] = {
    TIMESTAMP: _identity,
    INT: lambda v: _in_time_range(v * go_format.NANOS, 0),
    STRING: _parse_as(lambda text: _in_time_range(*go_format.parse_time(text)), TIMESTAMP),
}


def to_timestamp(value: str | int) -> CelTimestamp:
    run = _TO_TIMESTAMP[STRING if isinstance(value, str) else INT]
    found: CelTimestamp = run(value)
    return found


# Overload ids have the width of number types in their names.
_ID = {BOOL: "bool", BYTES: "bytes", DOUBLE: "double", DURATION: "duration", INT: "int64", STRING: "string"}
_ID |= {TIMESTAMP: "timestamp", UINT: "uint64"}


def _conversions(name: str, target: CelType, sources: dict[CelType, Implementation]) -> list[Overload]:
    return [
        Overload(name, f"{_ID[source]}_to_{_ID[target]}", (source,), target, run=run) for source, run in sources.items()
    ]


OVERLOADS: list[Overload] = [
    Overload("type", "type", (A,), type_of_type(A)),
    *_conversions("bool", BOOL, _TO_BOOL),
    *_conversions("bytes", BYTES, _TO_BYTES),
    *_conversions("double", DOUBLE, _TO_DOUBLE),
    *_conversions("duration", DURATION, _TO_DURATION),
    Overload("dyn", "to_dyn", (A,), DYN),
    *_conversions("int", INT, _TO_INT),
    *_conversions("string", STRING, dict(_TO_STRING)),
    *_conversions("timestamp", TIMESTAMP, _TO_TIMESTAMP),
    *_conversions("uint", UINT, _TO_UINT),
]

SINGLETONS: dict[str, Implementation] = {"type": type_of, "dyn": _identity}

# Calls of these on a constant are evaluated once, at compile time.
CONVERSIONS = frozenset(["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"])
