"""What can go wrong while devices are looked for or made ready, as opposed to not finding any.

"No devices here" is an answer (`Refusal`). These are the cases in which there is no answer: a claim, class or slice
that makes no sense, no time left, a device that does not come up, a claim that somebody else changed. The sentences
are kube-scheduler's.
"""

from __future__ import annotations

from bayplan.errors import BayplanError
from bayplan.objects.go_text import quote


class DeviceError(BayplanError):
    """Something about devices that ends an attempt."""


class AllocationError(DeviceError):
    """A claim, a class or a slice is such that no search can be made; the message names the object to mend."""


class AllocationTimeout(DeviceError):
    """The search took longer than it may. Fewer alternatives in the claims, or a longer `filterTimeout`, help."""

    def __init__(self, node: str) -> None:
        super().__init__(f"node {node}: timed out trying to allocate devices")
        self.node = node


class ClaimChanged(DeviceError):
    """A claim was deleted, allocated or deallocated by somebody else before we could write to it."""


class PodGone(DeviceError):
    """The pod that devices were chosen for was deleted."""


class OutOfReach(DeviceError):
    """The devices of a claim cannot be used from the node on which its pod is to run."""


class DeviceTaken(DeviceError):
    """A device that a claim is to get is another claim's."""


class DeviceBindingFailed(DeviceError):
    """A driver said that a device will not become ready."""

    def __init__(self, claim: str, reason: str, message: str) -> None:
        super().__init__(f"device binding failed: claim={claim}, reason={reason}, message={quote(message)}")


class DeviceBindingTimeout(DeviceError):
    """A device did not become ready in time. A longer `bindingTimeout` helps if the driver is merely slow."""

    def __init__(self, claim: str = "") -> None:
        super().__init__(f"device binding timeout: {f'claim={claim}' if claim else 'context deadline exceeded'}")
