"""CEL's operators.

Arithmetic is checked 64-bit, ordering and equality work across the number types, and a wrong type raises cel-go's
error. Called for every operator of every evaluation: the common types are tested first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bayplan.cel.errors import COST_EXCEEDED, CelError, EvaluationAborted, no_such_overload
from bayplan.cel.values.go_format import NANOS
from bayplan.cel.values.quantities import DerivedQuantity
from bayplan.cel.values.semver import Semver
from bayplan.cel.values.values import (
    INT_MAX,
    INT_MIN,
    MISSING,
    TWO_TO_64,
    UINT_MAX,
    CelDuration,
    CelMap,
    CelTimestamp,
    Cidr,
    Ip,
    NamedFormat,
    OptionalValue,
    TypeValue,
    Uint,
    Url,
    is_list,
    is_quantity,
)

# cel-go joins lists without copying them; here a list of this length ends the evaluation.
MAX_LIST = 2_000_000
MIN_SECOND, MAX_SECOND = -62_135_596_800, 253_402_300_799
# Types whose calls of missing methods fail with a plain "no such overload".
_RECEIVERS = frozenset({str, CelTimestamp, CelDuration})
_KUBERNETES_TYPES = frozenset({Semver, Ip, Cidr, Url, NamedFormat})


def unsupported_operator(function: str, left: Any) -> CelError:
    """The error if the left operand does not have the operator."""
    return no_such_overload() if type(left) in _RECEIVERS else CelError(f"no such overload: {function}")


def _int(value: int) -> int:
    if INT_MIN <= value <= INT_MAX:
        return value
    raise CelError("integer overflow")


def _uint(value: int) -> Uint:
    if 0 <= value <= UINT_MAX:
        return Uint(value)
    raise CelError("unsigned integer overflow")


def _timestamp(nanos: int, offset_s: int) -> CelTimestamp:
    if MIN_SECOND <= nanos // NANOS <= MAX_SECOND:
        return CelTimestamp(nanos, offset_s)
    raise CelError("timestamp overflow")


def add(left: Any, right: Any) -> Any:
    kind, other = type(left), type(right)
    if kind is int:
        if other is int:
            return _int(left + right)
    elif kind is str or kind is float or kind is bytes:
        if other is kind:
            return left + right
    elif kind is tuple or kind is list:
        if is_list(right):
            return _concatenate(left, right)
    elif kind is Uint:
        if other is Uint:
            return _uint(int(left) + int(right))
    elif kind is CelDuration:
        if other is CelDuration:
            return CelDuration(_int(left.nanos + right.nanos))
        if other is CelTimestamp:
            return _timestamp(right.nanos + left.nanos, right.offset_s)
    elif kind is CelTimestamp:
        if other is CelDuration:
            return _timestamp(left.nanos + right.nanos, left.offset_s)
    else:
        raise unsupported_operator("_+_", left)
    raise no_such_overload()


def _concatenate(left: Any, right: Any) -> Any:
    """A fold's own list grows in place; no other list ever changes."""
    if len(left) + len(right) > MAX_LIST:
        raise EvaluationAborted(COST_EXCEEDED)
    if type(left) is list:
        left.extend(right)
        return left
    return left + tuple(right)


def subtract(left: Any, right: Any) -> Any:
    kind, other = type(left), type(right)
    if kind is int:
        if other is int:
            return _int(left - right)
    elif kind is float:
        if other is float:
            return left - right
    elif kind is Uint:
        if other is Uint:
            return _uint(int(left) - int(right))
    elif kind is CelDuration:
        if other is CelDuration:
            return CelDuration(_int(left.nanos - right.nanos))
    elif kind is CelTimestamp:
        if other is CelDuration:
            return _timestamp(left.nanos + _int(-right.nanos), left.offset_s)
        if other is CelTimestamp:
            return CelDuration(_int(left.nanos - right.nanos))
    else:
        raise unsupported_operator("_-_", left)
    raise no_such_overload()


def multiply(left: Any, right: Any) -> Any:
    kind = type(left)
    if kind not in (int, float, Uint):
        raise unsupported_operator("_*_", left)
    if type(right) is not kind:
        raise no_such_overload()
    if kind is float:
        return left * right
    return _int(left * right) if kind is int else _uint(int(left) * int(right))


def divide(left: Any, right: Any) -> Any:
    kind = type(left)
    if kind not in (int, float, Uint):
        raise unsupported_operator("_/_", left)
    if type(right) is not kind:
        raise no_such_overload()
    if kind is float:
        return _divide_doubles(left, right)
    if right == 0:
        raise CelError("division by zero")
    quotient = abs(left) // abs(right)
    return _int(quotient if (left < 0) == (right < 0) else -quotient) if kind is int else Uint(quotient)


def _divide_doubles(left: float, right: float) -> float:
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def modulo(left: Any, right: Any) -> Any:
    kind = type(left)
    if kind not in (int, Uint):
        raise unsupported_operator("_%_", left)
    if type(right) is not kind:
        raise no_such_overload()
    if right == 0:
        raise CelError("modulus by zero")
    if left == INT_MIN and right == -1:
        raise CelError("integer overflow")
    rest = abs(left) % abs(right)
    return (-rest if left < 0 else rest) if kind is int else Uint(rest)


