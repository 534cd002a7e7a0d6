"""Builders of node functions for logic, equality, order and membership.

Used by the compiler. Selectors mostly consist of these, so comparisons with a constant have fast paths.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Any

from bayplan.cel.errors import CelError, EvaluationAborted, no_such_overload
from bayplan.cel.evaluator.calls import evaluate_all
from bayplan.cel.evaluator.frames import Frame, Run
from bayplan.cel.types.declarations import Implementation
from bayplan.cel.values.cost import MAX_TABLE, TRAVERSE, comparison, size
from bayplan.cel.values.operators import equal
from bayplan.cel.values.semver import Semver
from bayplan.cel.values.values import INT_MAX, INT_MIN, UINT_MAX, Cidr, Ip, NamedFormat, Uint, go_type, lossless_int


def conjunction(terms: list[Run]) -> Run:
    return _short_circuit(terms, decisive=False)


def disjunction(terms: list[Run]) -> Run:
    return _short_circuit(terms, decisive=True)


def _short_circuit(terms: list[Run], *, decisive: bool) -> Run:
    """One decisive term determines the result; else the first error; else the opposite value."""
    other = not decisive

    def run(frame: Frame) -> bool:
        fault: CelError | None = None
        for term in terms:
            try:
                value = term(frame)
            except CelError as raised:
                fault = fault or raised
                continue
            if value is decisive:
                return bool(decisive)
            if value is not other:
                fault = fault or no_such_overload()
        if fault is not None:
            raise fault
        return other

    return run


_PLAIN_TYPES = frozenset({Semver, Ip, Cidr, NamedFormat})


def equality(left: Run, right: Run, *, negated: bool) -> Run:
    def run(frame: Frame) -> bool:
        fault, (a, b) = evaluate_all((left, right), frame)
        frame.cost += 1 if not negated and type(a) in _PLAIN_TYPES else comparison(a, b)
        if fault is not None:
            raise fault
        return _equal(a, b, negated)

    return run


def _equal(a: Any, b: Any, negated: bool) -> bool:
    try:
        return equal(a, b) != negated
    except CelError:
        # Values that cannot be compared are not equal.
        if negated:
            return True
        raise


def equal_to_constant(left: Run, constant: Any, *, negated: bool) -> Run:
    """`x == "constant"`, the most frequent predicate: values of the constant's own class are compared directly."""
    kind, length = type(constant), size(constant)
    if kind not in (str, int, bool) or length > MAX_TABLE:
        return equality(left, lambda _: constant, negated=negated)
    price = TRAVERSE[length]

    def run(frame: Frame) -> bool:
        try:
            value = left(frame)
        except CelError:
            frame.cost += min(price, 1)
            raise
        if type(value) is kind:
            frame.cost += price if kind is not str or len(value) >= length else TRAVERSE[len(value)]
            return negated if value != constant else not negated
        frame.cost += 1 if type(value) in _PLAIN_TYPES and not negated else comparison(value, constant)
        return _equal(value, constant, negated)

    return run


INT_RELATIONS: dict[str, Callable[[int, int], bool]] = {"_<_": lt, "_<=_": le, "_>_": gt, "_>=_": ge}


def relation_to_int(left: Run, function: str, constant: int, general: Implementation) -> Run:
    """`x < 2`: integers are compared directly, all other values by the operator."""
    holds = INT_RELATIONS[function]

    def run(frame: Frame) -> Any:
        try:
            value = left(frame)
        finally:
            frame.cost += 1
        return holds(value, constant) if type(value) is int else general(value, constant)

    return run


# Membership in constant lists.


def set_membership_test(values: tuple[Any, ...]) -> Callable[[Any], bool] | None:
    """A predicate on a set, or None if some value cannot be hashed."""
    if any(type(v) not in (str, bool, int, Uint, float) for v in values):
        return None
    sets: dict[type, set[Any]] = {str: set(), bool: set(), int: set(), Uint: set(), float: set()}
    for value in values:
        sets[type(value)].add(value)
        if type(value) in (int, Uint, float):
            _add_equal_numbers(sets, value)
    frozen = {kind: frozenset(members) for kind, members in sets.items()}

    def test(value: Any) -> bool:
        members = frozen.get(type(value))
        if members is not None:
            return value in members
        if type(value) in (bytes, Semver, NamedFormat):
            raise EvaluationAborted(f"internal error: runtime error: hash of unhashable type {go_type(value)}")
        return False

    return test


def _add_equal_numbers(sets: dict[type, set[Any]], value: Any) -> None:
    """The same number in the other number types, if they can represent it."""
    whole = lossless_int(value) if isinstance(value, float) else int(value)
    if not isinstance(value, float):
        sets[float].add(float(value))
    if whole is not None and INT_MIN <= whole <= INT_MAX:
        sets[int].add(whole)
    if whole is not None and 0 <= whole <= UINT_MAX:
        sets[Uint].add(Uint(whole))


def membership(element: Run, test: Callable[[Any], bool]) -> Run:
    return lambda frame: test(element(frame))
