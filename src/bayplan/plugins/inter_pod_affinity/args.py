"""Arguments of InterPodAffinity."""

from __future__ import annotations

from typing import Annotated

from bayplan.codec.field_errors import FieldError, FieldPath, invalid
from bayplan.config.plugin_args import ArgsKind
from bayplan.config.schema import NO_OMIT_EMPTY, ConfigStruct, Int32

_MAX_WEIGHT = 100


class InterPodAffinityArgs(ConfigStruct, frozen=True):
    hard_pod_affinity_weight: Annotated[Int32, NO_OMIT_EMPTY] = 1
    """Weight of a required affinity term of an existing pod."""
    ignore_preferred_terms_of_existing_pods: Annotated[bool, NO_OMIT_EMPTY] = False


def validate(args: InterPodAffinityArgs, path: FieldPath) -> list[FieldError]:
    weight = args.hard_pod_affinity_weight
    if 0 <= weight <= _MAX_WEIGHT:
        return []
    return [invalid(path.child("hardPodAffinityWeight"), weight, "not in valid range [0, 100]")]


ARGS = ArgsKind(plugin="InterPodAffinity", struct=InterPodAffinityArgs, validate=validate)
