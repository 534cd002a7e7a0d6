"""Fields that all API objects share: metadata, owners, conditions, label selectors.

Structs here and in the sibling modules have only the fields that scheduling can depend on; msgspec skips the rest while
it decodes. Lists are tuples and structs are frozen, so the cache, snapshots and plugins can share an object without
locks; a changed object is a new object (`msgspec.structs.replace`). The garbage collector does not track structs
(`gc=False`): they form trees, never cycles.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from bayplan.codec.quantity import QuantityText

ResourceList = dict[str, QuantityText]

NAME_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""The characters of Kubernetes' random name suffixes, chosen so that they form no words."""


class Api(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Base class of all API structs: camelCase in JSON, unknown fields ignored."""


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
        """The owner that manages this object, if any."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class LabelSelectorRequirement(Api, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(Api, frozen=True):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class Condition(Api, frozen=True):
    """A condition of any object; pods, nodes, devices and pod groups have the same fields."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    observed_generation: int = 0


class KubeObject(Api, frozen=True):
    """An object with metadata."""

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
    """A MicroTime as the API server requires it: always six digits after the point."""
    return f"{moment.astimezone(UTC).isoformat(timespec='microseconds')[:-6]}Z"


@lru_cache(maxsize=64)
def format_time(moment: datetime) -> str:
    """A Time as the API server requires it, in whole seconds. Cached: a status repeats the same time several times."""
    return f"{moment.astimezone(UTC).isoformat(timespec='seconds')[:-6]}Z"
