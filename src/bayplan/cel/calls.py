"""Answers one question: how does a call run, fail and cost?

Builders of node functions, used by the compiler. A fault in one argument does not always spare the others: where
cel-go evaluates all arguments before it looks at any, so do these, because evaluating costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bayplan.cel.attributes import show
from bayplan.cel.cost import FAILED, TRAVERSE, Cost, comparison, traverse
from bayplan.cel.declarations import Function, Implementation, Overload
from bayplan.cel.faults import Abort, Fault, no_overload
from bayplan.cel.frames import Frame, Run
from bayplan.cel.operators import equal
from bayplan.cel.regex import Regex
from bayplan.cel.semver import Semver
from bayplan.cel.values import (
    INT_MAX,
    INT_MIN,
    UINT_MAX,
    CelMap,
    Cidr,
    Ip,
    NamedFormat,
    Optional,
    Uint,
    fits,
    go_type,
    lossless_int,
    type_name,
)


class _NotConstant:
    __slots__ = ()


NOT_CONSTANT = _NotConstant()


@dataclass(frozen=True, slots=True)
class Bound:
    """What a call runs. `eager`: all arguments are evaluated even if one of them fails."""

    run: Implementation
    eager: bool


# --- what runs


def bind(function: Function, overloads: tuple[str, ...], certain: list[bool]) -> Bound:
    """The one overload that fits, guarded where its types are not certain; or a choice at run time."""
    if len(overloads) == 1:
        chosen = next(o for o in function.overloads if o.id == overloads[0])
        eager = len(certain) <= 2 and function.name != "format"
        assert chosen.run is not None
        if all(certain) or not chosen.guarded:
            return Bound(chosen.run, eager)
        return Bound(_guarded(chosen, certain), eager)
    return Bound(_dispatcher(function, len(certain)), eager=False)


def _no_match(name: str, args: Sequence[Any]) -> Fault:
    return Fault(f"no such overload: {name}({', '.join(type_name(arg) for arg in args)})")


def _guarded(overload: Overload, certain: list[bool]) -> Implementation:
    run, name = overload.run, overload.function
    checks = [(i, t) for i, t in enumerate(overload.args) if not certain[i]]
    assert run is not None

    def guarded(*args: Any) -> Any:
        for i, wanted in checks:
            if not fits(args[i], wanted):
                raise _no_match(name, args)
        return run(*args)

    return guarded


def _dispatcher(function: Function, count: int) -> Implementation:
    candidates = [(o.args, o.run, o.guarded) for o in function.overloads if len(o.args) == count]

    def dispatch(*args: Any) -> Any:
        for wanted, run, guarded in candidates:
            if run is not None and (not guarded or all(map(fits, args, wanted))):
                return run(*args)
        raise _no_match(function.name, args)

    return dispatch


def constant_regex(function: str, regex: Regex) -> Bound:
    """Patterns that are known beforehand are compiled once."""

    def matches(text: Any, _: Any) -> bool:
        if type(text) is not str:
            raise no_overload()
        return regex.matches(text)

    def find(text: Any, _: Any) -> str:
        if type(text) is not str:
            raise no_overload()
        return regex.find(text)

    def find_all(text: Any, _: Any, limit: Any = -1) -> tuple[str, ...]:
        if type(text) is not str or type(limit) is not int:
            raise no_overload()
        return tuple(regex.find_all(text, limit))

    return Bound({"matches": matches, "find": find, "findAll": find_all}[function], eager=False)


# --- calls


def call(args: list[Run], bound: Bound, cost: Cost) -> Run:
    if cost.by_result is not None:
        return _call_by_result(args, bound, cost.by_result)
    if len(args) == 1:
        return _unary(args[0], bound.run, cost)
    if len(args) == 2 and bound.eager:
        return _binary(args[0], args[1], bound.run, cost)
    return _many(args, bound, cost)


def _unary(arg: Run, run: Implementation, cost: Cost) -> Run:
    fixed, by_args = cost.fixed, cost.by_args

    def unary(frame: Frame) -> Any:
        try:
            value = arg(frame)
        except Fault:
            frame.cost += fixed if by_args is None else by_args((FAILED,))
            raise
        frame.cost += fixed if by_args is None else by_args((value,))
        return run(value)

    return unary


def _binary(left: Run, right: Run, run: Implementation, cost: Cost) -> Run:
    fixed, by_args = cost.fixed, cost.by_args

    def binary(frame: Frame) -> Any:
        try:
            a = left(frame)
        except Fault:
            _, (b,) = _evaluate_all((right,), frame)
            frame.cost += fixed if by_args is None else by_args((FAILED, b))
            raise
        try:
            b = right(frame)
        except Fault:
            frame.cost += fixed if by_args is None else by_args((a, FAILED))
            raise
        frame.cost += fixed if by_args is None else by_args((a, b))
        return run(a, b)

    return binary


def _evaluate_all(args: Sequence[Run], frame: Frame) -> tuple[Fault | None, list[Any]]:
    """Every argument, with the first fault among them; failed ones are marked."""
    first: Fault | None = None
    values: list[Any] = []
    for arg in args:
        try:
            values.append(arg(frame))
        except Fault as fault:
            first = first or fault
            values.append(FAILED)
    return first, values


def _many(args: list[Run], bound: Bound, cost: Cost) -> Run:
    last = len(args) - 1

    def many(frame: Frame) -> Any:
        values: list[Any] = []
        for i, arg in enumerate(args):
            try:
                values.append(arg(frame))
            except Fault:
                # A call that never got all its arguments is not charged.
                if i == last:
                    frame.cost += cost.fixed if cost.by_args is None else cost.by_args([*values, FAILED])
                raise
        frame.cost += cost.fixed if cost.by_args is None else cost.by_args(values)
        return bound.run(*values)

    return many


def _call_by_result(args: list[Run], bound: Bound, price: Callable[[Any], int]) -> Run:
    inner = _many(args, bound, Cost())

    def run(frame: Frame) -> Any:
        try:
            result = inner(frame)
        except Fault:
            frame.cost += price(FAILED)
            raise
        frame.cost += price(result)
        return result

    return run


# --- logic


def conjunction(terms: list[Run]) -> Run:
    return _logic(terms, decisive=False)


def disjunction(terms: list[Run]) -> Run:
    return _logic(terms, decisive=True)


def _logic(terms: list[Run], *, decisive: bool) -> Run:
    """One decisive term settles it, whatever the others come to; else the first fault; else the opposite."""
    other = not decisive

    def run(frame: Frame) -> bool:
        fault: Fault | None = None
        for term in terms:
            try:
                value = term(frame)
            except Fault as raised:
                fault = fault or raised
                continue
            if value is decisive:
                return decisive
            if value is not other:
                fault = fault or no_overload()
        if fault is not None:
            raise fault
        return other

    return run


_FLAT = frozenset({Semver, Ip, Cidr, NamedFormat})


def equality(left: Run, right: Run, *, negated: bool) -> Run:
    def run(frame: Frame) -> bool:
        fault, (a, b) = _evaluate_all((left, right), frame)
        frame.cost += 1 if not negated and type(a) in _FLAT else comparison(a, b)
        if fault is not None:
            raise fault
        try:
            return equal(a, b) != negated
        except Fault:
            if negated:
                return True
            raise

    return run


def equal_to_text(left: Run, text: str, *, negated: bool) -> Run:
    """`x == "constant"`, the commonest of all tests."""
    length = len(text)
    general = equality(left, lambda _: text, negated=negated)
    if length > 256:
        return general
    price = TRAVERSE[length]

    def run(frame: Frame) -> bool:
        try:
            value = left(frame)
        except Fault:
            frame.cost += min(price, 1)
            raise
        if type(value) is str:
            frame.cost += price if len(value) >= length else traverse(len(value))
            return (value == text) != negated
        frame.cost += 1 if type(value) in _FLAT and not negated else comparison(value, text)
        try:
            return equal(value, text) != negated
        except Fault:
            if negated:
                return True
            raise

    return run


# --- membership in constant lists


def member_of(values: tuple[Any, ...]) -> Callable[[Any], bool] | None:
    """A test against a set, or None where some value is not plain enough to be hashed."""
    if any(type(v) not in (str, bool, int, Uint, float) for v in values):
        return None
    sets: dict[type, set[Any]] = {str: set(), bool: set(), int: set(), Uint: set(), float: set()}
    for value in values:
        sets[type(value)].add(value)
        if type(value) in (int, Uint, float):
            _add_twins(sets, value)
    frozen = {kind: frozenset(members) for kind, members in sets.items()}

    def test(value: Any) -> bool:
        members = frozen.get(type(value))
        if members is not None:
            return value in members
        if type(value) in (bytes, Semver, NamedFormat):
            raise Abort(f"internal error: runtime error: hash of unhashable type {go_type(value)}")
        return False

    return test


def _add_twins(sets: dict[type, set[Any]], value: Any) -> None:
    """The same number in the other number types, where it has a place there."""
    whole = lossless_int(value) if isinstance(value, float) else int(value)
    if not isinstance(value, float):
        sets[float].add(float(value))
    if whole is not None and INT_MIN <= whole <= INT_MAX:
        sets[int].add(whole)
    if whole is not None and 0 <= whole <= UINT_MAX:
        sets[Uint].add(Uint(whole))


def membership(element: Run, test: Callable[[Any], bool]) -> Run:
    return lambda frame: test(element(frame))


# --- aggregates


def charged(build: Run, price: int) -> Run:
    def run(frame: Frame) -> Any:
        frame.cost += price
        return build(frame)

    return run


def list_of(elements: list[tuple[Run, bool]]) -> Run:
    if not any(optional for _, optional in elements):
        runs = [run for run, _ in elements]
        return lambda frame: tuple([run(frame) for run in runs])

    def build(frame: Frame) -> tuple[Any, ...]:
        out: list[Any] = []
        for run, optional in elements:
            value = run(frame)
            if optional:
                if not isinstance(value, Optional):
                    text = f"cannot initialize optional list element from non-optional value {show(value)}"
                    raise Fault(text)
                if not value.present:
                    continue
                value = value.get()
            out.append(value)
        return tuple(out)

    return build


def map_of(entries: list[tuple[Run, Run, bool]]) -> Run:
    def build(frame: Frame) -> CelMap:
        out = CelMap()
        for key_run, value_run, optional in entries:
            key, value = key_run(frame), value_run(frame)
            if optional:
                if not isinstance(value, Optional):
                    text = f"cannot initialize optional entry '{show(key)}' from non-optional value {show(value)}"
                    raise Fault(text)
                if not value.present:
                    out.drop(key)
                    continue
                value = value.get()
            out.put(key, value)
        return out

    return build
