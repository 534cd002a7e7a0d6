"""What every API object has in common: metadata, owners, conditions, label selectors.

Structs here and in the sibling modules hold only the fields that a scheduling decision can depend on; msgspec skips
the rest while it decodes. Lists are tuples and the structs are frozen, so an object can be shared by the cache, by
snapshots and by plugins without anybody guarding it; a changed object is a new object (`msgspec.structs.replace`).
Structs are not tracked by the garbage collector (`gc=False`): they form trees, never cycles.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from bayplan.codec.quantity import QuantityText

ResourceList = dict[str, QuantityText]

NAME_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""What Kubernetes makes the random parts of names of: they form no words."""


class Api(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Base of all API structs: camelCase on the wire, unknown fields ignored."""


class OwnerReference(Api, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Api, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages this object, if one does."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class LabelSelectorRequirement(Api, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(Api, frozen=True):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class Condition(Api, frozen=True):
    """A condition of any object: pods, nodes, devices and pod groups share the shape."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    observed_generation: int = 0


class KubeObject(Api, frozen=True):
    """An object with a name of its own."""

    metadata: ObjectMeta = ObjectMeta()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def key(self) -> str:
        """`namespace/name`, or the bare name of a cluster-scoped object."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


def format_micro_time(moment: datetime) -> str:
    """A MicroTime as the API server wants it: always with all six digits."""
    return f"{moment.astimezone(UTC).isoformat(timespec='microseconds')[:-6]}Z"


@lru_cache(maxsize=64)
def format_time(moment: datetime) -> str:
    """A Time as the API server wants it: whole seconds. A report tells the same moment half a dozen times."""
    return f"{moment.astimezone(UTC).isoformat(timespec='seconds')[:-6]}Z"
