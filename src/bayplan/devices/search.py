"""Which devices does each request get? A depth-first search on one node, first solution wins.

Requests are met one after the other, in the order of the claims. Each is a generator that yields once for every way
to meet it, with the devices of that way taken; asked to go on, it gives them back and tries the next. The search
keeps a stack of them, so its depth is bounded by memory and not by the interpreter.

A claim holds at most 32 devices. A way that would exceed this is not merely a dead end: no other choice of devices
for the requests before it can help, only another alternative of an earlier request. `Dead.FULL` carries that news
back to the nearest one, but not across claims.

Cost: linear in devices for the usual claims, exponential in the worst case. Two short cuts keep hopeless searches from
getting there without changing an answer: a request stops where fewer devices are left than it needs, and `prospects`
ends a search in which a request cannot be met at all. `expired` is asked at every step so that a caller can bound it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import Enum

from bayplan.devices import capacity
from bayplan.devices.assumptions import InUse
from bayplan.devices.capacity import Amounts
from bayplan.devices.constraints import Constraint, constraint_of
from bayplan.devices.counters import CounterBook
from bayplan.devices.device_requests import Ask
from bayplan.devices.errors import AllocationError, AllocationTimeout
from bayplan.devices.identity import DeviceId
from bayplan.devices.pools import NodePools, PoolDevice
from bayplan.devices.search_pruning import Prospects
from bayplan.devices.selectors import DeviceSelectors
from bayplan.objects.core import Node
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.taints import tolerated

MAX_DEVICES = 32
"""How many devices one claim can hold."""


class Dead(Enum):
    """Why a way did not lead to a solution."""

    END = "nothing left to try"
    FULL = "a claim would hold too many devices"


Ways = Generator[None, Dead, Dead]
"""Yields with a request met; is sent why the rest failed then; returns why there is no further way."""


class Pick:
    """A device taken for an ask, and what has to be undone to give it back."""

    __slots__ = ("ask", "counted", "device", "joined", "share")

    def __init__(self, ask: Ask, device: PoolDevice) -> None:
        self.ask = ask
        self.device = device
        self.counted = False  # counters of the pool were taken
        self.joined = 0  # constraints that know of it
        self.share: Amounts | None = None  # what a share of the device consumes; None for the whole device


class Search:
    """One attempt to meet all requests of some claims on one node."""

    def __init__(
        self,
        node: Node,
        pools: NodePools,
        in_use: InUse,
        selectors: DeviceSelectors,
        expired: Callable[[], bool],
    ) -> None:
        self.node = node
        self.pools = pools
        self.picks: list[list[Pick]] = []  # a list for each claim
        self.chosen: list[Ask] = []  # for each request that is met, the alternative
        self._in_use = in_use
        self._selectors = selectors
        self._expired = expired
        self._counters = CounterBook(pools, in_use)
        self._constraints: list[list[Constraint]] = []
        self._claims: list[ResourceClaim] = []
        self._taken: dict[DeviceId, set[int]] = {}  # whole devices -> claims that take them
        self._shares: dict[DeviceId, list[Amounts]] = {}

    def add_claim(self, claim: ResourceClaim) -> None:
        """The next claim in order; raises `AllocationError` for a constraint that nobody knows."""
        self._constraints.append(_constraints(claim))
        self._claims.append(claim)
        self.picks.append([])

    def run(self, requests: Sequence[Sequence[Ask]]) -> bool:
        """Meet every request, each given by its alternatives; `picks` and `chosen` hold the solution."""
        stack: list[Ways] = []
        judged: set[int] = set()
        while len(stack) < len(requests):
            number = len(stack)
            ways = self._meet(number, requests[number])
            dead = _first(ways)
            if dead is None:
                stack.append(ways)
                continue
            if number and number not in judged:
                judged.add(number)
                if Prospects(self, requests[: number + 1]).hopeless:
                    return False
            if not self._turn_around(stack, requests, dead):
                return False
        return True

    def _turn_around(self, stack: list[Ways], requests: Sequence[Sequence[Ask]], dead: Dead) -> bool:
        """Find the latest request that can be met in another way."""
        while stack:
            failed, before = requests[len(stack)][0], requests[len(stack) - 1][0]
            if failed.position != before.position:
                dead = Dead.END
            try:
                stack[-1].send(dead)
            except StopIteration as stop:
                dead = stop.value
                stack.pop()
            else:
                return True
        return False

    # ways to meet a request

    def _meet(self, number: int, asks: Sequence[Ask]) -> Ways:
        """Alternatives in turn; the last word is FULL only if every one of them was too large."""
        last_word = Dead.FULL
        for ask in asks:
            self.chosen[number:] = [ask]
            if (yield from self._fill(ask)) is not Dead.FULL:
                last_word = Dead.END
        return last_word

    def _fill(self, ask: Ask) -> Ways:
        if self._expired():
            raise AllocationTimeout(self.node.name)
        if ask.wants_all and not ask.every:
            return Dead.END
        if ask.count and len(self.picks[ask.position]) + ask.count > MAX_DEVICES:
            return Dead.FULL
        return (yield from (self._fill_all(ask) if ask.wants_all else self._fill_some(ask)))

    def _fill_all(self, ask: Ask) -> Ways:
        """The order of all devices does not matter, so there is one way or none."""
        dead, taken = Dead.END, []
        for device in ask.every:
            pick = None if self._occupied(ask, device) else self._take(ask, device, must=True)
            if pick is None:
                break
            taken.append(pick)
        else:
            dead = yield
        for pick in reversed(taken):
            self._give_back(pick)
        return dead

    def _fill_some(self, ask: Ask) -> Ways:
        """Combinations of devices, not permutations: the next device always comes after the one before."""
        taken: list[tuple[Pick, int]] = []
        start = 0
        left: list[int] | None = None  # from each position on, how many devices come into question at all
        while True:
            missing = ask.count - len(taken)
            if missing == 0:
                dead = yield
                if dead is Dead.FULL:
                    self._give_back_all(taken)
                    return Dead.FULL
            elif left is None or left[start] >= missing:
                found = self._next(ask, start)
                if found is not None:
                    taken.append(found)
                    start = found[1] + 1
                    continue
                if left is None:  # every device was looked at once, so counting them cannot raise anything new
                    left = self._left(ask, {position for _, position in taken})
                    if left[0] < ask.count:
                        self._give_back_all(taken)
                        return Dead.END
            if not taken:
                return Dead.END
            pick, position = taken.pop()
            self._give_back(pick)
            start = position + 1

    def _left(self, ask: Ask, own: set[int]) -> list[int]:
        """For each position the number of devices from there on that could be taken, constraints and counters aside."""
        devices = self.pools.devices
        left = [0] * (len(devices) + 1)
        for position in range(len(devices) - 1, -1, -1):
            device = devices[position]
            fits = position in own or (not self._occupied(ask, device) and self.could_take(ask, device))
            left[position] = left[position + 1] + fits
        return left

    def _next(self, ask: Ask, start: int) -> tuple[Pick, int] | None:
        """Take the first device from `start` on that can be taken. Only devices looked at can raise errors."""
        if self._expired():
            raise AllocationTimeout(self.node.name)
        devices = self.pools.devices
        for position in range(start, len(devices)):
            device = devices[position]
            if self._occupied(ask, device) or not self.selects(ask, device) or not self.has_room(ask, device):
                continue
            pick = self._take(ask, device)
            if pick is not None:
                return pick, position
        return None

    # may a device be taken?

    def selects(self, ask: Ask, device: PoolDevice) -> bool:
        """Class and request select the device, and it can be used from this node."""
        return self._selectors.select(ask, device) and device.reaches(self.node)

    def has_room(self, ask: Ask, device: PoolDevice) -> bool:
        """The capacities can give what is asked."""
        held = self._in_use.consumed(device.id)
        if not (ask.capacity or held or device.shareable or device.has_policy):
            return True  # the whole of an untouched device
        return capacity.fits(ask.capacity, device.device.capacity, (held, *self._shares.get(device.id, ())))

    def could_take(self, ask: Ask, device: PoolDevice) -> bool:
        """Whether the ask could have the device if this search had taken nothing; constraints and counters aside."""
        held = self._in_use.consumed(device.id)
        return (
            self.selects(ask, device)
            and (ask.admin or not self._in_use.is_held(device.id))
            and capacity.fits(ask.capacity, device.device.capacity, (held,))
            and _tolerates(ask, device)
        )

    def fails_alone(self, requests: Sequence[Sequence[Ask]]) -> bool:
        """Whether these requests of one claim could not be met even if no other claim wanted anything."""
        if not requests:
            return False
        alone = Search(self.node, self.pools, self._in_use, self._selectors, self._expired)
        for claim in self._claims:
            alone.add_claim(claim)
        return not alone.run(requests)

    def has_constraints(self, ask: Ask) -> bool:
        return bool(self._constraints[ask.position])

    def _occupied(self, ask: Ask, device: PoolDevice) -> bool:
        takers = self._taken.get(device.id)
        if ask.admin:
            return takers is not None and ask.position in takers
        return bool(takers) or self._in_use.is_held(device.id)

    # taking and giving back

    def _take(self, ask: Ask, device: PoolDevice, *, must: bool = False) -> Pick | None:
        """Take a device that is free and selected, unless counters, taints or constraints object.

        With `must` a constraint's objection is an error: who asks for all devices must want them to match.
        """
        pick = Pick(ask, device)
        if device.counters and not self._is_shared(device):
            if not self._counters.take(device):
                return None
            pick.counted = True
        if not _tolerates(ask, device):
            self._refuse(pick)
            return None
        for constraint in self._constraints[ask.position]:
            if not constraint.add(ask.request, ask.alternative, device.id, device.device):
                self._refuse(pick)
                if must:
                    text = f"cannot add device {device.id} because a claim constraint would not be satisfied"
                    raise ask.fault(text)
                return None
            pick.joined += 1
        if not self.has_room(ask, device):
            self._refuse(pick)
            return None
        self._keep(pick)
        return pick

    def _is_shared(self, device: PoolDevice) -> bool:
        """Somebody holds a share already, so the counters of the device are paid."""
        return device.shareable and (self._in_use.is_measured(device.id) or device.id in self._shares)

    def _keep(self, pick: Pick) -> None:
        device, position = pick.device, pick.ask.position
        if device.shareable:
            pick.share = capacity.consumed(pick.ask.capacity, device.device.capacity)
            self._shares.setdefault(device.id, []).append(pick.share)
        else:
            self._taken.setdefault(device.id, set()).add(position)
        self.picks[position].append(pick)

    def _give_back(self, pick: Pick) -> None:
        """Undo `_take`. Picks are given back newest first."""
        device, position = pick.device, pick.ask.position
        self.picks[position].pop()
        if device.shareable:
            self._shares[device.id].pop()
            if not self._shares[device.id]:
                del self._shares[device.id]
        else:
            self._taken[device.id].discard(position)
        self._refuse(pick)

    def _give_back_all(self, taken: list[tuple[Pick, int]]) -> None:
        for pick, _ in reversed(taken):
            self._give_back(pick)

    def _refuse(self, pick: Pick) -> None:
        """Undo what a refusal comes after: constraints and counters."""
        ask = pick.ask
        for constraint in reversed(self._constraints[ask.position][: pick.joined]):
            constraint.remove(ask.request, ask.alternative)
        if pick.counted:
            self._counters.give_back(pick.device)


def _tolerates(ask: Ask, device: PoolDevice) -> bool:
    return all(tolerated(taint, ask.tolerations) for taint in device.blocking_taints)


def _first(ways: Ways) -> Dead | None:
    """Go to the first way; None if there is one, else why not."""
    try:
        next(ways)
    except StopIteration as stop:
        dead: Dead = stop.value
        return dead
    return None


def _constraints(claim: ResourceClaim) -> list[Constraint]:
    constraints = []
    for number, constraint in enumerate(claim.spec.devices.constraints):
        made = constraint_of(constraint)
        if made is None:
            text = "empty constraint (unsupported constraint type?)"
            raise AllocationError(f"claim {claim.key}, constraint #{number}: {text}")
        constraints.append(made)
    return constraints
