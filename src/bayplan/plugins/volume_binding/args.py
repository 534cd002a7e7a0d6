"""Arguments of VolumeBinding: the time limit for binding volumes."""

from __future__ import annotations

from typing import Annotated

from bayplan.codec.field_errors import FieldError, FieldPath, invalid
from bayplan.config.encode import encode_internal
from bayplan.config.plugin_args import ArgsKind
from bayplan.config.schema import NO_OMIT_EMPTY, ConfigStruct, Int64
from bayplan.plugins.node_resources.resource_specs import UtilizationShapePoint

_SHAPE_REFUSED = "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring"


class VolumeBindingArgs(ConfigStruct, frozen=True):
    bind_timeout_seconds: Annotated[Int64, NO_OMIT_EMPTY] = 600
    shape: tuple[UtilizationShapePoint, ...] | None = None
    """Decoded only to be rejected by name: scoring by storage capacity is disabled in 1.36."""


def validate(args: VolumeBindingArgs, path: FieldPath) -> list[FieldError]:
    errors = []
    if args.bind_timeout_seconds < 0:
        message = "invalid BindTimeoutSeconds, should not be a negative value"
        errors.append(invalid(path.child("bindTimeoutSeconds"), args.bind_timeout_seconds, message))
    if args.shape is not None:
        errors.append(invalid(path.child("shape"), encode_internal(args.shape), _SHAPE_REFUSED))
    return errors


ARGS = ArgsKind(plugin="VolumeBinding", struct=VolumeBindingArgs, validate=validate)
