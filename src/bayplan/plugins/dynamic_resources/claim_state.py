"""What DynamicResources knows of one pod during one attempt, and its verdict on one node.

Made by PreFilter, filled by Filter, read by everything after it. The verdict on a node depends on nothing that other
pods on the node could change, so it is found once a node and attempt, also where preemption asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from bayplan.codec.quantity import parse_quantity
from bayplan.devices import extended_resources
from bayplan.devices.allocator import Allocation, Allocator, NotAllocatable
from bayplan.devices.claims import may_become_ready
from bayplan.devices.errors import DeviceError
from bayplan.framework.api.cycle import StateKey
from bayplan.framework.api.status import Status, error, unresolvable
from bayplan.objects.core import ContainerExtendedResourceRequest, Node, Pod
from bayplan.objects.resource import AllocationResult, DeviceClass, ResourceClaim
from bayplan.objects.selectors.node_selectors import NodeSelectorMatcher

STALE_SPECIAL_CLAIM = "cannot schedule extended resource claim"
NO_RESOURCE = "cannot fit resource"
UNAVAILABLE = "resourceclaim not available on the node"

MAX_ALTERNATIVES = 8  # of a request; the first one chosen is worth this much, the last 1


@dataclass(slots=True)
class NodeClaimAllocation:
    """What one node can do for the pod."""

    rejection: Status | None = None
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
    node_allocations: dict[str, NodeClaimAllocation] = field(default_factory=dict)  # by node name
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

    def to_allocate(self, verdict: NodeClaimAllocation) -> list[ResourceClaim]:
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
        verdict = self.node_allocations.get(node_name)
        if verdict is None or verdict.allocation is None:
            return 0
        score = allocated = 0
        for claim in self.claims:
            if claim.status.allocation is not None:
                granted = frozenset(result.request for result in claim.status.allocation.devices.results)
            else:
                granted = verdict.allocation.allocated_request_names(allocated)
                allocated += 1
            score += _alternative_score(claim, granted)
        return score


STATE: StateKey[ClaimState] = StateKey("DynamicResources")


def _alternative_score(claim: ResourceClaim, granted: frozenset[str]) -> int:
    """The earlier an alternative is in its list, the more it is worth."""
    return sum(
        MAX_ALTERNATIVES - place
        for request in claim.spec.devices.requests
        for place, alternative in enumerate(request.first_available)
        if f"{request.name}/{alternative.name}" in granted
    )


class NodeAllocator:
    """Judges nodes for one pod; `timer` gives each search its own limit."""

    def __init__(
        self, state: ClaimState, now: datetime, binding_timeout: timedelta, timer: Callable[[], Callable[[], bool]]
    ) -> None:
        self.state = state
        self.now = now
        self.binding_timeout = binding_timeout
        self.timer = timer
        self.unallocated = state.to_allocate(NodeClaimAllocation())

    def allocate(self, node: Node) -> NodeClaimAllocation:
        verdict = self.state.node_allocations.get(node.name)
        if verdict is None:
            verdict = self.state.node_allocations[node.name] = self._allocate_on_node(node)
        return verdict

    def _allocate_on_node(self, node: Node) -> NodeClaimAllocation:
        state = self.state
        verdict = self._special(node) if state.has_special else NodeClaimAllocation()
        if verdict.rejection is not None or (verdict.special is None and not state.own_claims):
            return verdict
        unavailable = self._unavailable(node)
        if state.allocator is not None:
            self._allocate(state.allocator, node, verdict)
        if verdict.rejection is None and unavailable:
            state.unavailable.update(unavailable)
            verdict.rejection, verdict.allocation = unresolvable(UNAVAILABLE), None
        return verdict

    def _special(self, node: Node) -> NodeClaimAllocation:
        """What the node leaves to devices of the pod's extended resources. What it has itself is not our business."""
        state, claim = self.state, self.state.special
        assert claim is not None
        if claim.spec.devices.requests:
            return NodeClaimAllocation(unresolvable(STALE_SPECIAL_CLAIM))
        offered = node.status.allocatable
        ours = []
        for name in state.resources:
            if name in state.classes and not parse_quantity(offered.get(name, 0)).value():
                ours.append(name)
            elif name not in offered:
                return NodeClaimAllocation(unresolvable(NO_RESOURCE))
        if claim.status.allocation is not None or not (ours or state.own_claims):
            return NodeClaimAllocation()
        assert state.pod is not None
        need = extended_resources.special_claim_requests(state.pod, ours, state.classes)
        return NodeClaimAllocation(
            special=extended_resources.with_requests(claim, need.requests), mappings=need.mappings
        )

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
        return may_become_ready(claim, self.now, self.binding_timeout)

    def _allocate(self, allocator: Allocator, node: Node, verdict: NodeClaimAllocation) -> None:
        claims = self.unallocated if verdict.special is None else self.state.to_allocate(verdict)
        try:
            outcome = allocator.allocate(node, claims, timer=self.timer)
        except DeviceError as fault:
            verdict.rejection = error(str(fault))
            return
        if isinstance(outcome, NotAllocatable):
            verdict.rejection = unresolvable(outcome.reason)
        else:
            verdict.allocation = outcome
