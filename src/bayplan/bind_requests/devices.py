"""Devices of pods that a BindRequest binds later: reserved in the cache, so that no other pod gets them.

The binder writes the request's allocations into the claims in its attempt; between two attempts nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bayplan.cache.cache import Cache
from bayplan.devices.claims import entries_by_claim
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest


@dataclass(slots=True)
class RequestedDevices:
    """Reserves devices in a cache for the allocations of bind requests."""

    cache: Cache
    _reserved_claims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys of claims with reserved devices, by the uid of the pod."""

    def reserve(self, request: BindRequest, pod: Pod) -> None:
        if not request.spec.resource_claim_allocations or pod.uid in self._reserved_claims:
            return
        entries = {entry: f"{pod.namespace}/{claim}" for claim, entry in entries_by_claim(pod).items()}
        allocations = {
            entries[each.name]: each.allocation
            for each in request.spec.resource_claim_allocations
            if each.name in entries
        }
        for key, allocation in allocations.items():
            if allocation is not None:
                self.cache.devices.reserve_for_request(key, pod.uid, allocation)
        self._reserved_claims[pod.uid] = tuple(allocations)

    def release(self, uid: str) -> None:
        """Release the devices: the pod does not get them."""
        for key in self._reserved_claims.pop(uid, ()):
            self.cache.devices.release(key, uid)

    def handle_pod_assigned(self, pod: Pod) -> None:
        """The API server shows the pod on a node, so its claims are written. The watch of claims may be behind the
        watch of pods, or ahead of it: then the claims may be deallocated again."""
        claims = self._reserved_claims.pop(pod.uid, None)
        if claims is None:
            claims = tuple(f"{pod.namespace}/{claim}" for claim in entries_by_claim(pod))
        version = pod.metadata.resource_version
        for key in claims:
            self.cache.devices.keep(key, pod.uid, written_before=int(version) if version.isdecimal() else 0)
