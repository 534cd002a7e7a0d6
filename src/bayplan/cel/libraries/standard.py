"""CEL's standard operators and functions, except conversions and times."""

from __future__ import annotations

from typing import Any

from bayplan.cel.errors import CelError, no_such_overload
from bayplan.cel.regex.regex import compile_regex
from bayplan.cel.types.declarations import Implementation, Overload, method
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
    list_of,
    map_of,
    optional_of,
    param,
)
from bayplan.cel.values import operators
from bayplan.cel.values.values import CelMap, GrowableMap, go_text, is_list

A, B, K, V = param("A"), param("B"), param("K"), param("V")
LIST_A, MAP_AB, MAP_KV = list_of(A), map_of(A, B), map_of(K, V)


def size_of(value: Any) -> int:
    if isinstance(value, str | bytes) or is_list(value) or isinstance(value, CelMap):
        return len(value)
    raise operators.unsupported_operator("size", value)


def contained_in(element: Any, container: Any) -> bool:
    if is_list(container):
        return any(operators.equal_for_membership(element, held) for held in container)
    if isinstance(container, CelMap):
        return container.contains(element)
    raise no_such_overload()


def _texts(left: Any, right: Any) -> None:
    if type(left) is not str or type(right) is not str:
        raise no_such_overload()


def contains(text: Any, part: Any) -> bool:
    _texts(text, part)
    return part in text


def starts_with(text: Any, part: Any) -> bool:
    _texts(text, part)
    return bool(text.startswith(part))


def ends_with(text: Any, part: Any) -> bool:
    _texts(text, part)
    return bool(text.endswith(part))


def matches(text: Any, pattern: Any) -> bool:
    if type(text) is not str:
        raise operators.unsupported_operator("matches", text)
    if type(pattern) is not str:
        raise no_such_overload()
    try:
        return compile_regex(pattern).matches(text)
    except ValueError as error:
        raise CelError(str(error)) from None


def not_strictly_false(value: Any) -> bool:
    return value if type(value) is bool else True


def map_insert(held: CelMap, key: Any, value: Any) -> CelMap:
    if held.contains(key):
        raise CelError(f"insert failed: key {go_text(key)} already exists")
    target = held if isinstance(held, GrowableMap) else CelMap(held.items())
    target.put(key, value)
    return target


def map_merge(held: CelMap, update: CelMap) -> CelMap:
    for key, value in update.items():
        held = map_insert(held, key, value)
    return held


def includes(target: Any, wanted: Any) -> bool:
    """Membership for attributes with one value or, from 1.36 on, a list of at most 48."""
    if not is_list(target):
        return operators.equal_for_membership(target, wanted)
    for i, held in enumerate(target):
        if i >= MAX_INCLUDES:
            raise CelError(f"'includes' function cannot be applied to lists longer than {MAX_INCLUDES} values")
        if operators.equal_for_membership(held, wanted):
            return True
    return False


MAX_INCLUDES = 48


def _operator(name: str, *signatures: tuple[str, tuple[CelType, ...], CelType | None]) -> list[Overload]:
    """By default, the result has the type of the first operand."""
    return [Overload(name, oid, args, result or args[0]) for oid, args, result in signatures]


def _relation(function: str, prefix: str) -> list[Overload]:
    """Numbers are ordered across their types, all other values only within their type."""
    pairs: list[tuple[str, CelType, CelType]] = [("bool", BOOL, BOOL)]
    numbers = {"int64": INT, "uint64": UINT, "double": DOUBLE}
    for left, left_type in numbers.items():
        pairs.append((left, left_type, left_type))
        # cel-go declares the mixed pairs in this order; none of them determines a type, so only completeness matters.
        pairs += [(f"{left}_{right}", left_type, t) for right, t in numbers.items() if right != left]
    pairs += [
        (n, t, t) for n, t in (("string", STRING), ("bytes", BYTES), ("timestamp", TIMESTAMP), ("duration", DURATION))
    ]
    return [Overload(function, f"{prefix}_{name}", (a, b), BOOL) for name, a, b in pairs]


def _sizes() -> list[Overload]:
    found: list[Overload] = []
    for name, t in (("bytes", BYTES), ("list", LIST_A), ("map", MAP_AB), ("string", STRING)):
        found.append(Overload("size", f"size_{name}", (t,), INT))
        found.append(Overload("size", f"{name}_size", (t,), INT, member=True))
    return found


