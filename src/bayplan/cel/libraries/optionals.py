"""Optional values. `or` and `orValue` are lazy, so the compiler evaluates them."""

from __future__ import annotations

from typing import Any

from bayplan.cel.errors import CelError
from bayplan.cel.types.declarations import Overload, function, method
from bayplan.cel.types.types import BOOL, DYN, INT, STRING, list_of, map_of, optional_of, param
from bayplan.cel.values.values import (
    MISSING,
    NONE,
    CelDuration,
    CelMap,
    CelTimestamp,
    OptionalValue,
    Uint,
    go_text,
    is_list,
)

K, V = param("K"), param("V")
OPT_V, LIST_V, MAP_KV = optional_of(V), list_of(V), map_of(K, V)
LIST_OPT_V = list_of(OPT_V)
# Go's zero time is the first second of year 1.
_ZERO_TIME = -62_135_596_800 * 1_000_000_000


def of(value: Any) -> OptionalValue:
    return OptionalValue(value)


def of_non_zero(value: Any) -> OptionalValue:
    return NONE if _is_zero(value) else OptionalValue(value)


def _is_zero(value: Any) -> bool:
    if value is None:
        return True
    if type(value) in (bool, int, Uint, float, str, bytes):
        return not value
    if is_list(value) or isinstance(value, CelMap):
        return len(value) == 0
    if isinstance(value, CelDuration):
        return value.nanos == 0
    return isinstance(value, CelTimestamp) and value.nanos == _ZERO_TIME


def none() -> OptionalValue:
    return NONE


def value_of(held: OptionalValue) -> Any:
    return held.get()


def has_value(held: OptionalValue) -> bool:
    return held.has_value


def first(values: Any) -> OptionalValue:
    return OptionalValue(values[0]) if values else NONE


def last(values: Any) -> OptionalValue:
    return OptionalValue(values[-1]) if values else NONE


def unwrap(values: Any) -> tuple[Any, ...]:
    for value in values:
        if not isinstance(value, OptionalValue):
            raise CelError(f"value {go_text(value)} is not optional")
    return tuple(value.get() for value in values if value.value is not MISSING)


def _unused(*_: Any) -> Any:
    raise AssertionError("the compiler evaluates this lazily")


OVERLOADS: list[Overload] = [
    function("optional.of", "optional_of", (V,), OPT_V, of),
    function("optional.ofNonZeroValue", "optional_ofNonZeroValue", (V,), OPT_V, of_non_zero),
    function("optional.none", "optional_none", (), OPT_V, none),
    method("value", "optional_value", (OPT_V,), V, value_of),
    method("hasValue", "optional_hasValue", (OPT_V,), BOOL, has_value),
    method("or", "optional_or_optional", (OPT_V, OPT_V), OPT_V, _unused),
    method("orValue", "optional_orValue_value", (OPT_V, V), V, _unused),
    function("_?._", "select_optional_field", (DYN, STRING), OPT_V, _unused),
    function("_[?_]", "list_optindex_optional_int", (LIST_V, INT), OPT_V, _unused),
    function("_[?_]", "optional_list_optindex_optional_int", (optional_of(LIST_V), INT), OPT_V, _unused),
    function("_[?_]", "map_optindex_optional_value", (MAP_KV, K), OPT_V, _unused),
    function("_[?_]", "optional_map_optindex_optional_value", (optional_of(MAP_KV), K), OPT_V, _unused),
    method("last", "list_last", (LIST_V,), OPT_V, last),
    method("first", "list_first", (LIST_V,), OPT_V, first),
    function("optional.unwrap", "optional_unwrap", (LIST_OPT_V,), LIST_V, unwrap),
    method("unwrapOpt", "optional_unwrapOpt", (LIST_OPT_V,), LIST_V, unwrap),
]
