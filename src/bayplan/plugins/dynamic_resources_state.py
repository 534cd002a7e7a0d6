"""What DynamicResources knows of one pod during one attempt, and its verdict on one node.

Made by PreFilter, filled by Filter, read by everything after it. The verdict on a node depends on nothing that other
pods on the node could change, so it is found once a node and attempt, also where preemption asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from bayplan.devices import extended
from bayplan.devices.allocator import Allocation, Allocator, Refusal
from bayplan.devices.claims import can_wait_for
from bayplan.devices.faults import DeviceError
from bayplan.framework.cycle import Key
from bayplan.framework.status import Status, error, unresolvable
from bayplan.objects.core import ContainerExtendedResourceRequest, Node, Pod
from bayplan.objects.node_selectors import NodeSelectorMatcher
from bayplan.objects.quantity import parse_quantity
from bayplan.objects.resource import AllocationResult, DeviceClass, ResourceClaim

STALE_SPECIAL_CLAIM = "cannot schedule extended resource claim"
NO_RESOURCE = "cannot fit resource"
UNAVAILABLE = "resourceclaim not available on the node"

MOST_ALTERNATIVES = 8  # of a request; the first one chosen is worth this much, the last 1


@dataclass(slots=True)
class Verdict:
    """What one node can do for the pod."""

    refusal: Status | None = None
    allocation: Allocation | None = None  # None where nothing had to be allocated
    special: ResourceClaim | None = None  # the special claim as this node needs it
    mappings: tuple[ContainerExtendedResourceRequest, ...] = ()


@dataclass(slots=True)
class ClaimState:
    """The pod's claims, its own first, the special one for extended resources last."""

    pod: Pod | None = None
    claims: list[ResourceClaim] = field(default_factory=list)
    has_special: bool = False
    resources: Mapping[str, int] = field(default_factory=dict)  # extended resources that the pod asks for
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)  # behind extended resources
    where: dict[int, NodeSelectorMatcher] = field(default_factory=dict)  # nodes on which an allocated claim can be used
    allocator: Allocator | None = None  # None where every claim is allocated
    unavailable: set[int] = field(default_factory=set)  # allocated claims that some node could not use
    verdicts: dict[str, Verdict] = field(default_factory=dict)  # by node name
    granted: dict[int, AllocationResult] = field(default_factory=dict)  # by Reserve, for claims to be written
    reserved: dict[int, ResourceClaim] = field(default_factory=dict)  # claims whose devices Reserve holds
    promised: list[str] = field(default_factory=list)  # keys of allocated claims whose devices Reserve holds

    @property
    def special(self) -> ResourceClaim | None:
        return self.claims[-1] if self.has_special else None

    @property
    def own_claims(self) -> list[ResourceClaim]:
        return self.claims[:-1] if self.has_special else self.claims

    @property
    def unallocated(self) -> list[int]:
        return [number for number, claim in enumerate(self.claims) if claim.status.allocation is None]

    def is_special(self, number: int) -> bool:
        return self.has_special and number == len(self.claims) - 1

    def to_allocate(self, verdict: Verdict) -> list[ResourceClaim]:
        """The claims that a node's allocation is for, in its order."""
        claims = [claim for claim in self.claims if claim.status.allocation is None]
        if verdict.special is not None:
            claims[-1] = verdict.special
        return claims

    @property
    def ranks_nodes(self) -> bool:
        """Whether some claim has alternatives, so that nodes can be better or worse."""
        return any(request.first_available for claim in self.claims for request in claim.spec.devices.requests)

    def score(self, node_name: str) -> int:
        """How good the alternatives are that the node's allocation uses; 0 if nothing is allocated in this attempt."""
        verdict = self.verdicts.get(node_name)
        if verdict is None or verdict.allocation is None:
            return 0
        score = allocated = 0
        for claim in self.claims:
            if claim.status.allocation is not None:
                granted = frozenset(result.request for result in claim.status.allocation.devices.results)
            else:
                granted = verdict.allocation.granted(allocated)
                allocated += 1
            score += _worth(claim, granted)
        return score


STATE: Key[ClaimState] = Key("DynamicResources")


def _worth(claim: ResourceClaim, granted: frozenset[str]) -> int:
    """The earlier an alternative is in its list, the more it is worth."""
    return sum(
        MOST_ALTERNATIVES - place
        for request in claim.spec.devices.requests
        for place, alternative in enumerate(request.first_available)
        if f"{request.name}/{alternative.name}" in granted
    )


class Judge:
    """Judges nodes for one pod; `timer` gives each search its own limit."""

    def __init__(
        self, state: ClaimState, now: datetime, binding_timeout: timedelta, timer: Callable[[], Callable[[], bool]]
    ) -> None:
        self.state = state
        self.now = now
        self.binding_timeout = binding_timeout
        self.timer = timer
        self.unallocated = state.to_allocate(Verdict())

    def judge(self, node: Node) -> Verdict:
        verdict = self.state.verdicts.get(node.name)
        if verdict is None:
            verdict = self.state.verdicts[node.name] = self._judge(node)
        return verdict

    def _judge(self, node: Node) -> Verdict:
        state = self.state
        verdict = self._special(node) if state.has_special else Verdict()
        if verdict.refusal is not None or (verdict.special is None and not state.own_claims):
            return verdict
        unavailable = self._unavailable(node)
        if state.allocator is not None:
            self._allocate(state.allocator, node, verdict)
        if verdict.refusal is None and unavailable:
            state.unavailable.update(unavailable)
            verdict.refusal, verdict.allocation = unresolvable(UNAVAILABLE), None
        return verdict

    def _special(self, node: Node) -> Verdict:
        """What the node leaves to devices of the pod's extended resources. What it has itself is not our business."""
        state, claim = self.state, self.state.special
        assert claim is not None
        if claim.spec.devices.requests:
            return Verdict(unresolvable(STALE_SPECIAL_CLAIM))
        offered = node.status.allocatable
        ours = []
        for name in state.resources:
            if name in state.classes and not parse_quantity(offered.get(name, 0)).value():
                ours.append(name)
            elif name not in offered:
                return Verdict(unresolvable(NO_RESOURCE))
        if claim.status.allocation is not None or not (ours or state.own_claims):
            return Verdict()
        assert state.pod is not None
        need = extended.need(state.pod, ours, state.classes)
        return Verdict(special=extended.with_requests(claim, need.requests), mappings=need.mappings)

    def _unavailable(self, node: Node) -> list[int]:
        """The allocated claims that cannot be used from the node."""
        return [
            number
            for number, claim in enumerate(self.state.claims)
            if claim.status.allocation is not None and not self._usable(number, claim, node)
        ]

    def _usable(self, number: int, claim: ResourceClaim, node: Node) -> bool:
        where = self.state.where.get(number)
        if where is not None and not where.matches(node.labels, node.name):
            return False
        return can_wait_for(claim, self.now, self.binding_timeout)

    def _allocate(self, allocator: Allocator, node: Node, verdict: Verdict) -> None:
        claims = self.unallocated if verdict.special is None else self.state.to_allocate(verdict)
        try:
            outcome = allocator.allocate(node, claims, timer=self.timer)
        except DeviceError as fault:
            verdict.refusal = error(str(fault))
            return
        if isinstance(outcome, Refusal):
            verdict.refusal = unresolvable(outcome.reason)
        else:
            verdict.allocation = outcome
