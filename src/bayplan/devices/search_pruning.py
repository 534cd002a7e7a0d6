"""Detects requests that cannot be met at all.

Upstream's search finds out that a request cannot be met only after it has tried every way to meet those before it. When
the last request fails, this module checks whether it could be met at all: by itself, together with the requests that
compete for the same devices, and with its claim alone. "Infeasible" must be the result of the full search, so it is
returned only if that search could not have raised an error.

Called at most once per request and search. Cost: one lookup per alternative and device, and a search for the claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bayplan.devices.device_requests import RequestAlternative
from bayplan.devices.errors import AllocationError
from bayplan.devices.pools import NodePools, PoolDevice

Requests = Sequence[Sequence[RequestAlternative]]


class DeviceCandidates(Protocol):
    """The methods of a search that pruning uses."""

    @property
    def pools(self) -> NodePools: ...
    def could_take(self, alternative: RequestAlternative, device: PoolDevice) -> bool: ...
    def has_constraints(self, alternative: RequestAlternative) -> bool: ...
    def fails_alone(self, requests: Requests) -> bool: ...


class SearchPruner:
    """The chances of the last of some requests. Sets of devices are integers with a bit per device."""

    def __init__(self, search: DeviceCandidates, requests: Requests) -> None:
        self._search = search
        self._requests = requests

    @property
    def is_infeasible(self) -> bool:
        """Whether the last request cannot be met, whatever the other requests get."""
        if any(
            alternative.wants_all and self._search.has_constraints(alternative)
            for alternatives in self._requests
            for alternative in alternatives
        ):
            return False  # a constraint violated by one of all devices is an error
        try:
            candidates = [
                [self._candidates(alternative) for alternative in alternatives] for alternatives in self._requests
            ]
            return (
                self._lacks_devices(candidates[-1])
                or self._exceeds_supply(candidates)
                or self._search.fails_alone(self._requests_with_same_devices)
            )
        except AllocationError:
            return False  # the full search may visit the same device and raise the same error

    @property
    def _requests_with_same_devices(self) -> Requests:
        """The last request with those before it in its claim; empty if there is no other claim."""
        position = self._requests[-1][0].position
        same_claim = [alternatives for alternatives in self._requests if alternatives[0].position == position]
        return same_claim if len(same_claim) < len(self._requests) else ()

    def _candidates(self, alternative: RequestAlternative) -> int:
        """The devices that an alternative could use if no other device were allocated."""
        devices = self._search.pools.devices
        return sum(1 << number for number, device in enumerate(devices) if self._search.could_take(alternative, device))

    def _lacks_devices(self, masks: list[int]) -> bool:
        return all(
            mask.bit_count() < max(alternative.count, 1)
            for alternative, mask in zip(self._requests[-1], masks, strict=True)
        )

    def _exceeds_supply(self, candidates: list[list[int]]) -> bool:
        """Whether requests that can use only the last request's candidates need more devices than there are."""
        devices = self._search.pools.devices
        wanted = _union(candidates[-1])
        if any(device.shareable for number, device in enumerate(devices) if wanted >> number & 1):
            return False
        needed = sum(
            min(alternative.count for alternative in alternatives)
            for alternatives, masks in zip(self._requests, candidates, strict=True)
            if not alternatives[0].admin and not _union(masks) & ~wanted
        )
        return needed > wanted.bit_count()


def _union(masks: list[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
