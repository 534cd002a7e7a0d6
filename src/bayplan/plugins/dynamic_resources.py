"""Are there devices for the pod's claims on this node, and which ones does it get?

PreFilter collects the claims; Filter searches devices, on the rows that are left, because a search cannot be said of
all rows at once; Score prefers nodes where earlier alternatives of `firstAvailable` were granted; Reserve holds the
devices in memory; PreBind writes allocations and reservations and waits for devices that must be made ready.
Pods without claims and without extended resources that a DeviceClass stands behind are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from datetime import timedelta

import numpy as np

from bayplan.devices import extended, intents
from bayplan.devices.allocator import AllocationMemo, Allocator
from bayplan.devices.claims import (
    ClaimProblem,
    all_ready,
    awaited_drivers,
    entries_by_claim,
    has_binding_conditions,
    is_for_nobody_else,
    is_reserved_for,
    pod_claims,
)
from bayplan.devices.classes import ResourceClasses
from bayplan.devices.faults import DeviceBindingTimeout
from bayplan.devices.pools import PoolIndex
from bayplan.devices.selectors import DeviceSelectors
from bayplan.devices.state import DeviceAssumptions
from bayplan.errors import BayplanError
from bayplan.framework.bind_requests import name_in_request
from bayplan.framework.boundary import PluginFault
from bayplan.framework.cycle import Cycle
from bayplan.framework.diagnosis import Diagnosis
from bayplan.framework.events import Action, Cure, Hint, Resource, nothing, queue_if
from bayplan.framework.handle import Handle
from bayplan.framework.plugin import PostFilterAnswer, Preflight, Rejection, row_alone
from bayplan.framework.scoring import default_normalize
from bayplan.framework.status import SKIP, Status, error, unresolvable, unschedulable
from bayplan.objects.bind_requests import ClaimAllocation
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.node_selectors import compile_node_selector
from bayplan.objects.resource import DeviceClass, DeviceRequest, ResourceClaim, ResourceSlice
from bayplan.objects.selectors import SelectorError
from bayplan.plugins import dynamic_resources_args
from bayplan.plugins.dynamic_resources_args import DynamicResourcesArgs
from bayplan.plugins.dynamic_resources_state import STATE, ClaimState, Judge
from bayplan.snapshot import IntVector, NodeTable

NOTHING_TO_DEALLOCATE = "no new claims to deallocate"
DEALLOCATED = "deallocation of ResourceClaim completed"
DELETED = "deletion of ResourceClaim completed"
NO_CURE = "still not schedulable"
_WORTH_SWEEPING = 1024
NO_STATE = "not found"


def lacks_claims(pod: Pod) -> bool | None:
    """Pods without claims are all alike; one that has some is looked at as a whole."""
    return None if pod.spec.resource_claims else True


class DynamicResources:
    """Gives devices to claims."""

    name = "DynamicResources"
    looks_at_pods = False
    depends_on = row_alone
    ARGS = dynamic_resources_args.ARGS
    per_row = True
    reserves_what_it_filters = True

    def __init__(self, args: DynamicResourcesArgs, handle: Handle) -> None:
        args = dynamic_resources_args.apply_defaults(args)
        assert args.filter_timeout is not None
        assert args.binding_timeout is not None
        self._filter_timeout_s = args.filter_timeout.seconds
        self._binding_timeout_s = args.binding_timeout.seconds
        self._handle = handle
        self._selectors = DeviceSelectors()
        self._classes = ResourceClasses(handle.catalog)
        self._memo = AllocationMemo()
        self._withdrawn: set[str] = set()  # uids of claims whose reservation was taken back and not written again
        self._index = PoolIndex(())
        self._index_revision = -1
        self.cured_by = (
            Cure(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_ALLOCATABLE),
            Cure(Resource.RESOURCE_CLAIM, Action.ADD | Action.UPDATE, self._claim_changed, reads=lacks_claims),
            Cure(Resource.POD, Action.UPDATE_POD_GENERATED_CLAIM, self._pod_changed, reads=nothing),
            Cure(Resource.DEVICE_CLASS, Action.ADD | Action.UPDATE),
            Cure(Resource.RESOURCE_SLICE, Action.ADD | Action.UPDATE),
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
        """Pods that want devices never share answers: each takes some away from the next."""
        if pod.spec.resource_claims or extended.uses_classes(extended.extended_requests(pod), self._classes.get()):
            return None
        return ()

    # hints

    def _claim_changed(self, pod: Pod, old: KubeObject | None, new: KubeObject | None) -> Hint:
        """A claim was deallocated, or one of the pod's own is there or has changed; not while the pod lacks claims."""
        assert isinstance(new, ResourceClaim)
        claims = pod_claims(pod, self._devices.claims)
        if isinstance(claims, ClaimProblem):
            return Hint.SKIP
        before = old if isinstance(old, ResourceClaim) else None
        if before is not None and before.status.allocation is not None and new.status.allocation is None:
            return Hint.QUEUE
        uses = any(claim.metadata.uid == new.metadata.uid for claim in claims)
        return queue_if(uses and (before is None or before.status != new.status))

    def _pod_changed(self, pod: Pod, old: KubeObject | None, new: KubeObject | None) -> Hint:  # noqa: ARG002
        """The pod was told the names of its generated claims."""
        assert isinstance(new, Pod)
        own = new.uid == pod.uid
        return queue_if(own and not isinstance(pod_claims(new, self._devices.claims), ClaimProblem))

    # PreEnqueue and PreFilter

    def pre_enqueue(self, pod: Pod) -> Status | None:
        if not pod.spec.resource_claims:
            return None
        claims = pod_claims(pod, self._devices.claims)
        return unresolvable(claims.text) if isinstance(claims, ClaimProblem) else None

    def pre_filter(self, cycle: Cycle) -> Status | None:
        cycle.put(STATE, ClaimState())  # without claims until we know better: what follows may refuse the pod
        pod, devices = cycle.pod, self._devices
        own = pod_claims(pod, devices.claims)
        if isinstance(own, ClaimProblem):
            return unresolvable(own.text)
        state = ClaimState(pod=pod, claims=list(own))
        self._add_special(state, pod)
        if not state.claims:
            return SKIP
        for number, claim in enumerate(state.claims):
            refused = self._check(state, number, claim)
            if refused is not None:
                return refused
        if state.unallocated:
            catalog = self._handle.catalog
            self._memo.begin(catalog.revision(DeviceClass))
            state.allocator = Allocator(
                self._pools(), catalog.device_classes, devices.in_use, self._selectors, self._memo
            )
        cycle.put(STATE, state)
        return None

    def _add_special(self, state: ClaimState, pod: Pod) -> None:
        """One more claim for a pod that asks for devices by way of extended resources."""
        requests, classes = extended.extended_requests(pod), self._classes.get()
        if requests and extended.uses_classes(requests, classes):
            claim = extended.find_special_claim(pod, self._devices.claims.values())
            state.claims.append(claim or extended.new_special_claim(pod))
            state.has_special, state.resources, state.classes = True, requests, classes

    def _check(self, state: ClaimState, number: int, claim: ResourceClaim) -> Status | None:
        allocation = claim.status.allocation
        if allocation is not None:
            if allocation.node_selector is not None:
                try:
                    state.where[number] = compile_node_selector(allocation.node_selector).checked()
                except SelectorError as fault:
                    return error(fault.reason)
            return None
        if self._handle.devices.pending(claim.metadata.uid) is not None:
            return unresolvable(f"resource claim {claim.key} is in the process of being allocated")
        if state.is_special(number):
            return None  # what it asks for depends on the node
        checks = (self._check_request(claim, request) for request in claim.spec.devices.requests)
        return next((status for status in checks if status is not None), None)

    def _check_request(self, claim: ResourceClaim, request: DeviceRequest) -> Status | None:
        """Every class that is mentioned must exist."""
        if request.exactly is not None:
            mentioned = [(request.name, request.exactly.device_class_name)]
        else:
            mentioned = [(f"{request.name}/{sub.name}", sub.device_class_name) for sub in request.first_available]
        if not mentioned:
            return unresolvable(f"resource claim {claim.key}, request {request.name}: unknown request type")
        for name, class_name in mentioned:
            if not class_name:
                return error(f"request {name}: unsupported request type")
            if class_name not in self._handle.catalog.device_classes:
                return unresolvable(f"request {name}: device class {class_name} does not exist")
        return None

    def _pools(self) -> PoolIndex:
        """The index of all slices, made again when one has changed."""
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
            yield Rejection.broken(nodes, NO_STATE)
            return
        if not state.claims:
            return
        judge = Judge(state, self._handle.clock.now(), timedelta(seconds=self._binding_timeout_s), self._timer)
        refused: dict[Status, list[int]] = {}
        for position, node in enumerate(nodes):
            status = judge.judge(node.node).refusal
            if status is not None:
                refused.setdefault(status, []).append(position)
        for status, positions in refused.items():
            mask = np.zeros(len(nodes), dtype=np.bool_)
            mask[positions] = True
            yield Rejection(mask, status.message, code=status.code)

    def _timer(self) -> Callable[[], bool]:
        """A fresh limit for one search."""
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

    def post_filter(self, cycle: Cycle, diagnosis: Diagnosis) -> PostFilterAnswer | Status:  # noqa: ARG002
        """Give up one allocation that no node could use, if nobody else uses it."""
        state = cycle.find(STATE)
        if state is None:
            return error(NO_STATE)  # an earlier PreFilter refused the pod before ours ran; ends PostFilter as upstream
        if not state.claims:
            return unschedulable(NOTHING_TO_DEALLOCATE)
        for number in sorted(state.unavailable):
            claim = state.claims[number]
            if not state.is_special(number) and is_for_nobody_else(claim, cycle.pod):
                return PostFilterAnswer(unschedulable(DEALLOCATED), writes=(intents.DeallocateClaim(claim),))
        if state.special is not None and not extended.is_in_memory(state.special):
            return PostFilterAnswer(unschedulable(DELETED), writes=(intents.DeleteClaim(state.special),))
        return unschedulable(NO_CURE)

    # Reserve

    def reserve(self, cycle: Cycle, node_name: str) -> Status | None:
        state = cycle.find(STATE)
        if state is None:
            return error(NO_STATE)
        verdict = state.verdicts.get(node_name)
        numbers = state.unallocated
        self._hold_allocated(state, cycle.pod)
        if not numbers:
            _hand_over(cycle, state)
            return None
        if verdict is None or verdict.allocation is None:
            if all(state.is_special(number) for number in numbers):
                return None  # the node has the extended resources itself
            return error("claim allocation not found for node")
        claims = state.to_allocate(verdict)
        results = verdict.allocation.results(claims)
        for number, claim, result in zip(numbers, claims, results, strict=True):
            if state.is_special(number) and not claim.spec.devices.requests:
                continue  # the node has the extended resources itself; there is nothing to write
            state.granted[number] = result
            state.reserved[number] = claim
            self._handle.devices.begin(claim, result)
        _hand_over(cycle, state)
        return None

    def _hold_allocated(self, state: ClaimState, pod: Pod) -> None:
        """Hold the devices of claims that are allocated already. The claim may be deallocated before it is reserved for
        the pod, and a BindRequest names its devices: until then no other claim may get them."""
        for claim in state.claims:
            if claim.status.allocation is not None:
                self._handle.devices.promise(claim.key, pod.uid, claim.status.allocation)
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
            held = state.reserved.get(number)
            if held is not None and devices.finish(held.metadata.uid):
                devices.restore(claim.key)
            if state.is_special(number):
                if not extended.is_in_memory(claim):
                    devices.restore(claim.key)
                    self._withdraw(intents.DeleteClaim(claim))
            elif claim.status.allocation is not None and is_reserved_for(claim, pod):
                self._withdraw(intents.UnreserveClaim(claim, pod))

    def _withdraw(self, intent: intents.UnreserveClaim | intents.DeleteClaim) -> None:
        """Take a reservation back. The next attempt writes it again, although the claim may still show it then."""
        if len(self._withdrawn) > _WORTH_SWEEPING:
            self._withdrawn &= {claim.metadata.uid for claim in self._devices.claims.values()}
        self._withdrawn.add(intent.claim.metadata.uid)
        self._handle.writes.submit(intent)

    # PreBind

    def pre_bind_preflight(self, cycle: Cycle, node_name: str) -> Preflight | Status:  # noqa: ARG002
        state = cycle.find(STATE)
        if state is None:
            return error(NO_STATE)
        return Preflight(allow_parallel=True) if state.claims else SKIP

    async def pre_bind(self, cycle: Cycle, node_name: str) -> Status | None:
        state = cycle.find(STATE)
        if state is None:
            return error(NO_STATE)
        try:
            for number, claim in enumerate(state.claims):
                if not is_reserved_for(claim, cycle.pod) or claim.metadata.uid in self._withdrawn:
                    await self._bind(state, number, cycle.pod, node_name)
            await self._until_ready(state, cycle.pod, node_name)
        except BayplanError as fault:
            return error(str(fault))
        finally:
            self._release_allocated(state, cycle.pod)
        return None

    async def _bind(self, state: ClaimState, number: int, pod: Pod, node_name: str) -> None:
        """Write the reservation, and the allocation if there is one. What we hold in memory is over then, either way:
        the written claim holds the devices, or nobody does."""
        claim, allocation, held = state.claims[number], state.granted.get(number), state.reserved.get(number)
        if state.is_special(number) and allocation is None and not claim.spec.devices.requests:
            return
        perform = self._handle.writes.perform
        try:
            if held is not None and extended.is_in_memory(held):
                claim = await perform(intents.CreateSpecialClaim(held, pod))
                state.claims[number] = claim
            now = self._handle.clock.now()
            claim = await perform(intents.ReserveClaim(claim, pod, now, allocation))
            state.claims[number] = claim
            self._withdrawn.discard(claim.metadata.uid)
            self._handle.devices.assume(claim)
        finally:
            if held is not None:
                self._handle.devices.finish(held.metadata.uid)
        if state.is_special(number):
            mappings = state.verdicts[node_name].mappings
            await perform(intents.RecordSpecialClaim(pod, claim.name, mappings))

    async def _until_ready(self, state: ClaimState, pod: Pod, node_name: str) -> None:
        """Wait for devices that must be made ready for this node."""
        if not any(map(has_binding_conditions, state.claims)):
            return
        keys = tuple(claim.key for claim in state.claims if not extended.is_in_memory(claim))
        timeout = timedelta(seconds=self._binding_timeout_s)

        def done() -> bool:
            return all_ready(keys, self._devices.claims, self._handle.clock.now(), timeout)

        note = f"waiting for binding conditions for device on node {node_name}"
        try:
            drivers = tuple(driver for claim in state.claims for driver in awaited_drivers(claim))
            waiting = intents.AwaitDevices(pod, note, done, self._binding_timeout_s, drivers=drivers)
            await self._handle.writes.perform(waiting)
        except TimeoutError:
            raise DeviceBindingTimeout from None


def _hand_over(cycle: Cycle, state: ClaimState) -> None:
    """What the binder is to write to the claims of a pod that it binds, unless PreBind does."""
    entries = entries_by_claim(cycle.pod)
    given = tuple(
        ClaimAllocation(entries[claim.name], state.granted.get(number) or claim.status.allocation)
        for number, claim in enumerate(state.claims)
        if claim.name in entries and not state.is_special(number)
    )
    if given:
        name_in_request(cycle, resource_claim_allocations=given)
