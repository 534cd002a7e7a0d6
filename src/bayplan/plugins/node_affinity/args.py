"""Arguments of NodeAffinity: a node affinity that is added to every pod of the profile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec

from bayplan.codec.field_errors import AsJson, FieldError, FieldPath, invalid, unsupported
from bayplan.config.encode import encode_v1
from bayplan.config.plugin_args import ArgsKind
from bayplan.config.schema import NO_OMIT_EMPTY, ConfigStruct, GoTypeName, Int32
from bayplan.objects import core
from bayplan.objects.name_validation import label_key_problems, label_value_problems

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_FIELD_OPERATORS = ("In", "NotIn")
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class NodeSelectorRequirement(ConfigStruct, frozen=True):
    tagged: ClassVar[bool] = True

    key: Annotated[str, NO_OMIT_EMPTY] = ""
    operator: Annotated[str, NO_OMIT_EMPTY, GoTypeName("v1.NodeSelectorOperator")] = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(ConfigStruct, frozen=True):
    tagged: ClassVar[bool] = True

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(ConfigStruct, frozen=True):
    tagged: ClassVar[bool] = True

    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], NO_OMIT_EMPTY] = ()


class PreferredSchedulingTerm(ConfigStruct, frozen=True):
    tagged: ClassVar[bool] = True

    weight: Annotated[Int32, NO_OMIT_EMPTY] = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(ConfigStruct, frozen=True):
    tagged: ClassVar[bool] = True

    required: NodeSelector | None = msgspec.field(default=None, name=_REQUIRED)
    preferred: tuple[PreferredSchedulingTerm, ...] = msgspec.field(default=(), name=_PREFERRED)


class NodeAffinityArgs(ConfigStruct, frozen=True):
    added_affinity: NodeAffinity | None = None

    @property
    def affinity(self) -> core.NodeAffinity | None:
        """The added affinity as that of a pod."""
        added = self.added_affinity
        return None if added is None else msgspec.convert(encode_v1(added), core.NodeAffinity)


def validate(args: NodeAffinityArgs, path: FieldPath) -> list[FieldError]:
    added = args.added_affinity
    if added is None:
        return []
    errors: list[FieldError] = []
    terms = added.required.node_selector_terms if added.required is not None else ()
    for position, term in enumerate(terms):
        errors += _term(term, path.child("addedAffinity", _REQUIRED, "nodeSelectorTerms").index(position))
    for position, preferred in enumerate(added.preferred):
        if preferred.weight:
            errors += _term(preferred.preference, path.child("addedAffinity", _PREFERRED).index(position))
    return errors


def _term(term: NodeSelectorTerm, path: FieldPath) -> Iterator[FieldError]:
    for position, expression in enumerate(term.match_expressions):
        yield from _expression(expression, path.child("matchExpressions").index(position))
    for position, requirement in enumerate(term.match_fields):
        yield from _field(requirement, path.child("matchFields").index(position))


def _expression(expression: NodeSelectorRequirement, path: FieldPath) -> Iterator[FieldError]:
    if expression.operator not in _OPERATORS:
        yield unsupported(path.child("operator"), AsJson(expression.operator), _OPERATORS)
        return
    if problems := label_key_problems(expression.key):
        yield invalid(path.child("key"), expression.key, "; ".join(problems))
    values_path = path.child("values")
    yield from _values(expression, values_path)
    for position, value in enumerate(expression.values or ()):
        if problems := label_value_problems(value):
            yield invalid(values_path.index(position).index(expression.key), value, "; ".join(problems))


def _values(expression: NodeSelectorRequirement, path: FieldPath) -> Iterator[FieldError]:
    values = expression.values or ()
    shown = expression.values
    match expression.operator:
        case "In" | "NotIn":
            if not values:
                yield invalid(path, shown, "for 'in', 'notin' operators, values set can't be empty")
        case "Exists" | "DoesNotExist":
            if values:
                yield invalid(path, shown, "values set must be empty for exists and does not exist")
        case _:
            if len(values) != 1:
                yield invalid(path, shown, "for 'Gt', 'Lt' operators, exactly one value is required")
            for position, value in enumerate(values):
                if not _is_int64(value):
                    message = "for 'Gt', 'Lt' operators, the value must be an integer"
                    yield invalid(path.index(position), value, message)


def _is_int64(text: str) -> bool:
    return _INTEGER.match(text) is not None and -(2**63) <= int(text) < 2**63


def _field(requirement: NodeSelectorRequirement, path: FieldPath) -> Iterator[FieldError]:
    if requirement.operator not in _FIELD_OPERATORS:
        yield unsupported(path.child("operator"), AsJson(requirement.operator), _FIELD_OPERATORS)
    elif len(requirement.values or ()) != 1:
        yield invalid(path.child("values"), requirement.values, "must have one element")


ARGS = ArgsKind(plugin="NodeAffinity", struct=NodeAffinityArgs, validate=validate)
