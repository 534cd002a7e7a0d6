"""Sets HAMi-core's memory limit for containers that share a GPU, as an environment variable.

A portion is enforced only by a component on the device; HAMi-core is one. The limit goes into the ConfigMap of
`gpusharing`, which therefore has to run before, and which deletes the whole ConfigMap in its rollback.
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
    """Limits fractional pods to their portion of the GPU memory."""

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
    text = node.labels.get(GPU_MEMORY_LABEL, "")
    if not text.isdecimal() or not int(text):
        raise RejectBind(
            f'the label {GPU_MEMORY_LABEL} of node {node.name} is "{text}"; set it to the memory of each GPU in MiB'
        )
    return int(text)
