"""How is an assumption about volumes carried out? Written, then waited for until the controllers have followed.

Asked by VolumeBinding at PreBind and by the binder's plugin of the same purpose. Cost: a request a volume or claim, and
a look a second while somebody else works.
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
"""The node of the pod, and what it says of drivers, at this moment."""


async def bind_api_update(
    info: PodVolumes, perform: PerformIntent, assumptions: VolumeAssumptions, noted: Callable[[PodVolumes], None]
) -> PodVolumes:
    """Write what was assumed; returns the objects as written. What could not be written is no longer assumed.

    `noted` is told after each volume what is assumed then: whoever takes it back needs the newest versions."""
    bindings, claims = list(info.bindings), list(info.provisions)
    volumes_done = claims_done = 0
    try:
        for number, binding in enumerate(bindings):
            bindings[number] = replace(binding, volume=await perform(SetVolumeClaimRef(binding.volume)))
            volumes_done += 1
            noted(PodVolumes(tuple(bindings), info.provisions))
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
    look: ReadNode,
    timeout_s: float,
) -> None:
    """Wait until the volume controller and the provisioners have done their part."""

    def done() -> bool:
        node, csi_node = look()
        return bindings_complete(written, node_name, node, csi_node, assumptions)

    try:
        await perform(WaitForVolumes(pod, done, timeout_s))
    except TimeoutError:
        raise VolumeError("binding volumes: context deadline exceeded") from None
    except BayplanError as fault:
        raise VolumeError(f"binding volumes: {fault}") from fault
