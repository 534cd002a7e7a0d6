"""Carries out assumed volume bindings: writes them, and waits for the controllers.

Called by VolumeBinding at PreBind and by the binder's VolumeBinding plugin. Cost: one request per volume or claim, and
one check per second while the controllers work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from bayplan.errors import BayplanError
from bayplan.objects.core import Node, Pod
from bayplan.objects.storage import CsiNode
from bayplan.volumes.assumptions import VolumeAssumptions
from bayplan.volumes.binding import PodVolumes
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.volume_intents import (
    SetSelectedNode,
    SetVolumeClaimRef,
    WaitForVolumes,
    bindings_complete,
    revert_assumed_pod_volumes,
)

PerformIntent = Callable[[object], Awaitable[Any]]
ReadNode = Callable[[], tuple[Node | None, CsiNode | None]]
"""Returns the current node of the pod, and its CSINode."""


async def bind_api_update(
    info: PodVolumes, perform: PerformIntent, assumptions: VolumeAssumptions, on_written: Callable[[PodVolumes], None]
) -> PodVolumes:
    """Write the assumed objects; returns them as written.

    The assumption of an object that could not be written is reverted. `on_written` is called after each volume with
    the current objects: reverting needs the newest versions.
    """
    bindings, claims = list(info.bindings), list(info.provisions)
    volumes_done = claims_done = 0
    try:
        for number, binding in enumerate(bindings):
            bindings[number] = replace(binding, volume=await perform(SetVolumeClaimRef(binding.volume)))
            volumes_done += 1
            on_written(PodVolumes(tuple(bindings), info.provisions))
        for number, claim in enumerate(claims):
            claims[number] = await perform(SetSelectedNode(claim))
            claims_done += 1
    finally:
        revert_assumed_pod_volumes(PodVolumes(tuple(bindings[volumes_done:]), tuple(claims[claims_done:])), assumptions)
    return PodVolumes(tuple(bindings), tuple(claims))


async def wait_until_bound(
    pod: Pod,
    node_name: str,
    written: PodVolumes,
    perform: PerformIntent,
    assumptions: VolumeAssumptions,
    *,
    read_node: ReadNode,
    timeout_s: float,
) -> None:
    """Wait until the volume controller and the provisioners are done."""

    def done() -> bool:
        node, csi_node = read_node()
        return bindings_complete(written, node_name, node, csi_node, assumptions)

    try:
        await perform(WaitForVolumes(pod, done, timeout_s))
    except TimeoutError:
        raise VolumeError("binding volumes: context deadline exceeded") from None
    except BayplanError as fault:
        raise VolumeError(f"binding volumes: {fault}") from fault
