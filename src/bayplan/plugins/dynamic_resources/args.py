"""Arguments of DynamicResources: limits for the search of devices on a node, and for the wait until they are ready."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.codec.field_errors import FieldError, FieldPath, invalid
from bayplan.codec.go_duration import SECOND, GoDuration
from bayplan.config.plugin_args import ArgsKind
from bayplan.config.schema import ConfigStruct

DEFAULT_FILTER_TIMEOUT = GoDuration.of_seconds(10)
DEFAULT_BINDING_TIMEOUT = GoDuration.of_seconds(600)


class DynamicResourcesArgs(ConfigStruct, frozen=True):
    filter_timeout: GoDuration | None = None
    """A longer search fails the pod; 0 means no limit."""
    binding_timeout: GoDuration | None = None


def apply_defaults(args: DynamicResourcesArgs) -> DynamicResourcesArgs:
    # `or` would treat an explicit 0 as missing.
    filter_timeout = DEFAULT_FILTER_TIMEOUT if args.filter_timeout is None else args.filter_timeout
    binding_timeout = DEFAULT_BINDING_TIMEOUT if args.binding_timeout is None else args.binding_timeout
    return replace(args, filter_timeout=filter_timeout, binding_timeout=binding_timeout)


def validate(args: DynamicResourcesArgs, path: FieldPath) -> list[FieldError]:
    errors = []
    if args.filter_timeout is not None and args.filter_timeout.nanoseconds < 0:
        errors.append(invalid(path.child("filterTimeout"), str(args.filter_timeout), "must be zero or positive"))
    if args.binding_timeout is not None and args.binding_timeout.nanoseconds < SECOND:
        errors.append(invalid(path.child("bindingTimeout"), str(args.binding_timeout), "must be at least 1 second"))
    return errors


ARGS = ArgsKind(
    plugin="DynamicResources", struct=DynamicResourcesArgs, apply_defaults=apply_defaults, validate=validate
)
