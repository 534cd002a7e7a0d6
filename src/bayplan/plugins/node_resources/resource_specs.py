"""Configuration types shared by several plugins: weighted resources, and the shape of a score over utilization."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec.structs import replace

from bayplan.codec.field_errors import FieldError, FieldPath, invalid, required
from bayplan.config.schema import NO_OMIT_EMPTY, ConfigStruct, Int32, Int64

MAX_UTILIZATION = 100
MAX_CUSTOM_SCORE = 10
MAX_RESOURCE_WEIGHT = 100


class ResourceSpec(ConfigStruct, frozen=True):
    name: Annotated[str, NO_OMIT_EMPTY] = ""
    weight: Int64 = 0


class UtilizationShapePoint(ConfigStruct, frozen=True):
    """The score at one utilization. Scores between two points are interpolated linearly."""

    utilization: Annotated[Int32, NO_OMIT_EMPTY] = 0
    score: Annotated[Int32, NO_OMIT_EMPTY] = 0


DEFAULT_RESOURCES = (ResourceSpec("cpu", 1), ResourceSpec("memory", 1))


def with_weights(resources: tuple[ResourceSpec, ...]) -> tuple[ResourceSpec, ...]:
    """Return the resources with weights of 0 replaced by 1; cpu and memory if there are none."""
    return tuple(replace(spec, weight=spec.weight or 1) for spec in resources or DEFAULT_RESOURCES)


def validate_weights(resources: tuple[ResourceSpec, ...], path: FieldPath) -> Iterator[FieldError]:
    for position, spec in enumerate(resources):
        if not 0 < spec.weight <= MAX_RESOURCE_WEIGHT:
            message = f"resource weight of {spec.name} not in valid range (0, 100]"
            yield invalid(path.index(position).child("weight"), spec.weight, message)


def validate_shape(shape: tuple[UtilizationShapePoint, ...], path: FieldPath) -> Iterator[FieldError]:
    if not shape:
        yield required(path, "at least one point must be specified")
    for position in range(1, len(shape)):
        utilization = shape[position].utilization
        if shape[position - 1].utilization >= utilization:
            message = "values must be sorted in increasing order"
            yield invalid(path.index(position).child("utilization"), utilization, message)
            break
    for position, point in enumerate(shape):
        if not 0 <= point.utilization <= MAX_UTILIZATION:
            message = "not in valid range [0, 100]"
            yield invalid(path.index(position).child("utilization"), point.utilization, message)
        if not 0 <= point.score <= MAX_CUSTOM_SCORE:
            yield invalid(path.index(position).child("score"), point.score, "not in valid range [0, 10]")
