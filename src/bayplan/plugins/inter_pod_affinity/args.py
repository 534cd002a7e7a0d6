"""What may be said to InterPodAffinity: what other pods' required terms are worth, and whether preferred ones count."""

from __future__ import annotations

from typing import Annotated

from bayplan.config.field_errors import FieldError, FieldPath, invalid
from bayplan.config.plugin_args import ArgsKind
from bayplan.config.schema import KEEP, Int32, Wire

_MAX_WEIGHT = 100


class InterPodAffinityArgs(Wire, frozen=True):
    hard_pod_affinity_weight: Annotated[Int32, KEEP] = 1
    """The score of a required affinity term of a pod that is already there."""
    ignore_preferred_terms_of_existing_pods: Annotated[bool, KEEP] = False


def validate(args: InterPodAffinityArgs, path: FieldPath) -> list[FieldError]:
    weight = args.hard_pod_affinity_weight
    if 0 <= weight <= _MAX_WEIGHT:
        return []
    return [invalid(path.child("hardPodAffinityWeight"), weight, "not in valid range [0, 100]")]


ARGS = ArgsKind(plugin="InterPodAffinity", struct=InterPodAffinityArgs, validate=validate)
