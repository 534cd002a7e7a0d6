"""Arguments of DefaultPreemption: the number of candidate nodes."""

from __future__ import annotations

from typing import Annotated

from bayplan.codec.field_errors import FieldError, FieldPath, invalid
from bayplan.config.plugin_args import ArgsKind
from bayplan.config.schema import NO_OMIT_EMPTY, ConfigStruct, Int32

_MAX_PERCENTAGE = 100


class DefaultPreemptionArgs(ConfigStruct, frozen=True):
    """The dry run evaluates the larger of a percentage of the nodes and an absolute number."""

    min_candidate_nodes_percentage: Annotated[Int32, NO_OMIT_EMPTY] = 10
    min_candidate_nodes_absolute: Annotated[Int32, NO_OMIT_EMPTY] = 100


def validate(args: DefaultPreemptionArgs, path: FieldPath) -> list[FieldError]:
    percentage, absolute = args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute
    percentage_path = path.child("minCandidateNodesPercentage")
    absolute_path = path.child("minCandidateNodesAbsolute")
    errors = []
    if not 0 <= percentage <= _MAX_PERCENTAGE:
        errors.append(invalid(percentage_path, percentage, "not in valid range [0, 100]"))
    if absolute < 0:
        errors.append(invalid(absolute_path, absolute, "not in valid range [0, inf)"))
    if percentage == absolute == 0:
        message = "cannot be zero at the same time as"
        errors.append(invalid(percentage_path, percentage, f"{message} minCandidateNodesAbsolute"))
        errors.append(invalid(absolute_path, absolute, f"{message} minCandidateNodesPercentage"))
    return errors


ARGS = ArgsKind(plugin="DefaultPreemption", struct=DefaultPreemptionArgs, validate=validate)
