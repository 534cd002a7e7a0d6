"""Builders of node functions for calls: evaluation, errors and costs.

Used by the compiler. An error in one argument does not always skip the rest: where cel-go evaluates all arguments
first, so do these functions, because evaluation costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bayplan.cel.errors import CelError, EvaluationAborted, no_such_overload
from bayplan.cel.evaluator.frames import Frame, Run
from bayplan.cel.regex.regex import Regex
from bayplan.cel.types.declarations import Function, Implementation, Overload
from bayplan.cel.types.types import QUANTITY, CelType
from bayplan.cel.values.cost import FAILED, Cost
from bayplan.cel.values.values import (
    PYTHON_TYPES,
    CelMap,
    OptionalValue,
    go_text,
    is_assignable,
    is_quantity,
    type_name,
)


class _NotConstant:
    __slots__ = ()


NOT_CONSTANT = _NotConstant()


@dataclass(frozen=True, slots=True)
class BoundCall:
    """The implementation of a call. `eager`: all arguments are evaluated even if one of them fails."""

    run: Implementation
    eager: bool


# Implementations.


def bind_overload(function: Function, overloads: tuple[str, ...], certain: list[bool]) -> BoundCall:
    """The only fitting overload, guarded where its types are not certain; or a choice at run time."""
    if len(overloads) == 1:
        chosen = next(o for o in function.overloads if o.id == overloads[0])
        eager = len(certain) <= 2 and function.name != "format"
        assert chosen.run is not None
        if all(certain) or not chosen.guarded:
            return BoundCall(chosen.run, eager)
        return BoundCall(_guard(chosen, certain), eager)
    return BoundCall(_dispatcher(function, len(certain)), eager=False)


def _no_matching_overload(name: str, args: Sequence[Any]) -> CelError:
    return CelError(f"no such overload: {name}({', '.join(type_name(arg) for arg in args)})")


def _argument_tests(
    wanted: Sequence[CelType], certain: Sequence[bool]
) -> list[tuple[int, type | None, Callable[[Any], bool]]]:
    """The checks of each argument: its Python class if that is sufficient, else a predicate."""
    return [(i, PYTHON_TYPES.get(t), _argument_test(t)) for i, t in enumerate(wanted) if not certain[i]]


def _argument_test(wanted: CelType) -> Callable[[Any], bool]:
    return is_quantity if wanted == QUANTITY else lambda value: is_assignable(value, wanted)


def _guard(overload: Overload, certain: list[bool]) -> Implementation:
    run, name = overload.run, overload.function
    tests = _argument_tests(overload.args, certain)
    assert run is not None

    def guarded(*args: Any) -> Any:
        for i, held_as, test in tests:
            if type(args[i]) is not held_as and (held_as is not None or not test(args[i])):
                raise _no_matching_overload(name, args)
        return run(*args)

    return guarded


def _dispatcher(function: Function, count: int) -> Implementation:
    candidates = [
        (_argument_tests(o.args, [not o.guarded] * count), o.run) for o in function.overloads if len(o.args) == count
    ]

    def dispatch(*args: Any) -> Any:
        for tests, run in candidates:
            for i, held_as, test in tests:
                if type(args[i]) is not held_as and (held_as is not None or not test(args[i])):
                    break
            else:
                if run is not None:
                    return run(*args)
        raise _no_matching_overload(function.name, args)

    return dispatch


def constant_regex(function: str, regex: Regex) -> BoundCall:
    """Constant patterns are compiled once."""

    def matches(text: Any, _: Any) -> bool:
        if type(text) is not str:
            raise no_such_overload()
        return regex.matches(text)

    def find(text: Any, _: Any) -> str:
        if type(text) is not str:
            raise no_such_overload()
        return regex.find(text)

    def find_all(text: Any, _: Any, limit: Any = -1) -> tuple[str, ...]:
        if type(text) is not str or type(limit) is not int:
            raise no_such_overload()
        return tuple(regex.find_all(text, limit))

    return BoundCall({"matches": matches, "find": find, "findAll": find_all}[function], eager=False)


# Calls.


def call(args: list[Run], bound: BoundCall, cost: Cost) -> Run:
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
        except CelError:
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
        except CelError:
            _, (b,) = evaluate_all((right,), frame)
            frame.cost += fixed if by_args is None else by_args((FAILED, b))
            raise
        try:
            b = right(frame)
        except CelError:
            frame.cost += fixed if by_args is None else by_args((a, FAILED))
            raise
        frame.cost += fixed if by_args is None else by_args((a, b))
        return run(a, b)

    return binary


def evaluate_all(args: Sequence[Run], frame: Frame) -> tuple[CelError | None, list[Any]]:
    """All arguments, with the first error among them; failed ones are marked."""
    first: CelError | None = None
    values: list[Any] = []
    for arg in args:
        try:
            values.append(arg(frame))
        except CelError as fault:
            first = first or fault
            values.append(FAILED)
    return first, values


def _many(args: list[Run], bound: BoundCall, cost: Cost) -> Run:
    last = len(args) - 1

    def many(frame: Frame) -> Any:
        values: list[Any] = []
        for i, arg in enumerate(args):
            try:
                values.append(arg(frame))
            except CelError:
                # A call whose arguments were not all evaluated is not charged.
                if i == last:
                    frame.cost += cost.fixed if cost.by_args is None else cost.by_args([*values, FAILED])
                raise
        frame.cost += cost.fixed if cost.by_args is None else cost.by_args(values)
        return bound.run(*values)

    return many


def _call_by_result(args: list[Run], bound: BoundCall, price: Callable[[Any], int]) -> Run:
    def run(frame: Frame) -> Any:
        if bound.eager:
            fault, values = evaluate_all(args, frame)
        else:
            # Only an error in the last argument still evaluates the call.
            values = [arg(frame) for arg in args[:-1]]
            fault, last = evaluate_all(args[-1:], frame)
            values += last
        try:
            if fault is not None:
                raise fault
            result = bound.run(*values)
        except CelError:
            frame.cost += price(FAILED)
            raise
        frame.cost += price(result)
        return result

    return run


def constant_call(bound: BoundCall, args: list[Any], cost: Cost) -> Run | None:
    """A call with constant arguments is evaluated once, but still costs every time. None if it fails."""
    try:
        value = bound.run(*args)
    except (CelError, EvaluationAborted):
        return None
    price = cost.fixed if cost.by_args is None else cost.by_args(args)
    if cost.by_result is not None:
        price = cost.by_result(value)
    return with_cost(lambda _: value, price)


# Aggregates.


def with_cost(build: Run, price: int) -> Run:
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
                if not isinstance(value, OptionalValue):
                    text = f"cannot initialize optional list element from non-optional value {go_text(value)}"
                    raise CelError(text)
                if not value.has_value:
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
                if not isinstance(value, OptionalValue):
                    text = f"cannot initialize optional entry '{go_text(key)}' from non-optional value {go_text(value)}"
                    raise CelError(text)
                if not value.has_value:
                    out.drop(key)
                    continue
                value = value.get()
            out.put(key, value)
        return out

    return build
