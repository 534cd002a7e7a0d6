"""Allocates device claims on a node.

The DynamicResources filter calls it for every remaining node; the binder calls it when it must choose devices itself.
An `Allocator` serves one attempt and sees the devices in use at that time. Values derived from slices are in the
`PoolIndex`, and results that stay valid are in the `AllocationMemo`; all attempts share both.

Cost per node: about 20 µs for a claim with one device, 2 µs if an earlier pod had an equal claim and the node's devices
have not changed. The API structs of an allocation are built on demand, so for one node only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_not

import msgspec

from bayplan.devices.assumptions import AllocatedDevices
from bayplan.devices.device_requests import RequestAlternative, alternatives
from bayplan.devices.errors import AllocationError
from bayplan.devices.pools import NodePools, PoolDevice, PoolIndex
from bayplan.devices.results import allocation_result, node_selector
from bayplan.devices.search import MAX_DEVICES, AllocationSearch, DevicePick
from bayplan.devices.selectors import DeviceSelectors
from bayplan.objects.core import Node
from bayplan.objects.resource import AllocationResult, DeviceClass, DeviceRequest, ResourceClaim

CANNOT_ALLOCATE = "cannot allocate all claims"
INVALID_POOLS = "invalid resource pools were encountered"


@dataclass(frozen=True, slots=True)
class NotAllocatable:
    """The node has no devices for the claims."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """Devices for some claims on one node, or for other claims with an equal spec.

    Entries are in the order of the claims.
    """

    node_name: str
    alternatives: tuple[tuple[RequestAlternative, ...], ...]  # the chosen alternative of each request
    picks: tuple[tuple[DevicePick, ...], ...]

    def results(self, claims: Sequence[ResourceClaim]) -> tuple[AllocationResult, ...]:
        """The allocations to write into the claims."""
        return tuple(
            allocation_result(claim, alternatives, picks, self.node_name)
            for claim, alternatives, picks in zip(claims, self.alternatives, self.picks, strict=True)
        )

    def allocated_request_names(self, number: int) -> frozenset[str]:
        """The names of the requests with allocated devices of a claim; alternatives are "request/alternative"."""
        return frozenset(pick.alternative.name for pick in self.picks[number])


@dataclass(frozen=True, slots=True)
class MemoEntry:
    """A result, and its inputs besides the claims."""

    pools: NodePools
    version: int
    result: Allocation | NotAllocatable


class AllocationMemo:
    """Results of earlier attempts.

    Pods of one workload have claims with equal specs, and a result stays valid until the use of the devices that the
    node sees changes. It has little effect for devices that every node sees.
    """

    def __init__(self, limit: int = 50_000) -> None:
        self._limit = limit
        self._size = 0
        self._by_spec: dict[bytes, dict[str, MemoEntry]] = {}
        self._classes = -1
        self._claims: list[ResourceClaim] = []
        self._results_by_node: dict[str, MemoEntry] = {}

    def begin(self, classes_revision: int) -> None:
        """Start an attempt. Results depend on classes, so any change of a class clears the memo."""
        if classes_revision != self._classes:
            self._classes = classes_revision
            self.clear()

    def clear(self) -> None:
        self._by_spec.clear()
        self._claims, self._results_by_node, self._size = [], {}, 0

    def results_by_node(self, claims: Sequence[ResourceClaim]) -> dict[str, MemoEntry]:
        """The known results for claims with an equal spec, by node."""
        if len(claims) != len(self._claims) or any(map(is_not, claims, self._claims)):
            self._claims = list(claims)
            spec = msgspec.msgpack.encode([claim.spec for claim in claims])
            self._results_by_node = self._by_spec.setdefault(spec, {})
        return self._results_by_node

    def keep(self, results: dict[str, MemoEntry], node_name: str, entry: MemoEntry) -> None:
        if self._size >= self._limit:
            self.clear()
        self._size += node_name not in results
        results[node_name] = entry


class Allocator:
    """Allocates the claims of one pod against the current state of the cluster."""

    def __init__(
        self,
        index: PoolIndex,
        classes: Mapping[str, DeviceClass],
        in_use: AllocatedDevices,
        selectors: DeviceSelectors,
        memo: AllocationMemo | None = None,
    ) -> None:
        self._index = index
        self._classes = classes
        self._in_use = in_use
        self._selectors = selectors
        self._memo = AllocationMemo() if memo is None else memo
        # The key is the claim's position, since a pod may name a claim twice, and the request, which the claim keeps
        # alive.
        self._known: dict[tuple[int, int], tuple[ResourceClaim, list[RequestAlternative]]] = {}

    def allocate(
        self,
        node: Node,
        claims: Sequence[ResourceClaim],
        *,
        timer: Callable[[], Callable[[], bool]] = lambda: _no_timeout,
    ) -> Allocation | NotAllocatable:
        """Find devices for all claims. Raises `AllocationError`, or `AllocationTimeout` after the time limit.

        `timer` is called when a search begins; it returns a function that says whether the search has exceeded its
        time.
        """
        pools = self._index.pools_for(node)
        version = self._in_use.latest_change_of(pools.by_id)
        known_results = self._memo.results_by_node(claims)
        known = known_results.get(node.name)
        if known is not None and known.pools is pools and known.version == version:
            return known.result
        result = self._search(node, pools, claims, timer())
        self._memo.keep(known_results, node.name, MemoEntry(pools, version, result))
        return result

    def _search(
        self, node: Node, pools: NodePools, claims: Sequence[ResourceClaim], expired: Callable[[], bool]
    ) -> Allocation | NotAllocatable:
        search = AllocationSearch(node, pools, self._in_use, self._selectors, expired)
        requests: list[list[RequestAlternative]] = []
        for position, claim in enumerate(claims):
            requests += self._requests(search, position, claim)
        if not search.run(requests):
            return NotAllocatable(INVALID_POOLS if pools.any_invalid else CANNOT_ALLOCATE)
        return self._allocation(search, claims, node.name)

    def _requests(
        self, search: AllocationSearch, position: int, claim: ResourceClaim
    ) -> list[list[RequestAlternative]]:
        """The claim's validated requests. A request that no search can meet is an error."""
        requests = [
            [
                self._on_node(search, alternative) if alternative.wants_all else alternative
                for alternative in self._alternatives(claim, position, request)
            ]
            for request in claim.spec.devices.requests
        ]
        fewest = sum(min(each.count for each in alternatives) for alternatives in requests)
        if fewest > MAX_DEVICES:
            text = f"number of requested devices {fewest} exceeds the claim limit of {MAX_DEVICES}"
            raise AllocationError(f"claim {claim.key}: {text}")
        search.add_claim(claim)
        return requests

    def _alternatives(
        self, claim: ResourceClaim, position: int, request: DeviceRequest
    ) -> Iterator[RequestAlternative]:
        """The alternatives of a request, cached for all nodes.

        They are built lazily: an error in the second one must not come before an error that the first one causes on the
        node.
        """
        known = self._known.get((position, id(request)))
        if known is not None and known[0] is claim:
            yield from known[1]
            return
        built = []
        for alternative in alternatives(claim, position, request, self._classes):
            built.append(alternative)
            yield alternative
        self._known[position, id(request)] = (claim, built)

    def _on_node(self, search: AllocationSearch, alternative: RequestAlternative) -> RequestAlternative:
        every: list[PoolDevice] = []
        for pool in search.pools.pools:
            if not pool.usable:
                state = "being updated" if pool.incomplete else "invalid"
                raise alternative.error(f"asks for all devices, but resource pool {pool.id} is currently {state}")
            every += [
                device
                for device in pool.devices
                if search.selects(alternative, device) and search.has_room(alternative, device)
            ]
        return alternative.on_node(every)

    def _allocation(self, search: AllocationSearch, claims: Sequence[ResourceClaim], node_name: str) -> Allocation:
        for claim, picks in zip(claims, search.picks, strict=True):
            # raises for unsupported node selectors of slices
            node_selector(claim, [pick.device for pick in picks], node_name)
        return Allocation(
            node_name=node_name,
            alternatives=tuple(
                tuple(each for each in search.chosen if each.position == position) for position in range(len(claims))
            ),
            picks=tuple(map(tuple, search.picks)),
        )


def _no_timeout() -> bool:
    return False
