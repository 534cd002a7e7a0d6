"""Can these claims be allocated on this node, and with which devices?

Asked by the DynamicResources filter for every node that is left, and by the binder when it must choose devices itself.
An `Allocator` is good for one attempt: it sees the devices in use as they are now. What it derives from slices lives
in the `PoolIndex` and is shared by all attempts.

Cost a node: the pools are there already; checking the claims and the search take some 10 µs for a claim that asks for
one device. The API structs of an allocation are made when somebody asks for them, hence for one node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bayplan.devices.asks import Ask, alternatives
from bayplan.devices.faults import AllocationError
from bayplan.devices.pools import PoolIndex
from bayplan.devices.results import allocation_result, node_selector
from bayplan.devices.search import MAX_DEVICES, Pick, Search
from bayplan.devices.selectors import DeviceSelectors
from bayplan.devices.state import InUse
from bayplan.objects.core import Node
from bayplan.objects.resource import AllocationResult, DeviceClass, ResourceClaim

CANNOT_ALLOCATE = "cannot allocate all claims"
INVALID_POOLS = "invalid resource pools were encountered"


@dataclass(frozen=True, slots=True)
class Refusal:
    """There are no devices for the claims here."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """Devices for all claims, on one node; entries are in the order of the claims."""

    node_name: str
    claims: tuple[ResourceClaim, ...]
    asks: tuple[tuple[Ask, ...], ...]  # the chosen alternative of each request
    picks: tuple[tuple[Pick, ...], ...]

    def results(self) -> tuple[AllocationResult, ...]:
        """What to write into the claims."""
        return tuple(
            allocation_result(claim, asks, picks, self.node_name)
            for claim, asks, picks in zip(self.claims, self.asks, self.picks, strict=True)
        )

    def granted(self, number: int) -> frozenset[str]:
        """The names of the requests for which a claim got devices, alternatives as "request/alternative"."""
        return frozenset(pick.ask.name for pick in self.picks[number])


class Allocator:
    """Allocates claims against one state of the cluster."""

    def __init__(
        self,
        index: PoolIndex,
        classes: Mapping[str, DeviceClass],
        in_use: InUse,
        selectors: DeviceSelectors,
    ) -> None:
        self._index = index
        self._classes = classes
        self._in_use = in_use
        self._selectors = selectors

    def allocate(
        self, node: Node, claims: Sequence[ResourceClaim], *, expired: Callable[[], bool] = lambda: False
    ) -> Allocation | Refusal:
        """Find devices for all claims. Raises `AllocationError`, or `AllocationTimeout` once `expired` says so."""
        pools = self._index.pools_for(node)
        search = Search(node, pools, self._in_use, self._selectors, expired)
        requests: list[list[Ask]] = []
        for position, claim in enumerate(claims):
            requests += self._requests(search, position, claim)
        if not search.run(requests):
            return Refusal(INVALID_POOLS if pools.any_invalid else CANNOT_ALLOCATE)
        return self._allocation(search, claims, node.name)

    def _requests(self, search: Search, position: int, claim: ResourceClaim) -> list[list[Ask]]:
        """The claim's requests, checked; what cannot be met whatever the search does is an error here."""
        requests = []
        for request in claim.spec.devices.requests:
            asks = []
            for ask in alternatives(claim, position, request, self._classes):
                if ask.wants_all:
                    self._find_every(search, ask)
                asks.append(ask)
            requests.append(asks)
        fewest = sum(min(ask.count for ask in asks) for asks in requests)
        if fewest > MAX_DEVICES:
            text = f"number of requested devices {fewest} exceeds the claim limit of {MAX_DEVICES}"
            raise AllocationError(f"claim {claim.key}: {text}")
        search.add_claim(claim)
        return requests

    def _find_every(self, search: Search, ask: Ask) -> None:
        for pool in search.pools.pools:
            if not pool.usable:
                state = "being updated" if pool.incomplete else "invalid"
                raise ask.fault(f"asks for all devices, but resource pool {pool.id} is currently {state}")
            ask.every += [
                device for device in pool.devices if search.selects(ask, device) and search.has_room(ask, device)
            ]
        ask.count = len(ask.every)

    def _allocation(self, search: Search, claims: Sequence[ResourceClaim], node_name: str) -> Allocation:
        for claim, picks in zip(claims, search.picks, strict=True):
            node_selector(claim, [pick.device for pick in picks], node_name)  # refuses slices nobody could honour
        return Allocation(
            node_name=node_name,
            claims=tuple(claims),
            asks=tuple(
                tuple(ask for ask in search.chosen if ask.position == position) for position in range(len(claims))
            ),
            picks=tuple(map(tuple, search.picks)),
        )
