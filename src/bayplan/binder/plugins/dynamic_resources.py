"""Writes the allocations of a BindRequest into the pod's device claims, and reserves the claims for the pod.

The engine chose the devices; the intents of `devices` define the writes. Claims that already have an allocation, from
an earlier attempt, the engine or another client, keep it. In any case, a pod is not bound if its node cannot use the
devices or if a device belongs to another claim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import timedelta

from bayplan.binder.plugin import BinderHandle, BindingState
from bayplan.binder.plugins.bind_timeout import BindTimeoutPlugin
from bayplan.devices import claim_intents, extended_resources
from bayplan.devices.claims import all_ready, has_binding_conditions, is_accessible_from, is_reserved_for
from bayplan.devices.errors import (
    ClaimChanged,
    DeviceAlreadyAllocated,
    DeviceBindingTimeout,
    DeviceNotAccessible,
    PodGone,
)
from bayplan.errors import Conflict, NotFound
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest, ClaimAllocation, ExtendedClaimAllocation
from bayplan.objects.resource import AllocationResult, ResourceClaim

_TRIES = 5


class DynamicResourcesBinderPlugin(BindTimeoutPlugin):
    """Allocates and reserves device claims as a request says."""

    name = "dynamicresources"

    async def pre_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        done: list[ResourceClaim] = []
        for each in _claim_entries(pod, bind_request):
            name = claim_name(pod, each)
            if name is not None:
                claim = await ctx.read_claim(pod.namespace, name)
                done.append(await self._reserve_claim(ctx, pod, node, claim, each.allocation))
        special = bind_request.spec.extended_resource_claim_allocation
        if special is not None:
            done.append(await self._bind_special_claim(ctx, pod, node, special))
        await self._wait_until_ready(ctx, pod, node, done)

    async def rollback(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        """Release devices that the pod does not get. A claim with other users keeps its devices."""
        entries = tuple(_claim_entries(pod, bind_request))
        if entries and not pod.spec.resource_claims:
            await self._release_claims(ctx, pod, entries)
        else:
            for each in entries:
                with contextlib.suppress(ClaimChanged, NotFound):  # there is no such claim
                    if (name := claim_name(pod, each)) is not None:
                        await self._release_claim(ctx, pod, await ctx.read_claim(pod.namespace, name), each.allocation)
        special = bind_request.spec.extended_resource_claim_allocation
        if special is not None:
            found = await self._special_claim(ctx, pod)
            if found is not None and not await self._keeps_allocation(ctx, pod, found, special.allocation):
                await ctx.writes.perform(claim_intents.DeleteClaim(found))

    # internal

    async def _reserve_claim(
        self, ctx: BinderHandle, pod: Pod, node: Node, claim: ResourceClaim, requested: AllocationResult | None
    ) -> ResourceClaim:
        """Reserve a claim and return it. An allocation that the claim already has is used if the node can reach it: the
        pod gets the claim's devices, and never both."""
        allocation = claim.status.allocation or requested
        if allocation is None:
            raise ClaimChanged(f"claim {claim.key} has no devices, and the request brings none")
        _require_accessible(claim, allocation, node)
        if is_reserved_for(claim, pod):
            return claim
        if claim.status.allocation is None:
            return await self._allocate_claim(ctx, pod, claim, allocation)
        written = await ctx.writes.perform(claim_intents.ReserveClaim(claim, pod, ctx.clock.now()))
        assert isinstance(written, ResourceClaim)
        if written.status.allocation is not None:
            # the claim may have got other devices meanwhile
            _require_accessible(written, written.status.allocation, node)
        return written

    async def _allocate_claim(
        self, ctx: BinderHandle, pod: Pod, claim: ResourceClaim, requested: AllocationResult
    ) -> ResourceClaim:
        """Allocate the request's devices to a claim, if no other claim has them.

        Writes of other workers in progress count, too: otherwise both would find the devices free."""
        await self._require_waiting_pod(ctx, pod)
        devices = ctx.cache.devices
        devices.sync(ctx.cache.catalog)
        await self._require_free_devices(ctx, claim, requested)
        devices.begin(claim, requested)
        try:
            written = await ctx.writes.perform(claim_intents.ReserveClaim(claim, pod, ctx.clock.now(), requested))
            assert isinstance(written, ResourceClaim)
            devices.assume(written)
        finally:
            devices.finish(claim.metadata.uid)
        return written

    async def _require_waiting_pod(self, ctx: BinderHandle, pod: Pod) -> None:
        """Raise if the pod is gone, which the watch may show late: the scheduler may have given its devices away."""
        found: Pod | None = None
        with contextlib.suppress(NotFound):
            found = await ctx.client.get(Pod, pod.namespace, pod.name)
        if found is None or found.uid != pod.uid or found.terminating:
            raise PodGone(f"pod {pod.key} is gone, so no devices are allocated for it")

    async def _require_free_devices(self, ctx: BinderHandle, claim: ResourceClaim, requested: AllocationResult) -> None:
        """Raise if another claim has one of these devices. A claim that has one according to the watch is read from the
        API server: it may have been deallocated."""
        devices, ignored = ctx.cache.devices, {claim.metadata.uid}
        while (held := devices.holder(requested, ignored)) is not None:
            other, device = held
            if devices.pending(other.metadata.uid) is None:
                try:
                    devices.observe(await ctx.read_claim(other.namespace, other.name))
                except NotFound:
                    ignored.add(other.metadata.uid)
                    continue
                known = devices.claims.get(other.key)
                if known is not other:
                    continue
            raise DeviceAlreadyAllocated(
                f"device {device}, which claim {claim.key} is to get, is that of claim {other.key}"
            )

    async def _bind_special_claim(
        self, ctx: BinderHandle, pod: Pod, node: Node, allocation: ExtendedClaimAllocation
    ) -> ResourceClaim:
        """Bind the claim for extended resources: the one that an earlier attempt created, or a new one."""
        claim = await self._special_claim(ctx, pod)
        if claim is None:
            template = extended_resources.with_requests(
                extended_resources.new_special_claim(pod), allocation.device_requests
            )
            created = await ctx.writes.perform(claim_intents.CreateSpecialClaim(template, pod))
            assert isinstance(created, ResourceClaim)
            claim = created
        reserved = await self._reserve_claim(ctx, pod, node, claim, allocation.allocation)
        await ctx.writes.perform(claim_intents.RecordSpecialClaim(pod, claim.name, allocation.container_mappings))
        return reserved

    async def _special_claim(self, ctx: BinderHandle, pod: Pod) -> ResourceClaim | None:
        """Read from the API server: the watch may not have delivered the claim of the attempt before."""
        return extended_resources.find_special_claim(pod, await ctx.read_claims(pod.namespace))

    async def _release_claims(self, ctx: BinderHandle, pod: Pod, entries: tuple[ClaimAllocation, ...]) -> None:
        """Release the claims of a deleted pod, which no longer names them. They are found by its uid."""
        for claim in await ctx.read_claims(pod.namespace):
            requested = (each.allocation for each in entries if _has_same_devices(claim, each.allocation))
            with contextlib.suppress(NotFound):
                await self._release_claim(ctx, pod, claim, next(requested, None))

    async def _release_claim(
        self, ctx: BinderHandle, pod: Pod, claim: ResourceClaim, requested: AllocationResult | None
    ) -> None:
        """Release a claim, with retries: other clients write to it, for example the controller that releases claims."""
        for tries_left in reversed(range(_TRIES)):
            if not is_reserved_for(claim, pod) or await self._keeps_allocation(ctx, pod, claim, requested):
                return
            is_only_user = _has_same_devices(claim, requested) and all(
                user.uid == pod.uid for user in claim.status.reserved_for
            )
            intent = claim_intents.DeallocateClaim(claim) if is_only_user else claim_intents.UnreserveClaim(claim, pod)
            try:
                await ctx.writes.perform(intent)
                return
            except Conflict:
                if not tries_left:
                    raise
            claim = await ctx.read_claim(claim.namespace, claim.name)

    async def _keeps_allocation(
        self, ctx: BinderHandle, pod: Pod, claim: ResourceClaim, requested: AllocationResult | None
    ) -> bool:
        """Whether the claim's devices are those of a pod that is bound elsewhere: either not the request's devices, or
        the request's and accessible from that node. The claim then keeps them."""
        node_name, allocation = pod.spec.node_name, claim.status.allocation
        if not node_name:
            return False
        if not _has_same_devices(claim, requested) or allocation is None or allocation.node_selector is None:
            return True  # no need to read the node
        labels: Mapping[str, str] = {}
        with contextlib.suppress(NotFound):
            labels = (await ctx.read_node(node_name)).labels
        return is_accessible_from(allocation, labels, node_name)

    async def _wait_until_ready(self, ctx: BinderHandle, pod: Pod, node: Node, claims: list[ResourceClaim]) -> None:
        """Wait for devices that must be made ready for this node."""
        if not any(map(has_binding_conditions, claims)):
            return
        keys, timeout = tuple(claim.key for claim in claims), timedelta(seconds=self.timeout_s)

        def done() -> bool:
            ctx.cache.devices.sync(ctx.cache.catalog)
            return all_ready(keys, ctx.cache.devices.claims, ctx.clock.now(), timeout)

        note = f"waiting for binding conditions for device on node {node.name}"
        try:
            await ctx.writes.perform(claim_intents.WaitForDevices(pod, note, done, self.timeout_s))
        except TimeoutError:
            raise DeviceBindingTimeout from None


