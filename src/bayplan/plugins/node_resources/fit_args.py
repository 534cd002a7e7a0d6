"""Arguments of NodeResourcesFit: ignored resources and the scoring strategy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec.structs import replace

from bayplan.codec.field_errors import AsJson, FieldError, FieldPath, forbidden, invalid, required, unsupported
from bayplan.config.plugin_args import ArgsKind
from bayplan.config.schema import ConfigStruct, GoTypeName
from bayplan.objects.name_validation import label_key_problems
from bayplan.plugins.node_resources.resource_specs import (
    DEFAULT_RESOURCES,
    ResourceSpec,
    UtilizationShapePoint,
    validate_shape,
    validate_weights,
    with_weights,
)

LEAST_ALLOCATED = "LeastAllocated"
MOST_ALLOCATED = "MostAllocated"
REQUESTED_TO_CAPACITY_RATIO = "RequestedToCapacityRatio"
STRATEGIES = (LEAST_ALLOCATED, MOST_ALLOCATED, REQUESTED_TO_CAPACITY_RATIO)


class RequestedToCapacityRatioParam(ConfigStruct, frozen=True):
    shape: tuple[UtilizationShapePoint, ...] = ()


class ScoringStrategy(ConfigStruct, frozen=True):
    type: Annotated[str, GoTypeName("v1.ScoringStrategyType")] = ""
    resources: tuple[ResourceSpec, ...] = ()
    requested_to_capacity_ratio: RequestedToCapacityRatioParam | None = None


_DEFAULT_STRATEGY = ScoringStrategy(LEAST_ALLOCATED, DEFAULT_RESOURCES)


class NodeResourcesFitArgs(ConfigStruct, frozen=True):
    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()
    scoring_strategy: ScoringStrategy | None = None

    @property
    def strategy(self) -> ScoringStrategy:
        """The scoring strategy; always set after defaulting."""
        return self.scoring_strategy or _DEFAULT_STRATEGY


def apply_defaults(args: NodeResourcesFitArgs) -> NodeResourcesFitArgs:
    """The strategy type is defaulted only if the whole strategy is absent."""
    strategy = args.strategy
    return replace(args, scoring_strategy=replace(strategy, resources=with_weights(strategy.resources)))


def validate(args: NodeResourcesFitArgs, path: FieldPath) -> list[FieldError]:
    return [
        *_resources(args.ignored_resources, path.child("ignoredResources")),
        *_groups(args.ignored_resource_groups, path.child("ignoredResourceGroups")),
        *_strategy(args.strategy, path.child("scoringStrategy")),
    ]


def _resources(names: tuple[str, ...], path: FieldPath) -> Iterator[FieldError]:
    for position, name in enumerate(names):
        yield from (invalid(path.index(position), name, problem) for problem in label_key_problems(name))


def _groups(groups: tuple[str, ...], path: FieldPath) -> Iterator[FieldError]:
    for position, group in enumerate(groups):
        group_path = path.index(position)
        if "/" in group:
            yield invalid(group_path, group, "resource group name can't contain '/'")
        yield from (invalid(group_path, group, problem) for problem in label_key_problems(group))


def _strategy(strategy: ScoringStrategy, path: FieldPath) -> Iterator[FieldError]:
    if strategy.type not in STRATEGIES:
        yield unsupported(path.child("type"), AsJson(strategy.type), STRATEGIES)
    yield from validate_weights(strategy.resources, path.child("resources"))
    ratio, ratio_path = strategy.requested_to_capacity_ratio, path.child("requestedToCapacityRatio")
    if strategy.type != REQUESTED_TO_CAPACITY_RATIO:
        if ratio is not None:
            yield forbidden(ratio_path, "must be nil when type is not RequestedToCapacityRatio")
    elif ratio is None:
        yield required(ratio_path, "must be specified when type is RequestedToCapacityRatio")
    else:
        yield from validate_shape(ratio.shape, ratio_path.child("shape"))


ARGS = ArgsKind(
    plugin="NodeResourcesFit",
    struct=NodeResourcesFitArgs,
    apply_defaults=apply_defaults,
    validate=validate,
    validated_at_load=False,
)
