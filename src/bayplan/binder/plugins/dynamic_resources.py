"""Are the pod's devices its own? Writes the allocations that came with the request to the claims, and reserves them.

Which devices was decided by whoever made the request; what is written, and how, is `devices`' business. Claims that
were written before, by an earlier attempt or by the engine itself, are left as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import timedelta

from bayplan.binder.plugin import BinderHandle, BindingState
from bayplan.binder.plugins.patience import Patient
from bayplan.devices import extended, intents
from bayplan.devices.claims import all_ready, has_binding_conditions, is_reserved_for
from bayplan.devices.faults import ClaimChanged, DeviceBindingTimeout
from bayplan.errors import NotFound
from bayplan.objects.bind_requests import BindRequest, ClaimAllocation, ExtendedClaimAllocation
from bayplan.objects.core import Node, Pod
from bayplan.objects.node_selectors import compile_node_selector
from bayplan.objects.resource import AllocationResult, ResourceClaim


class DynamicResources(Patient):
    """Allocates and reserves device claims as a request says."""

    name = "dynamicresources"

    async def pre_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        done: list[tuple[ResourceClaim, bool]] = state.kept.setdefault(self.name, [])
        for each in bind_request.spec.resource_claim_allocations:
            name = claim_name(pod, each)
            if name is not None:
                claim = await ctx.fresh_claim(pod.namespace, name)
                done.append(await self._reserved(ctx, pod, claim, each.allocation))
        special = bind_request.spec.extended_resource_claim_allocation
        if special is not None:
            done.append(await self._special(ctx, pod, special))
        await self._until_ready(ctx, pod, node, [claim for claim, _ in done])

    async def rollback(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        """Nobody else has to wait for what this pod does not get. A claim that others use keeps its devices."""
        state.kept.pop(self.name, None)
        for each in bind_request.spec.resource_claim_allocations:
            with contextlib.suppress(ClaimChanged):  # a pod that is gone has no claims any more
                name = claim_name(pod, each)
                if name is not None:
                    await self._given_back(ctx, pod, name, each.allocation)
        special = bind_request.spec.extended_resource_claim_allocation
        if special is not None:
            found = await self._special_claim(ctx, pod)
            if found is not None and not await self._stays(ctx, pod, found, special.allocation):
                await ctx.writes.perform(intents.DeleteClaim(found))

    # inside -----------------------------------------------------------------------------------------------------

    async def _reserved(
        self, ctx: BinderHandle, pod: Pod, claim: ResourceClaim, allocation: AllocationResult | None
    ) -> tuple[ResourceClaim, bool]:
        """The claim as it then is, and whether the allocation is ours."""
        if is_reserved_for(claim, pod):
            return claim, False
        given = allocation if claim.status.allocation is None else None
        if given is None and claim.status.allocation is None:
            raise ClaimChanged(f"claim {claim.key} has no devices, and the request brings none")
        written = await ctx.writes.perform(intents.ReserveClaim(claim, pod, ctx.clock.now(), given))
        assert isinstance(written, ResourceClaim)
        return written, given is not None

    async def _special(self, ctx: BinderHandle, pod: Pod, given: ExtendedClaimAllocation) -> tuple[ResourceClaim, bool]:
        """The claim behind extended resources: the one that an earlier attempt made, or a new one."""
        claim = await self._special_claim(ctx, pod)
        if claim is None:
            wanted = extended.with_requests(extended.new_special_claim(pod), given.device_requests)
            made = await ctx.writes.perform(intents.CreateSpecialClaim(wanted, pod))
            assert isinstance(made, ResourceClaim)
            claim = made
        reserved = await self._reserved(ctx, pod, claim, given.allocation)
        await ctx.writes.perform(intents.RecordSpecialClaim(pod, claim.name, given.container_mappings))
        return reserved

    async def _special_claim(self, ctx: BinderHandle, pod: Pod) -> ResourceClaim | None:
        """Asked of the server: the watch may not have told yet what the attempt before made."""
        return extended.find_special_claim(pod, await ctx.fresh_claims(pod.namespace))

    async def _given_back(self, ctx: BinderHandle, pod: Pod, name: str, brought: AllocationResult | None) -> None:
        try:
            claim = await ctx.fresh_claim(pod.namespace, name)
        except NotFound:
            return
        if not is_reserved_for(claim, pod):
            return
        if await self._stays(ctx, pod, claim, brought):
            return
        if _is_of(claim, brought) and all(user.uid == pod.uid for user in claim.status.reserved_for):
            await ctx.writes.perform(intents.DeallocateClaim(claim))
        else:
            await ctx.writes.perform(intents.UnreserveClaim(claim, pod))

    async def _stays(self, ctx: BinderHandle, pod: Pod, claim: ResourceClaim, brought: AllocationResult | None) -> bool:
        """Whether these are the devices of a pod that is bound elsewhere: others than we brought, or ours, and within
        the reach of that node. Whoever chose them, they go with the pod."""
        node_name, allocation = pod.spec.node_name, claim.status.allocation
        if not node_name:
            return False
        if not _is_of(claim, brought) or allocation is None or allocation.node_selector is None:
            return True
        labels: Mapping[str, str] = {}
        with contextlib.suppress(NotFound):
            labels = (await ctx.fresh_node(node_name)).labels
        return compile_node_selector(allocation.node_selector).matches(labels, node_name)

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
