"""Label selectors: compilation, matching and validation.

Used for affinity, spread, disruption budgets, claims and capacities. A selector is compiled once into a `LabelMatcher`.
It matches the labels of one object, its requirements run over whole columns, and it serves as a cache key: selectors
with the same meaning compare equal, whatever their order or notation.

`selector_text` parses the text form (`kubectl -l`); `node_selectors` compiles node selectors. Cost: compiling validates
each key and value (cached); matching is one dictionary lookup per requirement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from bayplan.codec.field_errors import FieldError, aggregate, invalid
from bayplan.codec.go_text import quote
from bayplan.errors import ObjectError
from bayplan.objects.meta import LabelSelector
from bayplan.objects.name_validation import label_key_problems, label_value_problems

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]

LABEL_OPERATORS: Mapping[str, Operator] = {
    "In": "In",
    "NotIn": "NotIn",
    "Exists": "Exists",
    "DoesNotExist": "DoesNotExist",
}
NODE_OPERATORS: Mapping[str, Operator] = {**LABEL_OPERATORS, "Gt": "Gt", "Lt": "Lt"}

_INTEGER = re.compile(r"[+-]?[0-9]+")


class SelectorError(ObjectError):
    """A selector is malformed. `reason` is the API server's message."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a selector cannot be used: {reason}")
        self.reason = reason


class Requirement(msgspec.Struct, frozen=True, cache_hash=True):
    """One condition on one label. `threshold` is the number of `Gt` and `Lt`, which have no values."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()
    threshold: int | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        return self.accepts(labels.get(self.key))

    def accepts(self, value: str | None) -> bool:
        """Whether the label may have this value; None stands for a missing label."""
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        number = None if value is None else parse_int64(value)
        if number is None or self.threshold is None:
            return False
        return number > self.threshold if self.operator == "Gt" else number < self.threshold


class LabelMatcher(msgspec.Struct, frozen=True, cache_hash=True):
    """A compiled label selector: all requirements hold, or (`nothing`) it selects no object."""

    requirements: tuple[Requirement, ...] = ()
    nothing: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        if self.nothing:
            return False
        for requirement in self.requirements:
            value = labels.get(requirement.key)
            # inlined: nearly all requirements have it, and thousands of objects may be matched at once
            if requirement.operator == "In":
                if value is None or value not in requirement.values:
                    return False
            elif not requirement.accepts(value):
                return False
        return True

    @property
    def everything(self) -> bool:
        """Whether it selects every object, with or without labels."""
        return not (self.requirements or self.nothing)

    def with_requirements(self, more: Iterable[Requirement]) -> LabelMatcher:
        """This selector with further requirements. A selector of nothing does not change."""
        return self if self.nothing else matcher_of((*self.requirements, *more))


EVERYTHING = LabelMatcher()
NOTHING = LabelMatcher(nothing=True)


def matcher_of(requirements: Iterable[Requirement]) -> LabelMatcher:
    """A matcher of all requirements, in a canonical order, so that equal selectors compare equal."""
    ordered = sorted(set(requirements), key=_sort_key)
    return _intern(LabelMatcher(tuple(ordered))) if ordered else EVERYTHING


def compile_label_selector(selector: LabelSelector | None) -> LabelMatcher:
    """Compile a selector: None selects nothing, an empty one everything. Raises `SelectorError` for a malformed one."""
    if selector is None:
        return NOTHING
    requirements = [_label_requirement(key, "In", (value,)) for key, value in selector.match_labels.items()]
    for expression in selector.match_expressions:
        operator = LABEL_OPERATORS.get(expression.operator)
        if operator is None:
            raise SelectorError(f"{quote(expression.operator)} is not a valid label selector operator")
        requirements.append(_label_requirement(expression.key, operator, expression.values))
    return matcher_of(requirements)


def selector_from_map(labels: Mapping[str, str]) -> LabelMatcher:
    """A selector of all these labels and values, without validation. An empty map selects everything."""
    return matcher_of(equals(key, value) for key, value in labels.items())


def equals(key: str, value: str) -> Requirement:
    """The requirement that the label has exactly this value."""
    return Requirement(key, "In", frozenset((value,)))


def make_requirement(key: str, operator: Operator, values: Sequence[str]) -> Requirement:
    """A requirement from validated parts; see `requirement_problems`."""
    if operator in ("Gt", "Lt"):
        return Requirement(key, operator, threshold=parse_int64(values[0]))
    return Requirement(key, operator, frozenset(values))


def requirement_problems(key: str, operator: Operator, values: Sequence[str], path: str = "") -> tuple[str, ...]:
    """The API server's errors about a requirement at `path`."""
    at = f"{path}." if path else ""
    problems = [str(invalid(f"{at}key", key, "; ".join(bad)))] if (bad := label_key_problems(key)) else []
    problems += map(str, _count_problems(operator, values, f"{at}values"))
    for number, value in enumerate(values):
        if wrong := label_value_problems(value):
            problems.append(str(invalid(f"{at}values[{number}][{key}]", value, "; ".join(wrong))))
    return tuple(dict.fromkeys(problems))


def parse_int64(text: str) -> int | None:
    """A decimal number that fits 64 bits, or None."""
    if not _INTEGER.fullmatch(text) or len(text) > 4000:
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def _count_problems(operator: Operator, values: Sequence[str], path: str) -> list[FieldError]:
    """Errors about the number of values, and about values that must be integers. No values print as null."""
    if operator in ("In", "NotIn"):
        return [] if values else [invalid(path, None, "for 'in', 'notin' operators, values set can't be empty")]
    if operator in ("Exists", "DoesNotExist"):
        return [invalid(path, values, "values set must be empty for exists and does not exist")] if values else []
    rule = "for 'Gt', 'Lt' operators, "
    problems = [] if len(values) == 1 else [invalid(path, values or None, f"{rule}exactly one value is required")]
    for number, value in enumerate(values):
        if parse_int64(value) is None:
            problems.append(invalid(f"{path}[{number}]", value, f"{rule}the value must be an integer"))
    return problems


@lru_cache(maxsize=8192)
def _label_requirement(key: str, operator: Operator, values: tuple[str, ...]) -> Requirement:
    problems = requirement_problems(key, operator, values)
    if problems:
        raise SelectorError(aggregate(problems))
    return make_requirement(key, operator, values)


@lru_cache(maxsize=8192)
def _intern(matcher: LabelMatcher) -> LabelMatcher:
    """The first of equal matchers, so that all pods of one workload share one object."""
    return matcher


def _sort_key(requirement: Requirement) -> tuple[str, str, list[str], int]:
    return requirement.key, requirement.operator, sorted(requirement.values), requirement.threshold or 0
