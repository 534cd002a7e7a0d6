"""Arguments of NodeResourcesBalancedAllocation: the resources to balance."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.codec.field_errors import FieldError, FieldPath, duplicate, invalid
from bayplan.config.plugin_args import ArgsKind
from bayplan.config.schema import ConfigStruct
from bayplan.plugins.node_resources.resource_specs import ResourceSpec, with_weights


class NodeResourcesBalancedAllocationArgs(ConfigStruct, frozen=True):
    resources: tuple[ResourceSpec, ...] = ()


def apply_defaults(args: NodeResourcesBalancedAllocationArgs) -> NodeResourcesBalancedAllocationArgs:
    return replace(args, resources=with_weights(args.resources))


def validate(args: NodeResourcesBalancedAllocationArgs, path: FieldPath) -> list[FieldError]:
    """Validate that names are unique and every weight is 1: all resources count equally."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for position, spec in enumerate(args.resources):
        resource_path = path.child("resources").index(position)
        if spec.name in seen:
            errors.append(duplicate(resource_path.child("name"), spec.name))
        seen.add(spec.name)
        if spec.weight != 1:
            errors.append(invalid(resource_path.child("weight"), spec.weight, "must be 1"))
    return errors


ARGS = ArgsKind(
    plugin="NodeResourcesBalancedAllocation",
    struct=NodeResourcesBalancedAllocationArgs,
    apply_defaults=apply_defaults,
    validate=validate,
)
