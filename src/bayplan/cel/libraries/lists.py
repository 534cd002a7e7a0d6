"""Lists: functions of the API server and cel-go's extension."""

from __future__ import annotations

from collections.abc import Callable
from functools import cmp_to_key
from typing import Any

from bayplan.cel.errors import COST_EXCEEDED, CelError, EvaluationAborted, no_such_overload
from bayplan.cel.types.declarations import Implementation, Overload, function, method
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
    param,
)
from bayplan.cel.values import operators
from bayplan.cel.values.cost import LIMIT
from bayplan.cel.values.values import CelDuration, CelTimestamp, Uint, is_list, type_name

A, T = param("A"), param("T")
LIST_A, LIST_T, LIST_DYN = list_of(A), list_of(T), list_of(DYN)

_ORDERED: frozenset[type] = frozenset({bool, int, Uint, float, str, bytes, CelDuration, CelTimestamp})
_ADDABLE: frozenset[type] = frozenset({int, Uint, float, str, bytes, tuple, list, CelDuration, CelTimestamp})


def _order(left: Any, right: Any) -> int | None:
    """-1, 0, 1, or None if the two values have no order."""
    try:
        return operators.compare("_<_", left, right)
    except CelError:
        return None


def _only_ordered(value: Any) -> None:
    if type(value) not in _ORDERED:
        raise no_such_overload()


def is_sorted(values: Any) -> bool:
    for i, value in enumerate(values):
        _only_ordered(value)
        if i and _order(values[i - 1], value) == 1:
            return False
    return True


def _sum(zero: Any) -> Implementation:
    def run(values: Any) -> Any:
        total = zero
        for value in values:
            if type(value) not in _ADDABLE:
                raise no_such_overload()
            total = operators.add(total, value)
        return total

    return run


def _extreme(name: str, replaced_when: int) -> Implementation:
    def run(values: Any) -> Any:
        if not values:
            raise CelError(f"{name} called on empty list")
        best = values[0]
        _only_ordered(best)
        for value in values[1:]:
            _only_ordered(value)
            if _order(best, value) == replaced_when:
                best = value
        return best

    return run


def index_of(values: Any, wanted: Any) -> int:
    return next((i for i, value in enumerate(values) if operators.equal_for_membership(value, wanted)), -1)


def last_index_of(values: Any, wanted: Any) -> int:
    return next((i for i in range(len(values) - 1, -1, -1) if operators.equal_for_membership(values[i], wanted)), -1)


_COMPARABLE: tuple[tuple[str, CelType], ...] = (
    ("int", INT),
    ("uint", UINT),
    ("double", DOUBLE),
    ("bool", BOOL),
    ("duration", DURATION),
    ("timestamp", TIMESTAMP),
    ("string", STRING),
    ("bytes", BYTES),
)
_SUMMABLE: tuple[tuple[str, CelType, Any], ...] = (
    ("int", INT, 0),
    ("uint", UINT, Uint(0)),
    ("double", DOUBLE, 0.0),
    ("duration", DURATION, CelDuration(0)),
)

KUBERNETES: list[Overload] = [
    *(method("isSorted", f"list_{n}_is_sorted_bool", (list_of(t),), BOOL, is_sorted) for n, t in _COMPARABLE),
    *(method("sum", f"list_{n}_sum_{n}", (list_of(t),), t, _sum(zero)) for n, t, zero in _SUMMABLE),
    *(method("max", f"list_{n}_max_{n}", (list_of(t),), t, _extreme("max", -1)) for n, t in _COMPARABLE),
    *(method("min", f"list_{n}_min_{n}", (list_of(t),), t, _extreme("min", 1)) for n, t in _COMPARABLE),
    method("indexOf", "list_a_index_of_int", (LIST_A, A), INT, index_of),
    method("lastIndexOf", "list_a_last_index_of_int", (LIST_A, A), INT, last_index_of),
]


