"""What may be said to NodeResourcesBalancedAllocation: between which resources to keep the balance."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.config.field_errors import FieldError, FieldPath, duplicate, invalid
from bayplan.config.plugin_args import ArgsKind
from bayplan.config.schema import ConfigStruct
from bayplan.plugins.node_resources.resource_specs import ResourceSpec, with_weights


class NodeResourcesBalancedAllocationArgs(ConfigStruct, frozen=True):
    resources: tuple[ResourceSpec, ...] = ()


def apply_defaults(args: NodeResourcesBalancedAllocationArgs) -> NodeResourcesBalancedAllocationArgs:
    return replace(args, resources=with_weights(args.resources))


def validate(args: NodeResourcesBalancedAllocationArgs, path: FieldPath) -> list[FieldError]:
    """The balance is between equals, so every weight must be 1."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for position, spec in enumerate(args.resources):
        place = path.child("resources").index(position)
        if spec.name in seen:
            errors.append(duplicate(place.child("name"), spec.name))
        seen.add(spec.name)
        if spec.weight != 1:
            errors.append(invalid(place.child("weight"), spec.weight, "must be 1"))
    return errors


ARGS = ArgsKind(
    plugin="NodeResourcesBalancedAllocation",
    struct=NodeResourcesBalancedAllocationArgs,
    apply_defaults=apply_defaults,
    validate=validate,
)