def negate(value: Any) -> Any:
    kind = type(value)
    if kind is int:
        return _int(-value)
    if kind is float:
        return -value
    if kind is CelDuration:
        return CelDuration(_int(-value.nanos))
    raise no_such_overload() if kind is bool else unsupported_operator("-_", value)


def logical_not(value: Any) -> bool:
    if type(value) is bool:
        return not value
    raise no_such_overload()


def compare(function: str, left: Any, right: Any) -> int:
    """-1, 0 or 1."""
    kind, other = type(left), type(right)
    if kind is int or kind is Uint or kind is float:
        if other is int or other is Uint or other is float:
            return _compare_numbers(left, right)
    elif kind is str or kind is bool or kind is bytes:
        if other is kind:
            return int(left > right) - int(left < right)
    elif kind is CelDuration or kind is CelTimestamp:
        if other is kind:
            return int(left.nanos > right.nanos) - int(left.nanos < right.nanos)
    else:
        raise unsupported_operator(function, left)
    raise no_such_overload()


def _compare_numbers(left: Any, right: Any) -> int:
    if type(left) is float or type(right) is float:
        if left != left or right != right:
            raise CelError("NaN values cannot be ordered")
        return _compare_rounded(left, right)
    return int(left > right) - int(left < right)


def _compare_rounded(left: Any, right: Any) -> int:
    """For a comparison with a double, integers are rounded to doubles first, if the double is in their range."""
    if type(left) is not float:
        return -_compare_rounded(right, left)
    if type(right) is float:
        return int(left > right) - int(left < right)
    low, high = (0.0, TWO_TO_64) if type(right) is Uint else (float(INT_MIN), float(INT_MAX))
    if left < low:
        return -1
    if left > high:
        return 1
    rounded = float(right)
    return int(left > rounded) - int(left < rounded)


def less(left: Any, right: Any) -> bool:
    return compare("_<_", left, right) < 0


def less_equal(left: Any, right: Any) -> bool:
    return compare("_<=_", left, right) <= 0


def greater(left: Any, right: Any) -> bool:
    return compare("_>_", left, right) > 0


def greater_equal(left: Any, right: Any) -> bool:
    return compare("_>=_", left, right) >= 0


def equal(left: Any, right: Any) -> bool:
    """Values of different types differ; only Kubernetes' own types cannot be compared with other types."""
    kind = type(left)
    if kind is str or kind is bool or kind is bytes:
        return type(right) is kind and bool(left == right)
    if kind is int or kind is Uint or kind is float:
        return _equal_numbers(left, right)
    if left is None or right is None:
        return left is right
    return _equal_by_type(left, right)


def _equal_numbers(left: Any, right: Any) -> bool:
    if type(right) not in (int, Uint, float):
        return False
    if type(left) is float or type(right) is float:
        return left == left and right == right and _compare_rounded(left, right) == 0
    return bool(left == right)


def _equal_by_type(left: Any, right: Any) -> bool:
    if is_list(left):
        return is_list(right) and len(left) == len(right) and all(map(_not_definitely_unequal, left, right))
    if isinstance(left, CelMap):
        return isinstance(right, CelMap) and _equal_maps(left, right)
    if isinstance(left, CelDuration | CelTimestamp | TypeValue):
        return type(left) is type(right) and left == right
    if isinstance(left, OptionalValue):
        return isinstance(right, OptionalValue) and _equal_optionals(left, right)
    return _equal_kubernetes_values(left, right)


def _equal_kubernetes_values(left: Any, right: Any) -> bool:
    if type(left) in _KUBERNETES_TYPES:
        if type(left) is not type(right):
            raise no_such_overload()
        if isinstance(left, Semver):
            return left.compare(right) == 0
        return bool(left.name == right.name if isinstance(left, NamedFormat) else left == right)
    if not is_quantity(right) or isinstance(right, DerivedQuantity):
        raise no_such_overload()
    value = left.value if isinstance(left, DerivedQuantity) else left
    return bool(value.compare(right) == 0)


def _not_definitely_unequal(left: Any, right: Any) -> bool:
    """Inside aggregates, an impossible comparison counts as equal."""
    try:
        return equal(left, right)
    except CelError:
        return True


def _equal_maps(left: CelMap, right: CelMap) -> bool:
    if len(left) != len(right):
        return False
    for key, value in left.items():
        # The device's maps return a default for missing keys, and cel-go compares with that.
        other = right.find(key)
        if other is MISSING or not _not_definitely_unequal(value, other):
            return False
    return True


def _equal_optionals(left: OptionalValue, right: OptionalValue) -> bool:
    if not (left.has_value and right.has_value):
        return left.has_value == right.has_value
    return equal(left.get(), right.get())


def equal_for_membership(left: Any, right: Any) -> bool:
    """Equality for membership tests: values that cannot be compared are not equal."""
    try:
        return equal(left, right)
    except CelError:
        return False


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "_+_": add,
    "_-_": subtract,
    "_*_": multiply,
    "_/_": divide,
    "_%_": modulo,
    "_<_": less,
    "_<=_": less_equal,
    "_>_": greater,
    "_>=_": greater_equal,
}
