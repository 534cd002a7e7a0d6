"""Compares two answers and lists the differences.

Values must be equal, floats to a relative 1e-9. There is one exception: for a rejected configuration the real scheduler
reports one of several errors in no fixed order. Such answers agree if the stage, the fields and the quoted names are
equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_ABSENT = "(absent)"
_SESSION_OPEN_KEYS = ("atOpen", "queueGauges")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FIELD = re.compile(
    r"(?:^|[\[ ])([a-zA-Z][\w.\[\]]*(?:\[[^\]]*\])*): (?=Invalid|Required|Duplicate|Unsupported|Forbidden)"
)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One difference between two answers."""

    where: str
    expected: Any
    got: Any


def compare_answers(expected: dict[str, Any], got: dict[str, Any], *, partial: bool = False) -> list[Disagreement]:
    """Return every difference, in the order of the expected answer.

    `partial`: of the state at session open, only the keys of the recorded answer are compared, because the remaining
    ones differ between runs of the real scheduler.
    """
    if partial:
        got = {
            key: _recorded_part(expected.get(key), value) if key in _SESSION_OPEN_KEYS else value
            for key, value in got.items()
        }
        got = {key: value for key, value in got.items() if key in expected or key not in _SESSION_OPEN_KEYS}
    ignored = {"name"}
    if _is_same_config_error(expected.get("error"), got.get("error")):
        ignored.add("error")
    return [found for found in _differences("", expected, got) if found.where not in ignored]


def _recorded_part(expected: Any, got: Any) -> Any:
    """The part of an answer that has keys in the expected one."""
    if not isinstance(expected, dict) or not isinstance(got, dict):
        return got
    return {key: _recorded_part(expected[key], value) for key, value in got.items() if key in expected}


def _differences(where: str, expected: Any, got: Any) -> Iterator[Disagreement]:
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in [*expected, *(key for key in got if key not in expected)]:
            path = f"{where}.{key}" if where else key
            yield from _differences(path, expected.get(key, _ABSENT), got.get(key, _ABSENT))
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for position, (one, other) in enumerate(zip(expected, got, strict=True)):
            yield from _differences(f"{where}[{position}]", one, other)
    elif expected != got and not _almost_equal(expected, got):
        yield Disagreement(where, expected, got)


def _almost_equal(expected: Any, got: Any) -> bool:
    """Whether two numbers, at least one of them a float, are equal up to rounding."""
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (expected, got))
    return numbers and float in (type(expected), type(got)) and math.isclose(expected, got, rel_tol=1e-9)


def _is_same_config_error(expected: Any, got: Any) -> bool:
    if not isinstance(expected, str) or not isinstance(got, str):
        return False
    if expected == got:
        return True
    stage, _, expected_text = expected.partition(":")
    got_stage, _, got_text = got.partition(":")
    return stage == got_stage and _fields_and_quoted_names(expected_text) == _fields_and_quoted_names(got_text)


def _fields_and_quoted_names(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The field names and the quoted names in a configuration error."""
    return frozenset(_FIELD.findall(text)), frozenset(_QUOTED.findall(text))
