"""State of DynamicResources for one pod in one attempt, and the device allocation on each node.

PreFilter creates it, Filter fills it, and all later points read it. The result for a node does not depend on other pods
of the node, so it is computed once for each node and attempt, also for preemption.
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

MAX_ALTERNATIVES = 8  # of a request; the first alternative scores this much, the last one 1


@dataclass(slots=True)
class NodeClaimAllocation:
    rejection: Status | None = None
    allocation: Allocation | None = None  # None if no claim had to be allocated
    special: ResourceClaim | None = None  # the special claim as this node needs it
    mappings: tuple[ContainerExtendedResourceRequest, ...] = ()


@dataclass(slots=True)
class ClaimState:
    """The pod's claims in order; the special claim for extended resources is last."""

    pod: Pod | None = None
    claims: list[ResourceClaim] = field(default_factory=list)
    has_special: bool = False
    resources: Mapping[str, int] = field(default_factory=dict)  # extended resources that the pod requests
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)  # device classes of extended resources
    # nodes on which an allocated claim is usable
    node_selectors: dict[int, NodeSelectorMatcher] = field(default_factory=dict)
    allocator: Allocator | None = None  # None if every claim is allocated
    unavailable: set[int] = field(default_factory=set)  # allocated claims that are not usable on some node
    node_allocations: dict[str, NodeClaimAllocation] = field(default_factory=dict)  # by node name
    granted: dict[int, AllocationResult] = field(default_factory=dict)  # set by Reserve, for claims to be written
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

    def to_allocate(self, node_allocation: NodeClaimAllocation) -> list[ResourceClaim]:
        """Return the claims that a node's allocation covers, in order."""
        claims = [claim for claim in self.claims if claim.status.allocation is None]
        if node_allocation.special is not None:
            claims[-1] = node_allocation.special
        return claims

    @property
    def ranks_nodes(self) -> bool:
        """Whether a claim has alternatives, so that scores of nodes can differ."""
        return any(request.first_available for claim in self.claims for request in claim.spec.devices.requests)

    def score(self, node_name: str) -> int:
        """Score the alternatives that the node's allocation uses; 0 if this attempt allocates nothing."""
        node_allocation = self.node_allocations.get(node_name)
        if node_allocation is None or node_allocation.allocation is None:
            return 0
        score = allocated = 0
        for claim in self.claims:
            if claim.status.allocation is not None:
                granted = frozenset(result.request for result in claim.status.allocation.devices.results)
            else:
                granted = node_allocation.allocation.allocated_request_names(allocated)
                allocated += 1
            score += _alternative_score(claim, granted)
        return score


STATE: StateKey[ClaimState] = StateKey("DynamicResources")


def _alternative_score(claim: ResourceClaim, granted: frozenset[str]) -> int:
    """Score the allocated alternatives. Earlier alternatives in a list score more."""
    return sum(
        MAX_ALTERNATIVES - position
        for request in claim.spec.devices.requests
        for position, alternative in enumerate(request.first_available)
        if f"{request.name}/{alternative.name}" in granted
    )


class NodeAllocator:
    """Allocates devices on nodes for one pod. `timer` returns the time limit of each search."""

    def __init__(
        self, state: ClaimState, now: datetime, binding_timeout: timedelta, timer: Callable[[], Callable[[], bool]]
    ) -> None:
        self.state = state
        self.now = now
        self.binding_timeout = binding_timeout
        self.timer = timer
        self.unallocated = state.to_allocate(NodeClaimAllocation())

    def allocate(self, node: Node) -> NodeClaimAllocation:
        node_allocation = self.state.node_allocations.get(node.name)
        if node_allocation is None:
            node_allocation = self.state.node_allocations[node.name] = self._allocate_on_node(node)
        return node_allocation

    def _allocate_on_node(self, node: Node) -> NodeClaimAllocation:
        state = self.state
        node_allocation = self._allocate_special_claim(node) if state.has_special else NodeClaimAllocation()
        if node_allocation.rejection is not None or (node_allocation.special is None and not state.own_claims):
            return node_allocation
        unavailable = self._unavailable_claims(node)
        if state.allocator is not None:
            self._allocate(state.allocator, node, node_allocation)
        if node_allocation.rejection is None and unavailable:
            state.unavailable.update(unavailable)
            node_allocation.rejection, node_allocation.allocation = unresolvable(UNAVAILABLE), None
        return node_allocation

    def _allocate_special_claim(self, node: Node) -> NodeClaimAllocation:
        """Build the special claim for the extended resources that the node itself does not have."""
        state, claim = self.state, self.state.special
        assert claim is not None
        if claim.spec.devices.requests:
            return NodeClaimAllocation(unresolvable(STALE_SPECIAL_CLAIM))
        allocatable = node.status.allocatable
        resources_from_devices = []
        for name in state.resources:
            if name in state.classes and not parse_quantity(allocatable.get(name, 0)).value():
                resources_from_devices.append(name)
            elif name not in allocatable:
                return NodeClaimAllocation(unresolvable(NO_RESOURCE))
        if claim.status.allocation is not None or not (resources_from_devices or state.own_claims):
            return NodeClaimAllocation()
        assert state.pod is not None
        special_requests = extended_resources.special_claim_requests(state.pod, resources_from_devices, state.classes)
        return NodeClaimAllocation(
            special=extended_resources.with_requests(claim, special_requests.requests),
            mappings=special_requests.mappings,
        )

    def _unavailable_claims(self, node: Node) -> list[int]:
        """Return the numbers of the allocated claims that are not usable on the node."""
        return [
            number
            for number, claim in enumerate(self.state.claims)
            if claim.status.allocation is not None and not self._is_usable(number, claim, node)
        ]

    def _is_usable(self, number: int, claim: ResourceClaim, node: Node) -> bool:
        node_selector = self.state.node_selectors.get(number)
        if node_selector is not None and not node_selector.matches(node.labels, node.name):
            return False
        return may_become_ready(claim, self.now, self.binding_timeout)

    def _allocate(self, allocator: Allocator, node: Node, node_allocation: NodeClaimAllocation) -> None:
        claims = self.unallocated if node_allocation.special is None else self.state.to_allocate(node_allocation)
        try:
            outcome = allocator.allocate(node, claims, timer=self.timer)
        except DeviceError as fault:
            node_allocation.rejection = error(str(fault))
            return
        if isinstance(outcome, NotAllocatable):
            node_allocation.rejection = unresolvable(outcome.reason)
        else:
            node_allocation.allocation = outcome
