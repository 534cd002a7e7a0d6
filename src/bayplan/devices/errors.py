"""Errors of device allocation and binding.

"No devices here" is a result (`NotAllocatable`). These errors mean that there is no result: an invalid claim, class or
slice, a timeout, a device that does not become ready, a claim that another writer changed. The messages are
kube-scheduler's.
"""

from __future__ import annotations

from bayplan.codec.go_text import quote
from bayplan.errors import BayplanError


class DeviceError(BayplanError):
    """Base class: an error of devices that ends an attempt."""


class AllocationError(DeviceError):
    """An invalid claim, class or slice prevents the search. The message names the object to correct."""


class AllocationTimeout(DeviceError):
    """The search exceeded its time. Use fewer alternatives in the claims, or a longer `filterTimeout`."""

    def __init__(self, node: str) -> None:
        super().__init__(f"node {node}: timed out trying to allocate devices")
        self.node = node


class ClaimChanged(DeviceError):
    """Another writer deleted, allocated or deallocated a claim before the scheduler could write it."""


class PodGone(DeviceError):
    """The pod that devices were chosen for was deleted."""


class DeviceNotAccessible(DeviceError):
    """The pod's node cannot use the devices of a claim."""


class DeviceAlreadyAllocated(DeviceError):
    """Another claim already uses a device of the allocation."""


class DeviceBindingFailed(DeviceError):
    """A driver reported that a device will not become ready."""

    def __init__(self, claim: str, reason: str, message: str) -> None:
        super().__init__(f"device binding failed: claim={claim}, reason={reason}, message={quote(message)}")


class DeviceBindingTimeout(DeviceError):
    """A device did not become ready in time. If the driver is merely slow, use a longer `bindingTimeout`."""

    def __init__(self, claim: str = "") -> None:
        super().__init__(f"device binding timeout: {f'claim={claim}' if claim else 'context deadline exceeded'}")
