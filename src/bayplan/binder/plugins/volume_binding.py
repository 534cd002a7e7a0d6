"""Binds the pod's volumes for its node: assumes them, writes the bindings and waits until they are bound.

Uses the decision of the pod engine's VolumeBinding (`volumes`) for one node. A pod whose claims are all bound costs a
few lookups.
"""

from __future__ import annotations

from bayplan.api_writes import crash_points
from bayplan.binder.plugin import BinderHandle, BindingState
from bayplan.binder.plugins.bind_timeout import BindTimeoutPlugin
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.storage import CsiNode
from bayplan.volumes.bind_pod_volumes import bind_api_update, wait_until_bound
from bayplan.volumes.binding import AFFINITY_CONFLICT, VOLUME_MISSING, PodVolumes, VolumeFinder
from bayplan.volumes.claims import all_bound, claim_uses, claims_error, classify_claims
from bayplan.volumes.csi import migrated_on
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.volume_intents import assume_pod_volumes, revert_assumed_pod_volumes

UNBOUND_IMMEDIATE = "pod has unbound immediate PersistentVolumeClaims"


class VolumeBindingBinderPlugin(BindTimeoutPlugin):
    """Binds volumes that wait for their first consumer."""

    name = "volumebinding"

    async def pre_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        if not any(True for _ in claim_uses(pod)):
            return
        volumes, lookup = ctx.cache.volumes, ctx.cache.catalog
        csi_node = lookup.csi_nodes.get(node.name)
        if (reason := claims_error(pod, lookup)) is not None:
            raise VolumeError(reason)
        claims = classify_claims(pod, volumes.claims, lookup)
        if claims.immediate:
            raise VolumeError(UNBOUND_IMMEDIATE)
        decider = VolumeFinder(claims, volumes, lookup)
        _require_reachable(decider, node, csi_node)
        if all_bound(pod, volumes.claims):
            return
        conflict, wanted = decider.find_pod_volumes(node.name, node.labels)
        if conflict is not None:
            raise VolumeError(conflict)
        info = assume_pod_volumes(wanted, node.name, volumes)

        def store_state(latest: PodVolumes) -> None:
            state.plugin_state[self.name] = latest

        store_state(info)

        def look() -> tuple[Node | None, CsiNode | None]:
            return ctx.cache.node(node.name), lookup.csi_nodes.get(node.name)

        perform = ctx.writes.perform
        written = await bind_api_update(info, perform, volumes, store_state)
        ctx.crash_point(crash_points.VOLUMES_ASSUMED)
        await wait_until_bound(pod, node.name, written, perform, volumes, read_node=look, timeout_s=self.timeout_s)

    async def rollback(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        info = state.plugin_state.pop(self.name, None)
        if isinstance(info, PodVolumes):
            revert_assumed_pod_volumes(info, ctx.cache.volumes)


def _require_reachable(decider: VolumeFinder, node: Node, csi_node: CsiNode | None) -> None:
    migrated = migrated_on(csi_node)
    for volume in decider.bound:
        if volume.missing:
            raise VolumeError(VOLUME_MISSING)
        if not volume.reachable(node.labels, migrated):
            raise VolumeError(AFFINITY_CONFLICT)
