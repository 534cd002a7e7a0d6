"""Allocates devices for the pod's resource claims.

PreFilter collects the claims. Filter searches devices on the remaining rows, because a search cannot run for all rows
at once. Score prefers nodes with earlier alternatives of `firstAvailable`. Reserve holds the devices in memory. PreBind
writes allocations and reservations, and waits until the devices are ready. Pods without claims, and without extended
resources of a DeviceClass, are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from datetime import timedelta

import numpy as np

from bayplan.devices import claim_intents, extended_resources
from bayplan.devices.allocator import AllocationMemo, Allocator
from bayplan.devices.assumptions import DeviceAssumptions
from bayplan.devices.claims import (
    ClaimProblem,
    all_ready,
    drivers_with_binding_conditions,
    entries_by_claim,
    has_binding_conditions,
    is_reserved_for,
    is_unused_by_others,
    pod_claims,
)
from bayplan.devices.classes import ExtendedResourceClasses
from bayplan.devices.errors import DeviceBindingTimeout
from bayplan.devices.pools import PoolIndex
from bayplan.devices.selectors import DeviceSelectors
from bayplan.errors import BayplanError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.events import (
    ActionType,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
    no_hint_key,
    queue_hint_if,
)
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import PostFilterResult, PreBindPreFlightResult, Rejection
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.framework.api.status import SKIP, Status, error, unresolvable, unschedulable
from bayplan.framework.runtime.bind_request_mutation import add_request_fields
from bayplan.framework.runtime.scoring import default_normalize
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import ClaimAllocation
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import DeviceClass, DeviceRequest, ResourceClaim, ResourceSlice
from bayplan.objects.selectors.label_selectors import SelectorError
from bayplan.objects.selectors.node_selectors import compile_node_selector
from bayplan.plugins.dynamic_resources import args as dynamic_resources_args
from bayplan.plugins.dynamic_resources.args import DynamicResourcesArgs
from bayplan.plugins.dynamic_resources.claim_state import STATE, ClaimState, NodeAllocator
from bayplan.snapshot import IntVector, NodeTable

NOTHING_TO_DEALLOCATE = "no new claims to deallocate"
DEALLOCATED = "deallocation of ResourceClaim completed"
DELETED = "deletion of ResourceClaim completed"
STILL_UNSCHEDULABLE = "still not schedulable"
_SWEEP_THRESHOLD = 1024
NO_STATE = "not found"


def has_no_claims(pod: Pod) -> bool | None:
    """Return True for pods without claims, which are all alike; None for any other pod."""
    return None if pod.spec.resource_claims else True


class DynamicResources:
    """Allocates devices for resource claims."""

    name = "DynamicResources"
    traits = PluginTraits(
        depends_on=row_local, looks_at_pods=False, loops_over_rows=True, reserves_only_filtered_pods=True
    )
    ARGS = dynamic_resources_args.ARGS

    def __init__(self, args: DynamicResourcesArgs, handle: Handle) -> None:
        args = dynamic_resources_args.apply_defaults(args)
        assert args.filter_timeout is not None
        assert args.binding_timeout is not None
        self._filter_timeout_s = args.filter_timeout.seconds
        self._binding_timeout_s = args.binding_timeout.seconds
        self._handle = handle
        self._selectors = DeviceSelectors()
        self._classes = ExtendedResourceClasses(handle.catalog)
        self._allocation_memo = AllocationMemo()
        # uids of claims whose reservation was removed and not written again
        self._released_reservations: set[str] = set()
        self._index = PoolIndex(())
        self._index_revision = -1
        self.events_to_register = (
            ClusterEventWithHint(
                EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_LABEL | ActionType.UPDATE_NODE_ALLOCATABLE
            ),
            ClusterEventWithHint(
                EventResource.RESOURCE_CLAIM,
                ActionType.ADD | ActionType.UPDATE,
                self._hint_on_claim_change,
                hint_key=has_no_claims,
            ),
            ClusterEventWithHint(
                EventResource.POD, ActionType.UPDATE_POD_GENERATED_CLAIM, self._hint_on_pod_change, hint_key=no_hint_key
            ),
            ClusterEventWithHint(EventResource.DEVICE_CLASS, ActionType.ADD | ActionType.UPDATE),
            ClusterEventWithHint(EventResource.RESOURCE_SLICE, ActionType.ADD | ActionType.UPDATE),
        )

    @classmethod
    def factory(cls, args: DynamicResourcesArgs, handle: Handle) -> DynamicResources:
        return cls(args, handle)

    @property
    def _devices(self) -> DeviceAssumptions:
        devices = self._handle.devices
        devices.sync(self._handle.catalog)
        return devices

    def signature(self, pod: Pod) -> Hashable | None:
        """Pods that request devices share no answers: each allocation changes the next one."""
        if pod.spec.resource_claims or extended_resources.uses_classes(
            extended_resources.extended_requests(pod), self._classes.get()
        ):
            return None
        return ()

    def _hint_on_claim_change(self, pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
        """A claim was deallocated, or a claim of the pod was added or changed. Skip while a claim is missing."""
        assert isinstance(new, ResourceClaim)
        claims = pod_claims(pod, self._devices.claims)
        if isinstance(claims, ClaimProblem):
            return QueueingHint.SKIP
        before = old if isinstance(old, ResourceClaim) else None
        if before is not None and before.status.allocation is not None and new.status.allocation is None:
            return QueueingHint.QUEUE
        is_used = any(claim.metadata.uid == new.metadata.uid for claim in claims)
        return queue_hint_if(is_used and (before is None or before.status != new.status))

    def _hint_on_pod_change(self, pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG002
        """The pod got the names of its generated claims."""
        assert isinstance(new, Pod)
        is_own = new.uid == pod.uid
        return queue_hint_if(is_own and not isinstance(pod_claims(new, self._devices.claims), ClaimProblem))

    # PreEnqueue and PreFilter

    def pre_enqueue(self, pod: Pod) -> Status | None:
        if not pod.spec.resource_claims:
            return None
        claims = pod_claims(pod, self._devices.claims)
        return unresolvable(claims.text) if isinstance(claims, ClaimProblem) else None

    def pre_filter(self, cycle: Cycle) -> Status | None:
        cycle.put(STATE, ClaimState())  # without claims until PreFilter succeeds: a later step may reject the pod
        pod, devices = cycle.pod, self._devices
        own_claims = pod_claims(pod, devices.claims)
        if isinstance(own_claims, ClaimProblem):
            return unresolvable(own_claims.text)
        state = ClaimState(pod=pod, claims=list(own_claims))
        self._add_special(state, pod)
        if not state.claims:
            return SKIP
        for number, claim in enumerate(state.claims):
            rejection = self._check(state, number, claim)
            if rejection is not None:
                return rejection
        if state.unallocated:
            catalog = self._handle.catalog
            self._allocation_memo.begin(catalog.revision(DeviceClass))
            state.allocator = Allocator(
                self._pools(), catalog.device_classes, devices.in_use, self._selectors, self._allocation_memo
            )
        cycle.put(STATE, state)
        return None

    def _add_special(self, state: ClaimState, pod: Pod) -> None:
        """Add the special claim of a pod that requests devices through extended resources."""
        requests, classes = extended_resources.extended_requests(pod), self._classes.get()
        if requests and extended_resources.uses_classes(requests, classes):
            claim = extended_resources.find_special_claim(pod, self._devices.claims.values())
            state.claims.append(claim or extended_resources.new_special_claim(pod))
            state.has_special, state.resources, state.classes = True, requests, classes

    def _check(self, state: ClaimState, number: int, claim: ResourceClaim) -> Status | None:
        allocation = claim.status.allocation
        if allocation is not None:
            if allocation.node_selector is not None:
                try:
                    state.node_selectors[number] = compile_node_selector(allocation.node_selector).check()
                except SelectorError as fault:
                    return error(fault.reason)
            return None
        if self._handle.devices.pending(claim.metadata.uid) is not None:
            return unresolvable(f"resource claim {claim.key} is in the process of being allocated")
        if state.is_special(number):
            return None  # its requests depend on the node
        checks = (self._check_request(claim, request) for request in claim.spec.devices.requests)
        return next((status for status in checks if status is not None), None)

    def _check_request(self, claim: ResourceClaim, request: DeviceRequest) -> Status | None:
        """Check that every device class of a request exists."""
        if request.exactly is not None:
            requested_classes = [(request.name, request.exactly.device_class_name)]
        else:
            requested_classes = [
                (f"{request.name}/{sub.name}", sub.device_class_name) for sub in request.first_available
            ]
        if not requested_classes:
            return unresolvable(f"resource claim {claim.key}, request {request.name}: unknown request type")
        for name, class_name in requested_classes:
            if not class_name:
                return error(f"request {name}: unsupported request type")
            if class_name not in self._handle.catalog.device_classes:
                return unresolvable(f"request {name}: device class {class_name} does not exist")
        return None

    def _pools(self) -> PoolIndex:
        """Return the index of all slices, rebuilt after a change."""
        catalog = self._handle.catalog
        revision = catalog.revision(ResourceSlice)
        if revision != self._index_revision:
            self._index = PoolIndex(catalog.resource_slices.values(), self._index)
            self._index_revision = revision
        return self._index

    # Filter and Score

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        state = cycle.find(STATE)
        if state is None:
            yield Rejection.from_error(nodes, NO_STATE)
            return
        if not state.claims:
            return
        allocator = NodeAllocator(
            state, self._handle.clock.now(), timedelta(seconds=self._binding_timeout_s), self._timer
        )
        rejected: dict[Status, list[int]] = {}
        for position, node in enumerate(nodes):
            status = allocator.allocate(node.node).rejection
            if status is not None:
                rejected.setdefault(status, []).append(position)
        for status, positions in rejected.items():
            mask = np.zeros(len(nodes), dtype=np.bool_)
            mask[positions] = True
            yield Rejection(mask, status.message, code=status.code)

    def _timer(self) -> Callable[[], bool]:
        if not self._filter_timeout_s:
            return lambda: False
        now = self._handle.clock.monotonic_s
        end = now() + self._filter_timeout_s
        return lambda: now() > end

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        state = cycle.find(STATE)
        if state is None:
            raise PluginFault(self.name, "score", NO_STATE)
        if not state.ranks_nodes:
            return np.zeros(len(nodes), dtype=np.int64)
        return np.fromiter((state.score(name) for name in nodes.names), dtype=np.int64, count=len(nodes))

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector:  # noqa: ARG002
        return default_normalize(scores)

    # PostFilter

    def post_filter(self, cycle: Cycle, diagnosis: Diagnosis) -> PostFilterResult | Status:  # noqa: ARG002
        """Deallocate one claim that no node can use, if no other pod uses it."""
        state = cycle.find(STATE)
        if state is None:
            # an earlier PreFilter rejected the pod before this plugin ran; ends PostFilter, as upstream
            return error(NO_STATE)
        if not state.claims:
            return unschedulable(NOTHING_TO_DEALLOCATE)
        for number in sorted(state.unavailable):
            claim = state.claims[number]
            if not state.is_special(number) and is_unused_by_others(claim, cycle.pod):
                return PostFilterResult(unschedulable(DEALLOCATED), writes=(claim_intents.DeallocateClaim(claim),))
        if state.special is not None and not extended_resources.is_in_memory(state.special):
            return PostFilterResult(unschedulable(DELETED), writes=(claim_intents.DeleteClaim(state.special),))
        return unschedulable(STILL_UNSCHEDULABLE)

    # Reserve

    def reserve(self, cycle: Cycle, node_name: str) -> Status | None:
        state = cycle.find(STATE)
        if state is None:
            return error(NO_STATE)
        node_allocation = state.node_allocations.get(node_name)
        numbers = state.unallocated
        self._hold_allocated(state, cycle.pod)
        if not numbers:
            _add_request_fields(cycle, state)
            return None
        if node_allocation is None or node_allocation.allocation is None:
            if all(state.is_special(number) for number in numbers):
                return None  # the node itself has the extended resources
            return error("claim allocation not found for node")
        claims = state.to_allocate(node_allocation)
        results = node_allocation.allocation.results(claims)
        for number, claim, result in zip(numbers, claims, results, strict=True):
            if state.is_special(number) and not claim.spec.devices.requests:
                continue  # the node itself has the extended resources; nothing to write
            state.granted[number] = result
            state.reserved[number] = claim
            self._handle.devices.begin(claim, result)
        _add_request_fields(cycle, state)
        return None

    def _hold_allocated(self, state: ClaimState, pod: Pod) -> None:
        """Hold the devices of claims that are allocated already. The claim may be deallocated before it is reserved for
        the pod, and a BindRequest names its devices: until then no other claim may get them."""
        for claim in state.claims:
            if claim.status.allocation is not None:
                self._handle.devices.reserve_for_request(claim.key, pod.uid, claim.status.allocation)
                state.promised.append(claim.key)

    def _release_allocated(self, state: ClaimState, pod: Pod) -> None:
        while state.promised:
            self._handle.devices.release(state.promised.pop(), pod.uid)

    def unreserve(self, cycle: Cycle, node_name: str) -> None:  # noqa: ARG002
        state = cycle.find(STATE)
        if state is None:
            return
        devices, pod = self._handle.devices, cycle.pod
        self._release_allocated(state, pod)
        for number, claim in enumerate(state.claims):
            reserved_claim = state.reserved.get(number)
            if reserved_claim is not None and devices.finish(reserved_claim.metadata.uid):
                devices.restore(claim.key)
            if state.is_special(number):
                if not extended_resources.is_in_memory(claim):
                    devices.restore(claim.key)
                    self._release(claim_intents.DeleteClaim(claim))
            elif claim.status.allocation is not None and is_reserved_for(claim, pod):
                self._release(claim_intents.UnreserveClaim(claim, pod))

    def _release(self, intent: claim_intents.UnreserveClaim | claim_intents.DeleteClaim) -> None:
        """Remove a reservation. The next attempt writes it again, even if the claim still shows it."""
        if len(self._released_reservations) > _SWEEP_THRESHOLD:
            self._released_reservations &= {claim.metadata.uid for claim in self._devices.claims.values()}
        self._released_reservations.add(intent.claim.metadata.uid)
        self._handle.writes.submit(intent)

    # PreBind

    def pre_bind_preflight(self, cycle: Cycle, node_name: str) -> PreBindPreFlightResult | Status:  # noqa: ARG002
        state = cycle.find(STATE)
        if state is None:
            return error(NO_STATE)
        return PreBindPreFlightResult(allow_parallel=True) if state.claims else SKIP

    async def pre_bind(self, cycle: Cycle, node_name: str) -> Status | None:
        state = cycle.find(STATE)
        if state is None:
            return error(NO_STATE)
        try:
            for number, claim in enumerate(state.claims):
                if not is_reserved_for(claim, cycle.pod) or claim.metadata.uid in self._released_reservations:
                    await self._bind(state, number, cycle.pod, node_name)
            await self._wait_until_ready(state, cycle.pod, node_name)
        except BayplanError as fault:
            return error(str(fault))
        finally:
            self._release_allocated(state, cycle.pod)
        return None

    async def _bind(self, state: ClaimState, number: int, pod: Pod, node_name: str) -> None:
        """Write the reservation, and the allocation if there is one.

        The in-memory allocation ends then in any case: either the written claim holds the devices, or nothing does.
        """
        claim, allocation, reserved_claim = state.claims[number], state.granted.get(number), state.reserved.get(number)
        if state.is_special(number) and allocation is None and not claim.spec.devices.requests:
            return
        perform = self._handle.writes.perform
        try:
            if reserved_claim is not None and extended_resources.is_in_memory(reserved_claim):
                claim = await perform(claim_intents.CreateSpecialClaim(reserved_claim, pod))
                state.claims[number] = claim
            now = self._handle.clock.now()
            claim = await perform(claim_intents.ReserveClaim(claim, pod, now, allocation))
            state.claims[number] = claim
            self._released_reservations.discard(claim.metadata.uid)
            self._handle.devices.assume(claim)
        finally:
            if reserved_claim is not None:
                self._handle.devices.finish(reserved_claim.metadata.uid)
        if state.is_special(number):
            mappings = state.node_allocations[node_name].mappings
            await perform(claim_intents.RecordSpecialClaim(pod, claim.name, mappings))

    async def _wait_until_ready(self, state: ClaimState, pod: Pod, node_name: str) -> None:
        if not any(map(has_binding_conditions, state.claims)):
            return
        keys = tuple(claim.key for claim in state.claims if not extended_resources.is_in_memory(claim))
        timeout = timedelta(seconds=self._binding_timeout_s)

        def done() -> bool:
            return all_ready(keys, self._devices.claims, self._handle.clock.now(), timeout)

        note = f"waiting for binding conditions for device on node {node_name}"
        try:
            drivers = tuple(driver for claim in state.claims for driver in drivers_with_binding_conditions(claim))
            waiting = claim_intents.WaitForDevices(pod, note, done, self._binding_timeout_s, drivers=drivers)
            await self._handle.writes.perform(waiting)
        except TimeoutError:
            raise DeviceBindingTimeout from None


def _add_request_fields(cycle: Cycle, state: ClaimState) -> None:
    """Add the allocations that the binder must write, unless PreBind writes them."""
    entries = entries_by_claim(cycle.pod)
    allocations = tuple(
        ClaimAllocation(entries[claim.name], state.granted.get(number) or claim.status.allocation)
        for number, claim in enumerate(state.claims)
        if claim.name in entries and not state.is_special(number)
    )
    if allocations:
        add_request_fields(cycle, resource_claim_allocations=allocations)
