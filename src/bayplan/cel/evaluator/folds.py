"""Runs folds over lists and maps.

All macros over lists and maps are folds: a condition, a step that computes the next accumulator, and a result. An error
in a step becomes the accumulator, and the next step may absorb it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bayplan.cel.errors import COST_EXCEEDED, CelError, EvaluationAborted
from bayplan.cel.evaluator.frames import UNSET, Frame, Run
from bayplan.cel.values.cost import LIMIT
from bayplan.cel.values.values import CelMap, GrowableMap, go_type, is_list


def growable(value: Any) -> Any:
    """An accumulator that starts empty grows in place, so that a fold is linear in its range."""
    if is_list(value) and not value:
        return []
    if isinstance(value, CelMap) and not len(value):
        return GrowableMap()
    return value


def _to_growable(value: Any) -> Any:
    if type(value) is list:
        return tuple(value)
    return CelMap(value.items()) if type(value) is GrowableMap else value


def _single(values: Any) -> Iterable[Any]:
    if is_list(values):
        return values  # type: ignore[no-any-return]
    if isinstance(values, CelMap):
        return values.keys()
    raise CelError(f"got '{go_type(values)}', expected iterable type")


def _pairs(values: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(values, CelMap):
        return values.items()
    if is_list(values):
        return enumerate(values)
    raise CelError(f"unsupported comprehension range type: {go_type(values)}")


def run_comprehension(over: Run, slot: int, condition: Run, step: Run, result: Run, *, two: bool) -> Run:
    """`slot` contains the accumulator, the next two slots the variables of the iteration."""

    def run(frame: Frame) -> Any:
        values = over(frame)
        slots = frame.slots
        slots[slot] = UNSET
        for item in _pairs(values) if two else _single(values):
            if two:
                slots[slot + 1], slots[slot + 2] = item
            else:
                slots[slot + 1] = item
            if not _condition_holds(condition, frame):
                break
            try:
                slots[slot] = step(frame)
            except CelError as fault:
                slots[slot] = fault
            if frame.cost > LIMIT:
                raise EvaluationAborted(COST_EXCEEDED)
        return _to_growable(result(frame))

    return run


def _condition_holds(condition: Run, frame: Frame) -> bool:
    try:
        return condition(frame) is not False
    except CelError:
        return True