def _unguarded_overload(name: str, overload_id: str, run: Implementation) -> Overload:
    return Overload(name, overload_id, (STRING, STRING), BOOL, member=True, run=run, guarded=False)


_TIMES = (
    ("duration_duration", (DURATION, DURATION), DURATION),
    ("duration_timestamp", (DURATION, TIMESTAMP), TIMESTAMP),
    ("timestamp_duration", (TIMESTAMP, DURATION), TIMESTAMP),
)

OVERLOADS: list[Overload] = [
    Overload("_?_:_", "conditional", (BOOL, A, A), A),
    Overload("_&&_", "logical_and", (BOOL, BOOL), BOOL),
    Overload("_||_", "logical_or", (BOOL, BOOL), BOOL),
    Overload("!_", "logical_not", (BOOL,), BOOL),
    Overload("@not_strictly_false", "not_strictly_false", (BOOL,), BOOL),
    Overload("_==_", "equals", (A, A), BOOL),
    Overload("_!=_", "not_equals", (A, A), BOOL),
    *_operator(
        "_+_",
        ("add_bytes", (BYTES, BYTES), None),
        ("add_double", (DOUBLE, DOUBLE), None),
        *((f"add_{n}", args, result) for n, args, result in _TIMES),
        ("add_int64", (INT, INT), None),
        ("add_list", (LIST_A, LIST_A), None),
        ("add_string", (STRING, STRING), None),
        ("add_uint64", (UINT, UINT), None),
    ),
    *_operator(
        "_-_",
        ("subtract_double", (DOUBLE, DOUBLE), None),
        ("subtract_duration_duration", (DURATION, DURATION), None),
        ("subtract_int64", (INT, INT), None),
        ("subtract_timestamp_duration", (TIMESTAMP, DURATION), None),
        ("subtract_timestamp_timestamp", (TIMESTAMP, TIMESTAMP), DURATION),
        ("subtract_uint64", (UINT, UINT), None),
    ),
    *(
        Overload(symbol, f"{verb}_{name}", (t, t), t)
        for symbol, verb in (("_*_", "multiply"), ("_/_", "divide"))
        for name, t in (("double", DOUBLE), ("int64", INT), ("uint64", UINT))
    ),
    *_operator("_%_", ("modulo_int64", (INT, INT), None), ("modulo_uint64", (UINT, UINT), None)),
    *_operator("-_", ("negate_double", (DOUBLE,), None), ("negate_int64", (INT,), None)),
    *_relation("_<_", "less"),
    *_relation("_<=_", "less_equals"),
    *_relation("_>_", "greater"),
    *_relation("_>=_", "greater_equals"),
    Overload("_[_]", "index_list", (LIST_A, INT), A),
    Overload("_[_]", "index_map", (MAP_AB, A), B),
    Overload("_[_]", "optional_list_index_int", (optional_of(list_of(V)), INT), optional_of(V)),
    Overload("_[_]", "optional_map_index_value", (optional_of(MAP_KV), K), optional_of(V)),
    Overload("@in", "in_list", (A, LIST_A), BOOL),
    Overload("@in", "in_map", (A, MAP_AB), BOOL),
    *_sizes(),
    _unguarded_overload("contains", "contains_string", contains),
    _unguarded_overload("endsWith", "ends_with_string", ends_with),
    _unguarded_overload("startsWith", "starts_with_string", starts_with),
    Overload("matches", "matches", (STRING, STRING), BOOL),
    Overload("matches", "matches_string", (STRING, STRING), BOOL, member=True),
    Overload("cel.@mapInsert", "@mapInsert_map_key_value", (MAP_KV, K, V), MAP_KV, run=map_insert),
    Overload("cel.@mapInsert", "@mapInsert_map_map", (MAP_KV, MAP_KV), MAP_KV, run=map_merge),
    method("includes", "dra_includes_dyn_dyn", (DYN, DYN), BOOL, includes),
]

SINGLETONS: dict[str, Implementation] = {
    **operators.BINARY,
    "!_": operators.logical_not,
    "-_": operators.negate,
    "@not_strictly_false": not_strictly_false,
    "@in": contained_in,
    "size": size_of,
    "matches": matches,
}