def _claim_entries(pod: Pod, request: BindRequest) -> Iterator[ClaimAllocation]:
    """The request's allocations, and the pod's other claims, which must have devices already."""
    allocations = request.spec.resource_claim_allocations
    yield from allocations
    names = {each.name for each in allocations}
    yield from (ClaimAllocation(each.name) for each in pod.spec.resource_claims if each.name not in names)


def _require_accessible(claim: ResourceClaim, allocation: AllocationResult, node: Node) -> None:
    if not is_accessible_from(allocation, node.labels, node.name):
        relation = "brought for" if claim.status.allocation is None else "of"
        raise DeviceNotAccessible(f"the devices {relation} claim {claim.key} cannot be used from node {node.name}")


def _has_same_devices(claim: ResourceClaim, requested: AllocationResult | None) -> bool:
    allocation = claim.status.allocation
    return requested is not None and allocation is not None and allocation.devices == requested.devices


def claim_name(pod: Pod, allocation: ClaimAllocation) -> str | None:
    """The claim behind an entry of the pod; None for a template that needed no claim."""
    for entry in pod.spec.resource_claims:
        if entry.name == allocation.name:
            if entry.resource_claim_name is not None:
                return entry.resource_claim_name
            for status in pod.status.resource_claim_statuses:
                if status.name == entry.name:
                    return status.resource_claim_name
            raise ClaimChanged(f'the claim of entry "{allocation.name}" of pod {pod.key} is not made yet')
    raise ClaimChanged(f'pod {pod.key} has no entry "{allocation.name}" in its resourceClaims')
