"""Can these claims be allocated on this node, and with which devices?

Asked by the DynamicResources filter for every node that is left, and by the binder when it must choose devices itself.
An `Allocator` is good for one attempt: it sees the devices in use as they are now. What it derives from slices lives
in the `PoolIndex`, and answers that stay right in the `AllocationMemo`; both are shared by all attempts.

Cost a node: some 20 µs for a claim that asks for one device, 2 µs where an earlier pod asked for the same and the
node's devices are untouched. The API structs of an allocation are made on demand, hence for one node.
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
    """There are no devices for the claims here."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """Devices for some claims on one node, or for any others that ask for the same. Entries are in their order."""

    node_name: str
    asks: tuple[tuple[RequestAlternative, ...], ...]  # the chosen alternative of each request
    picks: tuple[tuple[DevicePick, ...], ...]

    def results(self, claims: Sequence[ResourceClaim]) -> tuple[AllocationResult, ...]:
        """What to write into the claims."""
        return tuple(
            allocation_result(claim, asks, picks, self.node_name)
            for claim, asks, picks in zip(claims, self.asks, self.picks, strict=True)
        )

    def allocated_request_names(self, number: int) -> frozenset[str]:
        """The names of the requests for which a claim got devices, alternatives as "request/alternative"."""
        return frozenset(pick.ask.name for pick in self.picks[number])


@dataclass(frozen=True, slots=True)
class MemoEntry:
    """An answer, and what it depended on besides the claims."""

    pools: NodePools
    version: int
    answer: Allocation | NotAllocatable


class AllocationMemo:
    """Answers of earlier attempts. Pods of one kind have claims that ask for the same, and an answer stays right while
    nobody touches the devices that the node sees. Of little use for devices that every node sees."""

    def __init__(self, limit: int = 50_000) -> None:
        self._limit = limit
        self._size = 0
        self._by_spec: dict[bytes, dict[str, MemoEntry]] = {}
        self._classes = -1
        self._claims: list[ResourceClaim] = []
        self._answers: dict[str, MemoEntry] = {}

    def begin(self, classes_revision: int) -> None:
        """An attempt begins. Answers depend on classes, so a change of those ends them all."""
        if classes_revision != self._classes:
            self._classes = classes_revision
            self.clear()

    def clear(self) -> None:
        self._by_spec.clear()
        self._claims, self._answers, self._size = [], {}, 0

    def answers(self, claims: Sequence[ResourceClaim]) -> dict[str, MemoEntry]:
        """What is known about claims that ask for the same, by node."""
        if len(claims) != len(self._claims) or any(map(is_not, claims, self._claims)):
            self._claims = list(claims)
            spec = msgspec.msgpack.encode([claim.spec for claim in claims])
            self._answers = self._by_spec.setdefault(spec, {})
        return self._answers

    def keep(self, answers: dict[str, MemoEntry], node_name: str, answer: MemoEntry) -> None:
        if self._size >= self._limit:
            self.clear()
        self._size += node_name not in answers
        answers[node_name] = answer


class Allocator:
    """Allocates the claims of one pod, against the state of the cluster as it is."""

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
        # By the claim's position, since a pod may name a claim twice, and the request, which the claim keeps alive.
        self._known: dict[tuple[int, int], tuple[ResourceClaim, list[RequestAlternative]]] = {}

    def allocate(
        self,
        node: Node,
        claims: Sequence[ResourceClaim],
        *,
        timer: Callable[[], Callable[[], bool]] = lambda: _no_timeout,
    ) -> Allocation | NotAllocatable:
        """Find devices for all claims. Raises `AllocationError`, or `AllocationTimeout` once the time is over.

        `timer` is called when a search begins and returns the question whether it has lasted too long.
        """
        pools = self._index.pools_for(node)
        version = self._in_use.latest_change_of(pools.by_id)
        seen = self._memo.answers(claims)
        known = seen.get(node.name)
        if known is not None and known.pools is pools and known.version == version:
            return known.answer
        answer = self._search(node, pools, claims, timer())
        self._memo.keep(seen, node.name, MemoEntry(pools, version, answer))
        return answer

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
        """The claim's requests, checked; what cannot be met whatever the search does is an error here."""
        requests = [
            [
                self._on_node(search, ask) if ask.wants_all else ask
                for ask in self._alternatives(claim, position, request)
            ]
            for request in claim.spec.devices.requests
        ]
        fewest = sum(min(ask.count for ask in asks) for asks in requests)
        if fewest > MAX_DEVICES:
            text = f"number of requested devices {fewest} exceeds the claim limit of {MAX_DEVICES}"
            raise AllocationError(f"claim {claim.key}: {text}")
        search.add_claim(claim)
        return requests

    def _alternatives(
        self, claim: ResourceClaim, position: int, request: DeviceRequest
    ) -> Iterator[RequestAlternative]:
        """The alternatives of a request, read once for all nodes. Read lazily: an error in the second one must not
        come before an error that the first one meets on the node."""
        known = self._known.get((position, id(request)))
        if known is not None and known[0] is claim:
            yield from known[1]
            return
        asks = []
        for ask in alternatives(claim, position, request, self._classes):
            asks.append(ask)
            yield ask
        self._known[position, id(request)] = (claim, asks)

    def _on_node(self, search: AllocationSearch, ask: RequestAlternative) -> RequestAlternative:
        every: list[PoolDevice] = []
        for pool in search.pools.pools:
            if not pool.usable:
                state = "being updated" if pool.incomplete else "invalid"
                raise ask.error(f"asks for all devices, but resource pool {pool.id} is currently {state}")
            every += [device for device in pool.devices if search.selects(ask, device) and search.has_room(ask, device)]
        return ask.on_node(every)

    def _allocation(self, search: AllocationSearch, claims: Sequence[ResourceClaim], node_name: str) -> Allocation:
        for claim, picks in zip(claims, search.picks, strict=True):
            node_selector(claim, [pick.device for pick in picks], node_name)  # refuses slices nobody could honour
        return Allocation(
            node_name=node_name,
            asks=tuple(
                tuple(ask for ask in search.chosen if ask.position == position) for position in range(len(claims))
            ),
            picks=tuple(map(tuple, search.picks)),
        )


def _no_timeout() -> bool:
    return False
