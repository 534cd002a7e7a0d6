"""Costs of calls in the units of upstream's limit.

Computed at compile time for every call; the result is a constant or a function of the arguments' sizes. The numbers are
cel-go's and the API server's, including the rounding, because an expression that upstream stops must stop here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bayplan.cel.errors import EvaluationAborted
from bayplan.cel.values.values import (
    CelDuration,
    CelMap,
    CelTimestamp,
    Cidr,
    Ip,
    NamedFormat,
    OptionalValue,
    Uint,
    go_type,
    is_list,
)

LIST_COST, MAP_COST = 10, 30
# resource.k8s.io: CELSelectorExpressionMaxCost and CELSelectorExpressionMaxLength
LIMIT = 1_000_000
MAX_LENGTH = 10 * 1024

_TRAVERSAL, _REGEX = 0.1, 0.25


class _Failed:
    """Placeholder for a failed argument; it has the size of a scalar."""

    __slots__ = ()


FAILED = _Failed()

ByArgs = Callable[[Sequence[Any]], int]


@dataclass(frozen=True, slots=True)
class Cost:
    """`fixed` plus the cost of arguments and result."""

    fixed: int = 0
    by_args: ByArgs | None = None
    by_result: Callable[[Any], int] | None = None


ONE = Cost(1)


def size(value: Any) -> int:
    kind = type(value)
    if kind is str or kind is tuple or kind is bytes or kind is list:
        return len(value)
    if isinstance(value, CelMap):
        return len(value)
    if kind is Ip:
        return 4 if value.address.version == 4 else 16
    if isinstance(value, Cidr):
        return math.ceil(value.bits / 8)
    return 1


def _size_through_optional(value: Any) -> int:
    while isinstance(value, OptionalValue) and value.has_value:
        value = value.value
    return size(value)


def _traverse(count: int) -> int:
    return math.ceil(count * _TRAVERSAL)


# Most strings are short, and every comparison of two calls this.
MAX_TABLE = 256
TRAVERSE = tuple(_traverse(n) for n in range(MAX_TABLE + 1))


def traverse(count: int) -> int:
    return TRAVERSE[count] if count <= MAX_TABLE else _traverse(count)


def comparison(left: Any, right: Any) -> int:
    """The cost of `==`, `!=` and ordering of strings: the length of the shorter one."""
    return traverse(min(_size_through_optional(left), _size_through_optional(right)))


def _first(args: Sequence[Any]) -> int:
    return traverse(size(args[0]))


def _first_twice(args: Sequence[Any]) -> int:
    return math.ceil(size(args[0]) * 2 * _TRAVERSAL)


def _regex(args: Sequence[Any]) -> int:
    return math.ceil((1.0 + size(args[0])) * _TRAVERSAL) * math.ceil(size(args[1]) * _REGEX)


def _contains(args: Sequence[Any]) -> int:
    return traverse(size(args[0])) * traverse(size(args[1]))


def _sum_of_sizes(args: Sequence[Any]) -> int:
    return math.ceil((size(args[0]) + size(args[1])) * _TRAVERSAL)


def _shorter(args: Sequence[Any]) -> int:
    return comparison(args[0], args[1])


def _second(args: Sequence[Any]) -> int:
    return size(args[1])


def _tree(value: Any) -> int:
    """The cost of walking a whole value; strings count by bytes here."""
    if isinstance(value, str):
        return int(len(value.encode()) * _TRAVERSAL)
    if isinstance(value, bytes):
        return int(len(value) * _TRAVERSAL)
    if is_list(value):
        return sum(_tree(element) for element in value)
    if isinstance(value, CelMap):
        return sum(_tree(key) + _tree(held) for key, held in value.items())
    return 1


def _traversal_cost(args: Sequence[Any]) -> int:
    return _tree(args[0])


def _contains_ip(args: Sequence[Any], *, parse: bool) -> int:
    cost = math.ceil(2 * size(args[0]) * _TRAVERSAL)
    return cost + (traverse(size(args[1])) if parse else 0)


def _contains_cidr(args: Sequence[Any], *, parse: bool) -> int:
    cost = math.ceil(2 * size(args[0]) * _TRAVERSAL) + traverse(size(args[0])) + 1
    return cost + (traverse(size(args[1])) if parse else 0)


def _validate(args: Sequence[Any]) -> int:
    if not isinstance(args[0], NamedFormat):
        return 1
    return math.ceil((1.0 + size(args[1])) * _TRAVERSAL) * math.ceil(args[0].regex_size * _REGEX)


def _selector(args: Sequence[Any]) -> int:
    """The cost of parsing a selector: a pass over the text, and a struct and a list for every two characters."""
    length = size(args[1])
    return LIST_COST + traverse(length) + math.ceil(math.ceil(length * 0.5) * 50.0)


def _sets(factor: float) -> ByArgs:
    return lambda args: 1 + int(size(args[0]) * size(args[1]) * factor)


def _new_list(length: int) -> int:
    return length + 1 + LIST_COST


def _flatten(args: Sequence[Any]) -> int:
    if len(args) == 2 and type(args[1]) is not int:
        name = "*types.Err" if args[1] is FAILED else go_type(args[1])
        raise EvaluationAborted(f"internal error: interface conversion: ref.Val is {name}, not types.Int")
    depth = float(args[1]) if len(args) == 2 else 1.0
    # Unsigned arithmetic: a negative depth wraps around.
    return (int(size(args[0]) * depth) + 1 + LIST_COST) % (1 << 64)


def _quadratic_cost(index: int) -> ByArgs:
    """The cost of comparing all elements of a list with each other."""

    def cost(args: Sequence[Any]) -> int:
        values = args[index]
        if not is_list(values):
            raise EvaluationAborted(_require_list(values))
        factor = 2.0 + (_TRAVERSAL if values and type(values[0]) in (str, bytes) else 0.0)
        return int(len(values) ** 2 * factor) + 1 + LIST_COST

    return cost


def _require_list(value: Any) -> str:
    adders = (str, int, Uint, float, bytes, CelDuration, CelTimestamp)
    missing = "Contains" if type(value) in adders else "Add"
    name = "*types.Err" if value is FAILED else go_type(value)
    return f"internal error: interface conversion: {name} is not traits.Lister: missing method {missing}"


_BY_OVERLOAD: dict[str, Cost] = {
    "list_slice": Cost(by_result=lambda result: _new_list(size(result))),
    "lists_range": Cost(by_result=lambda result: _new_list(size(result))),
    "list_reverse": Cost(by_result=lambda result: _new_list(size(result))),
    "list_flatten": Cost(by_args=_flatten),
    "list_flatten_int": Cost(by_args=_flatten),
    "list_distinct": Cost(by_args=_quadratic_cost(0)),
    "list_sets_contains_list": Cost(by_args=_sets(1)),
    "list_sets_intersects_list": Cost(by_args=_sets(1)),
    "list_sets_equivalent_list": Cost(by_args=_sets(2)),
}
for _element in [
    "int",
    "uint",
    "double",
    "bool",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
    "string",
    "bytes",
]:
    _BY_OVERLOAD[f"list_{_element}_sort"] = Cost(by_args=_quadratic_cost(0))
    _BY_OVERLOAD[f"list_{_element}_sortByAssociatedKeys"] = Cost(by_args=_quadratic_cost(1))

_BY_FUNCTION: dict[str, Cost] = {
    "check": Cost(350_000),
    **dict.fromkeys(("fieldSelector", "labelSelector"), Cost(by_args=_selector)),
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), Cost(by_args=_traversal_cost)),
    **dict.fromkeys(("url", "lowerAscii", "upperAscii", "substring", "trim"), Cost(by_args=_first)),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), Cost(by_args=_first_twice)),
    "join": Cost(by_result=lambda result: math.ceil(size(result) * 2 * _TRAVERSAL)),
    **dict.fromkeys(("find", "findAll"), Cost(by_args=_regex)),
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "ip"), Cost(by_args=_first)),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver"), Cost(by_args=_first)),
    "validate": Cost(by_args=_validate),
    "containsIP": Cost(by_args=lambda args: _contains_ip(args, parse=False)),
    "containsCIDR": Cost(by_args=lambda args: _contains_cidr(args, parse=False)),
}
_BY_BOTH: dict[str, Cost] = {
    "cidr_ip": ONE,
    "cidr_contains_ip_string": Cost(by_args=lambda args: _contains_ip(args, parse=True)),
    "cidr_contains_cidr_string": Cost(by_args=lambda args: _contains_cidr(args, parse=True)),
}
_DEFAULTS: dict[str, Cost] = {
    **dict.fromkeys(
        (
            "starts_with_string",
            "ends_with_string",
            "string_to_bytes",
            "bytes_to_string",
            "strings_quote",
            "string_format",
        ),
        Cost(by_args=_first),
    ),
    "in_list": Cost(by_args=_second),
    **dict.fromkeys(("add_string", "add_bytes"), Cost(by_args=_sum_of_sizes)),
    "matches_string": Cost(by_args=_regex),
    "contains_string": Cost(by_args=_contains),
}
for _relation in ("less", "greater", "less_equals", "greater_equals"):
    for _text in ("string", "bytes"):
        _DEFAULTS[f"{_relation}_{_text}"] = Cost(by_args=_shorter)


def cost_of(function: str, overloads: tuple[str, ...]) -> Cost:
    """Only a call with a single possible overload is charged as that overload."""
    overload = overloads[0] if len(overloads) == 1 else ""
    for table, name in (
        (_BY_OVERLOAD, overload),
        (_BY_BOTH, overload),
        (_BY_FUNCTION, function),
        (_DEFAULTS, overload),
    ):
        if name in table:
            return table[name]
    return ONE
