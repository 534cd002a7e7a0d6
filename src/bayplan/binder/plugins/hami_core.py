"""How much of a shared GPU may a container use? HAMi-core's limit, as a variable of its environment.

A share is only a promise without somebody on the device who keeps it; HAMi-core is one. The limit goes into the
ConfigMap that `gpusharing` has made, which therefore has to run before, and which takes the ConfigMap back as a whole.
"""

from __future__ import annotations

import math

from bayplan.binder.plugin import BinderHandle, BindingState, RejectBind
from bayplan.binder.plugins.gpu_sharing import GpuSharingBinderPlugin, config_maps_of, portion_of, upsert_config_map
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kai.gpu_sharing import GPU_MEMORY_LABEL

MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"


class HamiCoreBinderPlugin:
    """Limits fractional pods to their share."""

    name = "hamicore"
    argument_names = ()
    runs_after = (GpuSharingBinderPlugin.name,)

    async def pre_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        if not bind_request.is_fraction:
            return
        capabilities, _ = config_maps_of(pod)
        limit = math.floor(gpu_memory_mib(node) * portion_of(bind_request))
        await upsert_config_map(ctx, pod, capabilities, {MEMORY_LIMIT: f"{limit}m"})


def gpu_memory_mib(node: Node) -> int:
    """What each device of a node has, in MiB."""
    text = node.labels.get(GPU_MEMORY_LABEL, "")
    if not text.isdecimal() or not int(text):
        raise RejectBind(f'the label {GPU_MEMORY_LABEL} of node {node.name} is "{text}"; it says how much a device has')
    return int(text)
