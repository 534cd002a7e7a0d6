"""The objects that device allocation reads, besides nodes and claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import DeviceClass, ResourceClaim, ResourceSlice


class DeviceLookup(Protocol):
    """Tables of API objects; the catalog of the cluster implements it."""

    @property
    def resource_claims(self) -> Mapping[str, ResourceClaim]:
        """By `namespace/name`, as last received from the API server."""
        ...

    @property
    def resource_slices(self) -> Mapping[str, ResourceSlice]:
        """By name."""
        ...

    @property
    def device_classes(self) -> Mapping[str, DeviceClass]:
        """By name."""
        ...

    def revision(self, kind: type[KubeObject]) -> int:
        """A number that changes whenever an object of the kind does."""
        ...
