"""Depth-first search for the devices of all requests on one node; the first solution wins.

Requests are met one after the other, in the order of the claims. Each request is a generator that yields once for every
way to meet it, with the devices allocated; on resumption it undoes them and tries the next way. The search keeps a
stack of generators, so memory and not the interpreter limits its depth.

A claim holds at most 32 devices. If a way would exceed this, no other choice of devices for earlier requests can help,
only another alternative of an earlier request. `DeadEnd.FULL` passes this back to the nearest one, but not across
claims.

Cost: linear in devices for the usual claims, exponential in the worst case. Two short cuts stop hopeless searches early
without changing a result: a request stops if fewer devices are left than it needs, and `search_pruning` ends a search
in which a request cannot be met at all. `expired` is called at every step so that a caller can limit the time.
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
"""The maximum number of devices of a claim."""


class DeadEnd(Enum):
    """Why a way did not lead to a solution."""

    END = "nothing left to try"
    FULL = "a claim would hold too many devices"


SearchSteps = Generator[None, DeadEnd, DeadEnd]
"""Yields when a request is met; receives why the rest failed; returns why there is no further way."""


class DevicePick:
    """A device allocated for a request, and the state needed to undo it."""

    __slots__ = ("alternative", "counted", "device", "joined", "share")

    def __init__(self, alternative: RequestAlternative, device: PoolDevice) -> None:
        self.alternative = alternative
        self.device = device
        self.counted = False  # counters of the pool were consumed
        self.joined = 0  # number of constraints that have added it
        self.share: Amounts | None = None  # the consumed capacity of a share; None for the whole device


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
        self.chosen: list[RequestAlternative] = []  # the chosen alternative of each met request
        self._in_use = in_use
        self._selectors = selectors
        self._expired = expired
        self._counters = SharedCounters(pools, in_use)
        self._constraints: list[list[AllocationConstraint]] = []
        self._claims: list[ResourceClaim] = []
        self._taken: dict[DeviceId, set[int]] = {}  # whole devices -> claims that use them
        self._shares: dict[DeviceId, list[Amounts]] = {}

    def add_claim(self, claim: ResourceClaim) -> None:
        """Add the next claim in order; raises `AllocationError` for an unknown constraint."""
        self._constraints.append(_constraints(claim))
        self._claims.append(claim)
        self.picks.append([])

    def run(self, requests: Sequence[Sequence[RequestAlternative]]) -> bool:
        """Meet every request, each given by its alternatives; `picks` and `chosen` contain the solution."""
        stack: list[SearchSteps] = []
        pruned: set[int] = set()
        while len(stack) < len(requests):
            number = len(stack)
            steps = self._satisfy_request(number, requests[number])
            dead = _first_solution(steps)
            if dead is None:
                stack.append(steps)
                continue
            if number and number not in pruned:
                pruned.add(number)
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

    # Ways to meet a request.

    def _satisfy_request(self, number: int, alternatives: Sequence[RequestAlternative]) -> SearchSteps:
        """Try the alternatives in order. The result is FULL only if every one of them was too large."""
        result = DeadEnd.FULL
        for alternative in alternatives:
            self.chosen[number:] = [alternative]
            if (yield from self._fill_request(alternative)) is not DeadEnd.FULL:
                result = DeadEnd.END
        return result

    def _fill_request(self, alternative: RequestAlternative) -> SearchSteps:
        if self._expired():
            raise AllocationTimeout(self.node.name)
        if alternative.wants_all and not alternative.every:
            return DeadEnd.END
        if alternative.count and len(self.picks[alternative.position]) + alternative.count > MAX_DEVICES:
            return DeadEnd.FULL
        return (yield from (self._fill_all(alternative) if alternative.wants_all else self._fill_some(alternative)))

    def _fill_all(self, alternative: RequestAlternative) -> SearchSteps:
        """The order of all devices does not matter, so there is one way or none."""
        dead, taken = DeadEnd.END, []
        for device in alternative.every:
            pick = (
                None if self._is_in_use(alternative, device) else self._allocate_device(alternative, device, must=True)
            )
            if pick is None:
                break
            taken.append(pick)
        else:
            dead = yield
        for pick in reversed(taken):
            self._undo_pick(pick)
        return dead

    def _fill_some(self, alternative: RequestAlternative) -> SearchSteps:
        """Combinations of devices, not permutations: the next device always comes after the previous one."""
        taken: list[tuple[DevicePick, int]] = []
        start = 0
        left: list[int] | None = None  # from each position on, the number of possible devices
        while True:
            missing = alternative.count - len(taken)
            if missing == 0:
                dead = yield
                if dead is DeadEnd.FULL:
                    self._undo_picks(taken)
                    return DeadEnd.FULL
            elif left is None or left[start] >= missing:
                found = self._next(alternative, start)
                if found is not None:
                    taken.append(found)
                    start = found[1] + 1
                    continue
                if left is None:  # every device was checked once, so counting them cannot raise a new error
                    left = self._remaining_devices(alternative, {position for _, position in taken})
                    if left[0] < alternative.count:
                        self._undo_picks(taken)
                        return DeadEnd.END
            if not taken:
                return DeadEnd.END
            pick, position = taken.pop()
            self._undo_pick(pick)
            start = position + 1

    def _remaining_devices(self, alternative: RequestAlternative, own: set[int]) -> list[int]:
        """For each position the number of possible devices from there on, regardless of constraints and counters."""
        devices = self.pools.devices
        left = [0] * (len(devices) + 1)
        for position in range(len(devices) - 1, -1, -1):
            device = devices[position]
            fits = position in own or (
                not self._is_in_use(alternative, device) and self.could_take(alternative, device)
            )
            left[position] = left[position + 1] + fits
        return left

    def _next(self, alternative: RequestAlternative, start: int) -> tuple[DevicePick, int] | None:
        """Allocate the first possible device from `start` on. Only visited devices can raise errors."""
        if self._expired():
            raise AllocationTimeout(self.node.name)
        devices = self.pools.devices
        for position in range(start, len(devices)):
            device = devices[position]
            if (
                self._is_in_use(alternative, device)
                or not self.selects(alternative, device)
                or not self.has_room(alternative, device)
            ):
                continue
            pick = self._allocate_device(alternative, device)
            if pick is not None:
                return pick, position
        return None

    # Conditions of a device.

    def selects(self, alternative: RequestAlternative, device: PoolDevice) -> bool:
        """Whether class and request select the device, and the node can use it."""
        return self._selectors.select(alternative, device) and device.reaches(self.node)

    def has_room(self, alternative: RequestAlternative, device: PoolDevice) -> bool:
        held = self._in_use.consumed_capacity(device.id)
        if not (alternative.capacity or held or device.shareable or device.has_policy):
            return True  # an unused device has all its capacities
        return capacity.fits(alternative.capacity, device.device.capacity, (held, *self._shares.get(device.id, ())))

    def could_take(self, alternative: RequestAlternative, device: PoolDevice) -> bool:
        """Whether the request could use the device if this search had none; without constraints and counters."""
        held = self._in_use.consumed_capacity(device.id)
        return (
            self.selects(alternative, device)
            and (alternative.admin or not self._in_use.is_exclusively_allocated(device.id))
            and capacity.fits(alternative.capacity, device.device.capacity, (held,))
            and _tolerates(alternative, device)
        )

    def fails_alone(self, requests: Sequence[Sequence[RequestAlternative]]) -> bool:
        """Whether these requests of one claim could not be met even if no other claim had requests."""
        if not requests:
            return False
        alone = AllocationSearch(self.node, self.pools, self._in_use, self._selectors, self._expired)
        for claim in self._claims:
            alone.add_claim(claim)
        return not alone.run(requests)

    def has_constraints(self, alternative: RequestAlternative) -> bool:
        return bool(self._constraints[alternative.position])

    def _is_in_use(self, alternative: RequestAlternative, device: PoolDevice) -> bool:
        takers = self._taken.get(device.id)
        if alternative.admin:
            return takers is not None and alternative.position in takers
        return bool(takers) or self._in_use.is_exclusively_allocated(device.id)

    # Allocation and undo.

    def _allocate_device(
        self, alternative: RequestAlternative, device: PoolDevice, *, must: bool = False
    ) -> DevicePick | None:
        """Allocate a device that is free and selected, unless counters, taints or constraints prevent it.

        With `must` a violated constraint is an error: a request for all devices must satisfy the constraints.
        """
        pick = DevicePick(alternative, device)
        if device.counters and not self._is_shared(device):
            if not self._counters.consume(device):
                return None
            pick.counted = True
        if not _tolerates(alternative, device):
            self._reject_pick(pick)
            return None
        for constraint in self._constraints[alternative.position]:
            if not constraint.add(alternative.request, alternative.alternative, device.id, device.device):
                self._reject_pick(pick)
                if must:
                    text = f"cannot add device {device.id} because a claim constraint would not be satisfied"
                    raise alternative.error(text)
                return None
            pick.joined += 1
        if not self.has_room(alternative, device):
            self._reject_pick(pick)
            return None
        self._record_pick(pick)
        return pick

    def _is_shared(self, device: PoolDevice) -> bool:
        """Whether a share of the device is in use already, so that its counters are consumed."""
        return device.shareable and (self._in_use.has_consumed_capacity(device.id) or device.id in self._shares)

    def _record_pick(self, pick: DevicePick) -> None:
        device, position = pick.device, pick.alternative.position
        if device.shareable:
            pick.share = capacity.consumed_capacity(pick.alternative.capacity, device.device.capacity)
            self._shares.setdefault(device.id, []).append(pick.share)
        else:
            self._taken.setdefault(device.id, set()).add(position)
        self.picks[position].append(pick)

    def _undo_pick(self, pick: DevicePick) -> None:
        """Undo `_allocate_device`. Picks are undone newest first."""
        device, position = pick.device, pick.alternative.position
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
        """Undo the steps before a rejection: constraints and counters."""
        alternative = pick.alternative
        for constraint in reversed(self._constraints[alternative.position][: pick.joined]):
            constraint.remove(alternative.request, alternative.alternative)
        if pick.counted:
            self._counters.release(pick.device)


def _tolerates(alternative: RequestAlternative, device: PoolDevice) -> bool:
    return all(tolerated(taint, alternative.tolerations) for taint in device.blocking_taints)


def _first_solution(steps: SearchSteps) -> DeadEnd | None:
    """Advance to the first way; None if there is one, else why not."""
    try:
        next(steps)
    except StopIteration as stop:
        dead: DeadEnd = stop.value
        return dead
    return None


def _constraints(claim: ResourceClaim) -> list[AllocationConstraint]:
    constraints = []
    for number, constraint in enumerate(claim.spec.devices.constraints):
        built = make_constraint(constraint)
        if built is None:
            text = "empty constraint (unsupported constraint type?)"
            raise AllocationError(f"claim {claim.key}, constraint #{number}: {text}")
        constraints.append(built)
    return constraints
