"""How much of a shared GPU may a container use? HAMi-core's limits, as variables of its environment.

A share is only a promise without somebody on the device who keeps it; HAMi-core is one. The limits go into the
ConfigMap that `gpusharing` has made, which therefore has to run before.
"""

from __future__ import annotations

import math

from bayplan.binder.plugin import BinderHandle, BindingState, InvalidRequest
from bayplan.binder.plugins.gpu_sharing import config_map_names, upsert
from bayplan.objects.bind_requests import BindRequest
from bayplan.objects.core import Node, Pod

GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"
MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
CORES_LIMIT = "CUDA_DEVICE_SM_LIMIT"


class HamiCore:
    """Limits fractional pods to their share."""

    name = "hamicore"

    async def pre_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        if not bind_request.is_fraction:
            return
        if not state.reserved_gpu_ids:
            raise InvalidRequest("no device was reserved; gpusharing has to run before hamicore")
        portion = portion_of(bind_request)
        limits = {CORES_LIMIT: str(max(1, round(portion * 100)))}
        memory = node.labels.get(GPU_MEMORY_LABEL, "")
        if memory.isdecimal():
            limits[MEMORY_LIMIT] = f"{math.floor(int(memory) * portion)}m"
        _, variables = config_map_names(pod)
        await upsert(ctx, pod, variables, limits)


def portion_of(request: BindRequest) -> float:
    """The share of each device, above 0 and at most 1."""
    given = request.spec.received_gpu
    text = given.portion if given is not None else ""
    try:
        portion = float(text)
    except ValueError:
        portion = math.nan
    if not 0 < portion <= 1:
        raise InvalidRequest(f'receivedGPU.portion is "{text}"; it takes a share such as 0.50')
    return portion
