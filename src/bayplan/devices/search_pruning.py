"""Is there any point in searching on?

Upstream's search finds out that a request cannot be met only after it has tried every way to meet those before it.
Where the last request fails we ask here first whether it could be met at all: by itself, together with those that
compete for the same devices, and with its claim alone. The answer "hopeless" must be the answer of the full search, so
it is given only where that search could not have raised an error on its way.

Asked at most once a request and search. Cost: a lookup for each alternative and device, and a search for the claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bayplan.devices.device_requests import RequestAlternative
from bayplan.devices.errors import AllocationError
from bayplan.devices.pools import NodePools, PoolDevice

Requests = Sequence[Sequence[RequestAlternative]]


class DeviceCandidates(Protocol):
    """What is asked of a search."""

    @property
    def pools(self) -> NodePools: ...
    def could_take(self, ask: RequestAlternative, device: PoolDevice) -> bool: ...
    def has_constraints(self, ask: RequestAlternative) -> bool: ...
    def fails_alone(self, requests: Requests) -> bool: ...


class SearchPruner:
    """The chances of the last of some requests. Sets of devices are integers, a bit a device."""

    def __init__(self, search: DeviceCandidates, requests: Requests) -> None:
        self._search = search
        self._requests = requests

    @property
    def is_infeasible(self) -> bool:
        """The last request cannot be met, whatever the others get."""
        if any(ask.wants_all and self._search.has_constraints(ask) for asks in self._requests for ask in asks):
            return False  # a constraint that objects to one of all devices is an error
        try:
            candidates = [[self._candidates(ask) for ask in asks] for asks in self._requests]
            return (
                self._lacks_devices(candidates[-1])
                or self._exceeds_supply(candidates)
                or self._search.fails_alone(self._requests_with_same_devices)
            )
        except AllocationError:
            return False  # the full search may get to the same device, and to the same error

    @property
    def _requests_with_same_devices(self) -> Requests:
        """The last request with those before it in its claim; nothing if there is no other claim."""
        position = self._requests[-1][0].position
        mates = [asks for asks in self._requests if asks[0].position == position]
        return mates if len(mates) < len(self._requests) else ()

    def _candidates(self, ask: RequestAlternative) -> int:
        """The devices that could be taken for an ask if nothing else were."""
        devices = self._search.pools.devices
        return sum(1 << number for number, device in enumerate(devices) if self._search.could_take(ask, device))

    def _lacks_devices(self, masks: list[int]) -> bool:
        return all(mask.bit_count() < max(ask.count, 1) for ask, mask in zip(self._requests[-1], masks, strict=True))

    def _exceeds_supply(self, candidates: list[list[int]]) -> bool:
        """Requests that can only be met from the devices that the last one wants, want more of them than there are."""
        devices = self._search.pools.devices
        wanted = _union(candidates[-1])
        if any(device.shareable for number, device in enumerate(devices) if wanted >> number & 1):
            return False
        needed = sum(
            min(ask.count for ask in asks)
            for asks, masks in zip(self._requests, candidates, strict=True)
            if not asks[0].admin and not _union(masks) & ~wanted
        )
        return needed > wanted.bit_count()


def _union(masks: list[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
