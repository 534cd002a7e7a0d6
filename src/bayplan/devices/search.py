"""Which devices does each request get? A depth-first search on one node, first solution wins.

Requests are met one after the other, in the order of the claims. Each is a generator that yields once for every way
to meet it, with the devices of that way taken; asked to go on, it gives them back and tries the next. The search
keeps a stack of them, so its depth is bounded by memory and not by the interpreter.

A claim holds at most 32 devices. A way that would exceed this is not merely a dead end: no other choice of devices
for the requests before it can help, only another alternative of an earlier request. `DeadEnd.FULL` carries that news
back to the nearest one, but not across claims.

Cost: linear in devices for the usual claims, exponential in the worst case. Two short cuts keep hopeless searches from
getting there without changing an answer: a request stops where fewer devices are left than it needs, and `prospects`
ends a search in which a request cannot be met at all. `expired` is asked at every step so that a caller can bound it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import Enum

from bayplan.devices import capacity
from bayplan.devices.assumptions import AllocatedDevices
from bayplan.devices.capacity import Amounts
from bayplan.devices.constraints import AllocationConstraint, make_constraint
from bayplan.devices.counters import SharedCounters
from bayplan.devices.device_requests import RequestAlternative
from bayplan.devices.errors import AllocationError, AllocationTimeout
from bayplan.devices.identity import DeviceId
from bayplan.devices.pools import NodePools, PoolDevice
from bayplan.devices.search_pruning import SearchPruner
from bayplan.devices.selectors import DeviceSelectors
from bayplan.objects.core import Node
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.taints import tolerated

MAX_DEVICES = 32
"""How many devices one claim can hold."""


class DeadEnd(Enum):
    """Why a way did not lead to a solution."""

    END = "nothing left to try"
    FULL = "a claim would hold too many devices"


SearchSteps = Generator[None, DeadEnd, DeadEnd]
"""Yields with a request met; is sent why the rest failed then; returns why there is no further way."""


class DevicePick:
    """A device taken for an ask, and what has to be undone to give it back."""

    __slots__ = ("ask", "counted", "device", "joined", "share")

    def __init__(self, ask: RequestAlternative, device: PoolDevice) -> None:
        self.ask = ask
        self.device = device
        self.counted = False  # counters of the pool were taken
        self.joined = 0  # constraints that know of it
        self.share: Amounts | None = None  # what a share of the device consumes; None for the whole device


class AllocationSearch:
    """One attempt to meet all requests of some claims on one node."""

    def __init__(
        self,
        node: Node,
        pools: NodePools,
        in_use: AllocatedDevices,
        selectors: DeviceSelectors,
        expired: Callable[[], bool],
    ) -> None:
        self.node = node
        self.pools = pools
        self.picks: list[list[DevicePick]] = []  # a list for each claim
        self.chosen: list[RequestAlternative] = []  # for each request that is met, the alternative
        self._in_use = in_use
        self._selectors = selectors
        self._expired = expired
        self._counters = SharedCounters(pools, in_use)
        self._constraints: list[list[AllocationConstraint]] = []
        self._claims: list[ResourceClaim] = []
        self._taken: dict[DeviceId, set[int]] = {}  # whole devices -> claims that take them
        self._shares: dict[DeviceId, list[Amounts]] = {}

    def add_claim(self, claim: ResourceClaim) -> None:
        """The next claim in order; raises `AllocationError` for a constraint that nobody knows."""
        self._constraints.append(_constraints(claim))
        self._claims.append(claim)
        self.picks.append([])

    def run(self, requests: Sequence[Sequence[RequestAlternative]]) -> bool:
        """Meet every request, each given by its alternatives; `picks` and `chosen` hold the solution."""
        stack: list[SearchSteps] = []
        judged: set[int] = set()
        while len(stack) < len(requests):
            number = len(stack)
            ways = self._satisfy_request(number, requests[number])
            dead = _first_solution(ways)
            if dead is None:
                stack.append(ways)
                continue
            if number and number not in judged:
                judged.add(number)
                if SearchPruner(self, requests[: number + 1]).is_infeasible:
                    return False
            if not self._backtrack(stack, requests, dead):
                return False
        return True

    def _backtrack(
        self, stack: list[SearchSteps], requests: Sequence[Sequence[RequestAlternative]], dead: DeadEnd
    ) -> bool:
        """Find the latest request that can be met in another way."""
        while stack:
            failed, before = requests[len(stack)][0], requests[len(stack) - 1][0]
            if failed.position != before.position:
                dead = DeadEnd.END
            try:
                stack[-1].send(dead)
            except StopIteration as stop:
                dead = stop.value
                stack.pop()
            else:
                return True
        return False

    # ways to meet a request

    def _satisfy_request(self, number: int, asks: Sequence[RequestAlternative]) -> SearchSteps:
        """Alternatives in turn; the last word is FULL only if every one of them was too large."""
        last_word = DeadEnd.FULL
        for ask in asks:
            self.chosen[number:] = [ask]
            if (yield from self._fill_request(ask)) is not DeadEnd.FULL:
                last_word = DeadEnd.END
        return last_word

    def _fill_request(self, ask: RequestAlternative) -> SearchSteps:
        if self._expired():
            raise AllocationTimeout(self.node.name)
        if ask.wants_all and not ask.every:
            return DeadEnd.END
        if ask.count and len(self.picks[ask.position]) + ask.count > MAX_DEVICES:
            return DeadEnd.FULL
        return (yield from (self._fill_all(ask) if ask.wants_all else self._fill_some(ask)))

    def _fill_all(self, ask: RequestAlternative) -> SearchSteps:
        """The order of all devices does not matter, so there is one way or none."""
        dead, taken = DeadEnd.END, []
        for device in ask.every:
            pick = None if self._is_in_use(ask, device) else self._allocate_device(ask, device, must=True)
            if pick is None:
                break
            taken.append(pick)
        else:
            dead = yield
        for pick in reversed(taken):
            self._undo_pick(pick)
        return dead

    def _fill_some(self, ask: RequestAlternative) -> SearchSteps:
        """Combinations of devices, not permutations: the next device always comes after the one before."""
        taken: list[tuple[DevicePick, int]] = []
        start = 0
        left: list[int] | None = None  # from each position on, how many devices come into question at all
        while True:
            missing = ask.count - len(taken)
            if missing == 0:
                dead = yield
                if dead is DeadEnd.FULL:
                    self._undo_picks(taken)
                    return DeadEnd.FULL
            elif left is None or left[start] >= missing:
                found = self._next(ask, start)
                if found is not None:
                    taken.append(found)
                    start = found[1] + 1
                    continue
                if left is None:  # every device was looked at once, so counting them cannot raise anything new
                    left = self._left(ask, {position for _, position in taken})
                    if left[0] < ask.count:
                        self._undo_picks(taken)
                        return DeadEnd.END
            if not taken:
                return DeadEnd.END
            pick, position = taken.pop()
            self._undo_pick(pick)
            start = position + 1

    def _left(self, ask: RequestAlternative, own: set[int]) -> list[int]:
        """For each position the number of devices from there on that could be taken, constraints and counters aside."""
        devices = self.pools.devices
        left = [0] * (len(devices) + 1)
        for position in range(len(devices) - 1, -1, -1):
            device = devices[position]
            fits = position in own or (not self._is_in_use(ask, device) and self.could_take(ask, device))
            left[position] = left[position + 1] + fits
        return left

    def _next(self, ask: RequestAlternative, start: int) -> tuple[DevicePick, int] | None:
        """Take the first device from `start` on that can be taken. Only devices looked at can raise errors."""
        if self._expired():
            raise AllocationTimeout(self.node.name)
        devices = self.pools.devices
        for position in range(start, len(devices)):
            device = devices[position]
            if self._is_in_use(ask, device) or not self.selects(ask, device) or not self.has_room(ask, device):
                continue
            pick = self._allocate_device(ask, device)
            if pick is not None:
                return pick, position
        return None

    # may a device be taken?

    def selects(self, ask: RequestAlternative, device: PoolDevice) -> bool:
        """Class and request select the device, and it can be used from this node."""
        return self._selectors.select(ask, device) and device.reaches(self.node)

    def has_room(self, ask: RequestAlternative, device: PoolDevice) -> bool:
        """The capacities can give what is asked."""
        held = self._in_use.consumed(device.id)
        if not (ask.capacity or held or device.shareable or device.has_policy):
            return True  # the whole of an untouched device
        return capacity.fits(ask.capacity, device.device.capacity, (held, *self._shares.get(device.id, ())))

    def could_take(self, ask: RequestAlternative, device: PoolDevice) -> bool:
        """Whether the ask could have the device if this search had taken nothing; constraints and counters aside."""
        held = self._in_use.consumed(device.id)
        return (
            self.selects(ask, device)
            and (ask.admin or not self._in_use.is_exclusively_allocated(device.id))
            and capacity.fits(ask.capacity, device.device.capacity, (held,))
            and _tolerates(ask, device)
        )

    def fails_alone(self, requests: Sequence[Sequence[RequestAlternative]]) -> bool:
        """Whether these requests of one claim could not be met even if no other claim wanted anything."""
        if not requests:
            return False
        alone = AllocationSearch(self.node, self.pools, self._in_use, self._selectors, self._expired)
        for claim in self._claims:
            alone.add_claim(claim)
        return not alone.run(requests)

    def has_constraints(self, ask: RequestAlternative) -> bool:
        return bool(self._constraints[ask.position])

    def _is_in_use(self, ask: RequestAlternative, device: PoolDevice) -> bool:
        takers = self._taken.get(device.id)
        if ask.admin:
            return takers is not None and ask.position in takers
        return bool(takers) or self._in_use.is_exclusively_allocated(device.id)

    # taking and giving back

    def _allocate_device(self, ask: RequestAlternative, device: PoolDevice, *, must: bool = False) -> DevicePick | None:
        """Take a device that is free and selected, unless counters, taints or constraints object.

        With `must` a constraint's objection is an error: who asks for all devices must want them to match.
        """
        pick = DevicePick(ask, device)
        if device.counters and not self._is_shared(device):
            if not self._counters.consume(device):
                return None
            pick.counted = True
        if not _tolerates(ask, device):
            self._reject_pick(pick)
            return None
        for constraint in self._constraints[ask.position]:
            if not constraint.add(ask.request, ask.alternative, device.id, device.device):
                self._reject_pick(pick)
                if must:
                    text = f"cannot add device {device.id} because a claim constraint would not be satisfied"
                    raise ask.error(text)
                return None
            pick.joined += 1
        if not self.has_room(ask, device):
            self._reject_pick(pick)
            return None
        self._record_pick(pick)
        return pick

    def _is_shared(self, device: PoolDevice) -> bool:
        """Somebody holds a share already, so the counters of the device are paid."""
        return device.shareable and (self._in_use.has_consumed_capacity(device.id) or device.id in self._shares)

    def _record_pick(self, pick: DevicePick) -> None:
        device, position = pick.device, pick.ask.position
        if device.shareable:
            pick.share = capacity.consumed_capacity(pick.ask.capacity, device.device.capacity)
            self._shares.setdefault(device.id, []).append(pick.share)
        else:
            self._taken.setdefault(device.id, set()).add(position)
        self.picks[position].append(pick)

    def _undo_pick(self, pick: DevicePick) -> None:
        """Undo `_allocate_device`. Picks are given back newest first."""
        device, position = pick.device, pick.ask.position
        self.picks[position].pop()
        if device.shareable:
            self._shares[device.id].pop()
            if not self._shares[device.id]:
                del self._shares[device.id]
        else:
            self._taken[device.id].discard(position)
        self._reject_pick(pick)

    def _undo_picks(self, taken: list[tuple[DevicePick, int]]) -> None:
        for pick, _ in reversed(taken):
            self._undo_pick(pick)

    def _reject_pick(self, pick: DevicePick) -> None:
        """Undo what a refusal comes after: constraints and counters."""
        ask = pick.ask
        for constraint in reversed(self._constraints[ask.position][: pick.joined]):
            constraint.remove(ask.request, ask.alternative)
        if pick.counted:
            self._counters.release(pick.device)


def _tolerates(ask: RequestAlternative, device: PoolDevice) -> bool:
    return all(tolerated(taint, ask.tolerations) for taint in device.blocking_taints)


def _first_solution(ways: SearchSteps) -> DeadEnd | None:
    """Go to the first way; None if there is one, else why not."""
    try:
        next(ways)
    except StopIteration as stop:
        dead: DeadEnd = stop.value
        return dead
    return None


def _constraints(claim: ResourceClaim) -> list[AllocationConstraint]:
    constraints = []
    for number, constraint in enumerate(claim.spec.devices.constraints):
        made = make_constraint(constraint)
        if made is None:
            text = "empty constraint (unsupported constraint type?)"
            raise AllocationError(f"claim {claim.key}, constraint #{number}: {text}")
        constraints.append(made)
    return constraints
