"""Which devices are promised to pods that a BindRequest is to bring to a node? Nobody else may get them meanwhile.

The binder writes what a request says of claims when it comes to that, and between two attempts nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bayplan.cache.cache import Cache
from bayplan.devices.claims import entries_by_claim
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest


@dataclass(slots=True)
class RequestedDevices:
    """Holds devices in a cache by what requests say."""

    cache: Cache
    _held: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by uid of the pod: claims whose devices we hold

    def reserve(self, request: BindRequest, pod: Pod) -> None:
        if not request.spec.resource_claim_allocations or pod.uid in self._held:
            return
        entries = {entry: f"{pod.namespace}/{claim}" for claim, entry in entries_by_claim(pod).items()}
        brought = {
            entries[each.name]: each.allocation
            for each in request.spec.resource_claim_allocations
            if each.name in entries
        }
        for key, allocation in brought.items():
            if allocation is not None:
                self.cache.devices.reserve_for_request(key, pod.uid, allocation)
        self._held[pod.uid] = tuple(brought)

    def release(self, uid: str) -> None:
        """The pod does not get the devices."""
        for key in self._held.pop(uid, ()):
            self.cache.devices.release(key, uid)

    def placed(self, pod: Pod) -> None:
        """The API server shows the pod on a node, so its claims are written. Their watch may be behind that of pods, or
        ahead of it: then the claims may be deallocated again."""
        claims = self._held.pop(pod.uid, None)
        if claims is None:
            claims = tuple(f"{pod.namespace}/{claim}" for claim in entries_by_claim(pod))
        version = pod.metadata.resource_version
        for key in claims:
            self.cache.devices.keep(key, pod.uid, written_before=int(version) if version.isdecimal() else 0)
