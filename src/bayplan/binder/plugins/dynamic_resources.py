"""Are the pod's devices its own? Writes the allocations that came with the request to the claims, and reserves them.

Which devices was decided by whoever made the request; what is written, and how, is `devices`' business. Claims that
were written before, by an earlier attempt, by the engine itself or by somebody else, are left as they are. Whoever
chose the devices: a pod whose node cannot use them is not bound, nor is one that is to get a device of somebody else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import timedelta

from bayplan.binder.plugin import BinderHandle, BindingState
from bayplan.binder.plugins.patience import Patient
from bayplan.devices import extended, intents
from bayplan.devices.claims import all_ready, has_binding_conditions, is_reserved_for, is_within_reach
from bayplan.devices.faults import ClaimChanged, DeviceBindingTimeout, DeviceTaken, OutOfReach, PodGone
from bayplan.devices.state import DeviceAssumptions
from bayplan.errors import Conflict, NotFound
from bayplan.objects.bind_requests import BindRequest, ClaimAllocation, ExtendedClaimAllocation
from bayplan.objects.core import Node, Pod
from bayplan.objects.resource import AllocationResult, ResourceClaim

_TRIES = 5


class DynamicResources(Patient):
    """Allocates and reserves device claims as a request says."""

    name = "dynamicresources"

    async def pre_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        done: list[ResourceClaim] = []
        for each in _entries(pod, bind_request):
            name = claim_name(pod, each)
            if name is not None:
                claim = await ctx.fresh_claim(pod.namespace, name)
                done.append(await self._reserved(ctx, pod, node, claim, each.allocation))
        special = bind_request.spec.extended_resource_claim_allocation
        if special is not None:
            done.append(await self._special(ctx, pod, node, special))
        await self._until_ready(ctx, pod, node, done)

    async def rollback(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        """Nobody else has to wait for what this pod does not get. A claim that others use keeps its devices."""
        entries = tuple(_entries(pod, bind_request))
        if entries and not pod.spec.resource_claims:
            await self._all_given_back(ctx, pod, entries)
        else:
            for each in entries:
                with contextlib.suppress(ClaimChanged, NotFound):  # there is none to give back
                    if (name := claim_name(pod, each)) is not None:
                        await self._given_back(ctx, pod, await ctx.fresh_claim(pod.namespace, name), each.allocation)
        special = bind_request.spec.extended_resource_claim_allocation
        if special is not None:
            found = await self._special_claim(ctx, pod)
            if found is not None and not await self._stays(ctx, pod, found, special.allocation):
                await ctx.writes.perform(intents.DeleteClaim(found))

    # inside -----------------------------------------------------------------------------------------------------

    async def _reserved(
        self, ctx: BinderHandle, pod: Pod, node: Node, claim: ResourceClaim, brought: AllocationResult | None
    ) -> ResourceClaim:
        """The claim as it then is. Devices that it has are as good as those that the request brings, if they are
        within reach: the pod gets what its claim has, and never both."""
        allocation = claim.status.allocation or brought
        if allocation is None:
            raise ClaimChanged(f"claim {claim.key} has no devices, and the request brings none")
        _demand_reach(claim, allocation, node)
        if is_reserved_for(claim, pod):
            return claim
        if claim.status.allocation is None:
            return await self._allocated(ctx, pod, claim, allocation)
        written = await ctx.writes.perform(intents.ReserveClaim(claim, pod, ctx.clock.now()))
        assert isinstance(written, ResourceClaim)
        if written.status.allocation is not None:
            _demand_reach(written, written.status.allocation, node)  # it may have got others meanwhile
        return written

    async def _allocated(
        self, ctx: BinderHandle, pod: Pod, claim: ResourceClaim, brought: AllocationResult
    ) -> ResourceClaim:
        """The claim with the devices of the request, once it is sure that nobody else has them.

        What another worker is writing at this moment counts, too: both would be told that the devices are free."""
        await self._demand_waiting(ctx, pod)
        devices = ctx.cache.devices
        devices.sync(ctx.cache.catalog)
        await self._demand_free(ctx, claim, brought)
        devices.begin(claim, brought)
        try:
            written = await ctx.writes.perform(intents.ReserveClaim(claim, pod, ctx.clock.now(), brought))
            assert isinstance(written, ResourceClaim)
            devices.assume(written)
        finally:
            devices.finish(claim.metadata.uid)
        return written

    async def _demand_waiting(self, ctx: BinderHandle, pod: Pod) -> None:
        """Raise if the pod is gone, which the watch may tell late: the scheduler may have given its devices away."""
        found: Pod | None = None
        with contextlib.suppress(NotFound):
            found = await ctx.client.get(Pod, pod.namespace, pod.name)
        if found is None or found.uid != pod.uid or found.terminating:
            raise PodGone(f"pod {pod.key} is gone, so no devices are allocated for it")

    async def _demand_free(self, ctx: BinderHandle, claim: ResourceClaim, brought: AllocationResult) -> None:
        """Raise where somebody else has one of these devices. Of a claim that had one when the watch last told of it
        the server is asked: it may have given the device back."""
        devices, excused = ctx.cache.devices, {claim.metadata.uid}
        while (held := devices.holder(brought, excused)) is not None:
            other, device = held
            if devices.pending(other.metadata.uid) is None:
                try:
                    found = [await ctx.fresh_claim(other.namespace, other.name)]
                except NotFound:
                    found = []
                if DeviceAssumptions(found).holder(brought, excused) is None:
                    excused.add(other.metadata.uid)
                    continue
            raise DeviceTaken(f"device {device}, which claim {claim.key} is to get, is that of claim {other.key}")

    async def _special(self, ctx: BinderHandle, pod: Pod, node: Node, given: ExtendedClaimAllocation) -> ResourceClaim:
        """The claim behind extended resources: the one that an earlier attempt made, or a new one."""
        claim = await self._special_claim(ctx, pod)
        if claim is None:
            wanted = extended.with_requests(extended.new_special_claim(pod), given.device_requests)
            made = await ctx.writes.perform(intents.CreateSpecialClaim(wanted, pod))
            assert isinstance(made, ResourceClaim)
            claim = made
        reserved = await self._reserved(ctx, pod, node, claim, given.allocation)
        await ctx.writes.perform(intents.RecordSpecialClaim(pod, claim.name, given.container_mappings))
        return reserved

    async def _special_claim(self, ctx: BinderHandle, pod: Pod) -> ResourceClaim | None:
        """Asked of the server: the watch may not have told yet what the attempt before made."""
        return extended.find_special_claim(pod, await ctx.fresh_claims(pod.namespace))

    async def _all_given_back(self, ctx: BinderHandle, pod: Pod, entries: tuple[ClaimAllocation, ...]) -> None:
        """A pod that is gone does not say any more which claims were its own. Its uid is what is known of it."""
        for claim in await ctx.fresh_claims(pod.namespace):
            brought = (each.allocation for each in entries if _is_of(claim, each.allocation))
            with contextlib.suppress(NotFound):
                await self._given_back(ctx, pod, claim, next(brought, None))

    async def _given_back(
        self, ctx: BinderHandle, pod: Pod, claim: ResourceClaim, brought: AllocationResult | None
    ) -> None:
        """Others write to the claim meanwhile, not least whoever takes claims from pods that are gone."""
        for tries_left in reversed(range(_TRIES)):
            if not is_reserved_for(claim, pod) or await self._stays(ctx, pod, claim, brought):
                return
            is_all_ours = _is_of(claim, brought) and all(user.uid == pod.uid for user in claim.status.reserved_for)
            intent = intents.DeallocateClaim(claim) if is_all_ours else intents.UnreserveClaim(claim, pod)
            try:
                await ctx.writes.perform(intent)
                return
            except Conflict:
                if not tries_left:
                    raise
            claim = await ctx.fresh_claim(claim.namespace, claim.name)

    async def _stays(self, ctx: BinderHandle, pod: Pod, claim: ResourceClaim, brought: AllocationResult | None) -> bool:
        """Whether these are the devices of a pod that is bound elsewhere: others than we brought, or ours, and within
        the reach of that node. Whoever chose them, they go with the pod."""
        node_name, allocation = pod.spec.node_name, claim.status.allocation
        if not node_name:
            return False
        if not _is_of(claim, brought) or allocation is None or allocation.node_selector is None:
            return True  # without asking for the node
        labels: Mapping[str, str] = {}
        with contextlib.suppress(NotFound):
            labels = (await ctx.fresh_node(node_name)).labels
        return is_within_reach(allocation, labels, node_name)

    async def _until_ready(self, ctx: BinderHandle, pod: Pod, node: Node, claims: list[ResourceClaim]) -> None:
        """Wait for devices that must be made ready for this node."""
        if not any(map(has_binding_conditions, claims)):
            return
        keys, timeout = tuple(claim.key for claim in claims), timedelta(seconds=self.timeout_s)

        def done() -> bool:
            ctx.cache.devices.sync(ctx.cache.catalog)
            return all_ready(keys, ctx.cache.devices.claims, ctx.clock.now(), timeout)

        note = f"waiting for binding conditions for device on node {node.name}"
        try:
            await ctx.writes.perform(intents.AwaitDevices(pod, note, done, self.timeout_s))
        except TimeoutError:
            raise DeviceBindingTimeout from None


def _entries(pod: Pod, request: BindRequest) -> Iterator[ClaimAllocation]:
    """What the request says of the pod's claims, and the pod's others: they must have devices already."""
    given = request.spec.resource_claim_allocations
    yield from given
    named = {each.name for each in given}
    yield from (ClaimAllocation(each.name) for each in pod.spec.resource_claims if each.name not in named)


def _demand_reach(claim: ResourceClaim, allocation: AllocationResult, node: Node) -> None:
    if not is_within_reach(allocation, node.labels, node.name):
        whose = "brought for" if claim.status.allocation is None else "of"
        raise OutOfReach(f"the devices {whose} claim {claim.key} cannot be used from node {node.name}")


def _is_of(claim: ResourceClaim, brought: AllocationResult | None) -> bool:
    """Whether the claim has the very devices that a request brought."""
    allocation = claim.status.allocation
    return brought is not None and allocation is not None and allocation.devices == brought.devices


def claim_name(pod: Pod, given: ClaimAllocation) -> str | None:
    """The claim behind an entry of the pod's; None for a template for which no claim was needed."""
    for entry in pod.spec.resource_claims:
        if entry.name == given.name:
            if entry.resource_claim_name is not None:
                return entry.resource_claim_name
            for status in pod.status.resource_claim_statuses:
                if status.name == entry.name:
                    return status.resource_claim_name
            raise ClaimChanged(f'the claim of entry "{given.name}" of pod {pod.key} is not made yet')
    raise ClaimChanged(f'pod {pod.key} has no entry "{given.name}" in its resourceClaims')
