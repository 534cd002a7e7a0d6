"""Arguments of PodTopologySpread: default constraints for pods without constraints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec
from msgspec.structs import replace

from bayplan.codec.field_errors import (
    AsJson,
    FieldError,
    FieldPath,
    duplicate,
    forbidden,
    invalid,
    required,
    unsupported,
)
from bayplan.config.encode import encode_v1
from bayplan.config.plugin_args import ArgsKind
from bayplan.config.schema import NO_OMIT_EMPTY, ConfigStruct, GoTypeName, Int32
from bayplan.objects import core
from bayplan.objects.name_validation import label_key_problems

SYSTEM_DEFAULTING = "System"
LIST_DEFAULTING = "List"
_WHEN_UNSATISFIABLE = ("DoNotSchedule", "ScheduleAnyway")

InclusionPolicy = Annotated[str, GoTypeName("v1.NodeInclusionPolicy")]


class LabelSelectorRequirement(ConfigStruct, frozen=True):
    tagged: ClassVar[bool] = True

    key: Annotated[str, NO_OMIT_EMPTY] = ""
    operator: Annotated[str, NO_OMIT_EMPTY, GoTypeName("v1.LabelSelectorOperator")] = ""
    values: tuple[str, ...] = ()


class LabelSelector(ConfigStruct, frozen=True):
    tagged: ClassVar[bool] = True

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class TopologySpreadConstraint(ConfigStruct, frozen=True):
    tagged: ClassVar[bool] = True

    max_skew: Annotated[Int32, NO_OMIT_EMPTY] = 0
    topology_key: Annotated[str, NO_OMIT_EMPTY] = ""
    when_unsatisfiable: Annotated[str, NO_OMIT_EMPTY, GoTypeName("v1.UnsatisfiableConstraintAction")] = ""
    label_selector: LabelSelector | None = None
    min_domains: Int32 | None = None
    node_affinity_policy: InclusionPolicy | None = None
    node_taints_policy: InclusionPolicy | None = None
    match_label_keys: tuple[str, ...] = ()


class PodTopologySpreadArgs(ConfigStruct, frozen=True):
    default_constraints: tuple[TopologySpreadConstraint, ...] = ()
    defaulting_type: Annotated[str, GoTypeName("v1.PodTopologySpreadConstraintsDefaulting")] = ""

    @property
    def constraints(self) -> tuple[core.TopologySpreadConstraint, ...]:
        """The configured constraints as those of a pod."""
        return tuple(
            msgspec.convert(encode_v1(constraint), core.TopologySpreadConstraint)
            for constraint in self.default_constraints
        )


def apply_defaults(args: PodTopologySpreadArgs) -> PodTopologySpreadArgs:
    return replace(args, defaulting_type=args.defaulting_type or SYSTEM_DEFAULTING)


def validate(args: PodTopologySpreadArgs, path: FieldPath) -> list[FieldError]:
    errors = list(_defaulting_type(args, path.child("defaultingType")))
    seen: set[tuple[str, str]] = set()
    for position, constraint in enumerate(args.default_constraints):
        place = path.child("defaultConstraints").index(position)
        errors += _constraint(constraint, place)
        names = (constraint.topology_key, constraint.when_unsatisfiable)
        if names in seen:
            errors.append(duplicate(place, f"{{{names[0]}, {names[1]}}}"))
        seen.add(names)
    return errors


def _defaulting_type(args: PodTopologySpreadArgs, path: FieldPath) -> Iterator[FieldError]:
    kind = args.defaulting_type
    if kind not in (SYSTEM_DEFAULTING, LIST_DEFAULTING):
        yield unsupported(path, AsJson(kind), (SYSTEM_DEFAULTING, LIST_DEFAULTING))
    elif kind == SYSTEM_DEFAULTING and args.default_constraints:
        yield invalid(path, AsJson(kind), "when .defaultConstraints are not empty")


def _constraint(constraint: TopologySpreadConstraint, path: FieldPath) -> Iterator[FieldError]:
    if constraint.max_skew <= 0:
        yield invalid(path.child("maxSkew"), constraint.max_skew, "not in valid range (0, inf)")
    key, key_path = constraint.topology_key, path.child("topologyKey")
    if not key:
        yield required(key_path, "can not be empty")
    else:
        yield from (invalid(key_path, key, problem) for problem in label_key_problems(key))
    action, action_path = constraint.when_unsatisfiable, path.child("whenUnsatisfiable")
    if not action:
        yield required(action_path, "can not be empty")
    elif action not in _WHEN_UNSATISFIABLE:
        yield unsupported(action_path, AsJson(action), _WHEN_UNSATISFIABLE)
    if constraint.label_selector is not None:
        message = "constraint must not define a selector, as they deduced for each pod"
        yield forbidden(path.child("labelSelector"), message)


ARGS = ArgsKind(
    plugin="PodTopologySpread", struct=PodTopologySpreadArgs, apply_defaults=apply_defaults, validate=validate
)