def slice_of(values: Any, start: int, end: int) -> tuple[Any, ...]:
    call = f"cannot slice({start}, {end})"
    if start < 0 or end < 0:
        raise CelError(f"{call}, negative indexes not supported")
    if start > end:
        raise CelError(f"{call}, start index must be less than or equal to end index")
    if len(values) < end:
        raise CelError(f"{call}, list is length {len(values)}")
    return tuple(values[start:end])


def flatten(values: Any, *depth: Any) -> tuple[Any, ...]:
    if not is_list(values) or (depth and type(depth[0]) is not int):
        shown = ", ".join(type_name(d) for d in depth)
        raise CelError(f"no such overload: {type_name(values)}.flatten({shown})")
    levels = depth[0] if depth else 1
    if levels < 0:
        raise CelError("level must be non-negative")
    return tuple(_flatten(values, levels))


def _flatten(values: Any, levels: int) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        if is_list(value) and levels > 0:
            flat += _flatten(value, levels - 1)
        else:
            flat.append(value)
    return flat


def sort_by_keys(values: Any, keys: Any) -> tuple[Any, ...]:
    if not is_list(values):
        raise operators.unsupported_operator("@sortByAssociatedKeys", values)
    return _sort_by(values, keys)


def sort(values: Any) -> tuple[Any, ...]:
    if not is_list(values):
        raise operators.unsupported_operator("sort", values)
    return _sort_by(values, values)


def _sort_by(values: Any, keys: Any) -> tuple[Any, ...]:
    if len(values) != len(keys):
        raise CelError(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, "
            f"but got {len(values)} and {len(keys)} elements respectively"
        )
    if not values:
        return tuple(values)
    if type(keys[0]) not in _ORDERED:
        raise CelError("list elements must be comparable")
    if len(keys) > 1 and any(type(key) is not type(keys[0]) for key in keys):
        raise CelError("list elements must have the same type")
    by_key: Callable[[int], Any] = cmp_to_key(lambda i, j: _order(keys[i], keys[j]) or 0)
    return tuple(values[i] for i in sorted(range(len(values)), key=by_key))


def numbers(count: int) -> tuple[int, ...]:
    if count > LIMIT:
        # The list would cost more than the limit, so it is not built.
        raise EvaluationAborted(COST_EXCEEDED)
    return tuple(range(count))


def reverse(values: Any) -> tuple[Any, ...]:
    return tuple(reversed(values))


def distinct(values: Any) -> tuple[Any, ...]:
    found: list[Any] = []
    for value in values:
        if not any(operators.equal_for_membership(value, other) for other in found):
            found.append(value)
    return tuple(found)


def _sortable(name: str, template: str, keyed: bool) -> list[Overload]:
    return [
        Overload(
            name,
            template.format(t.name),
            (LIST_T, list_of(t)) if keyed else (list_of(t),),
            LIST_T if keyed else list_of(t),
            member=True,
        )
        for _, t in _COMPARABLE
    ]


EXTENSION: list[Overload] = [
    method("slice", "list_slice", (LIST_T, INT, INT), LIST_T, slice_of),
    Overload("flatten", "list_flatten", (list_of(LIST_T),), LIST_T, member=True, run=flatten, guarded=False),
    Overload("flatten", "list_flatten_int", (LIST_DYN, INT), LIST_DYN, member=True, run=flatten, guarded=False),
    *_sortable("sort", "list_{}_sort", keyed=False),
    *_sortable("@sortByAssociatedKeys", "list_{}_sortByAssociatedKeys", keyed=True),
    function("lists.range", "lists_range", (INT,), list_of(INT), numbers),
    method("reverse", "list_reverse", (LIST_T,), LIST_T, reverse),
    method("distinct", "list_distinct", (LIST_T,), LIST_T, distinct),
]

SINGLETONS: dict[str, Implementation] = {"sort": sort, "@sortByAssociatedKeys": sort_by_keys}
