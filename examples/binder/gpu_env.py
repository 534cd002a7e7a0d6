"""Hands the parameters of a device manager from the pod's placement to its containers.

The scheduler marks pods that ask for GPUs, with how many; the binder notes on the pod what its device manager is to set
in the environment of the containers.
"""

from bayplan.binder import BinderHandle, BindingState, BindRequest, annotation_key, plugin_annotations
from bayplan.framework import Cycle, Node, Pod

RESOURCE = "nvidia.com/gpu"
PLUGIN = "gpuenv"
ENVIRONMENT = "example.com/gpu-environment"


class GpuParameters:
    """Scheduler side: says for which pods variables are needed. Such a pod is not bound without them."""

    name = "GpuParameters"
    on_mutate_error = "fail"

    def mutate_bind_request(self, cycle: Cycle, node_name: str) -> dict[str, str] | None:
        asked = [str(each.resources.requests.get(RESOURCE, "0")) for each in cycle.pod.spec.containers]
        count = sum(map(int, asked))
        if not count:
            return None
        return {annotation_key(PLUGIN, "requires-env-vars"): "true", annotation_key(PLUGIN, "count"): str(count)}


class GpuEnv:
    """Binder side: what the device manager on the node reads."""

    name = PLUGIN

    async def pre_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        told = plugin_annotations(bind_request, self.name)
        if told.get("requires-env-vars") == "true":
            await ctx.annotate(pod, {ENVIRONMENT: f"GPU_COUNT={told.get('count', '1')},GPU_NODE={node.name}"})

    async def rollback(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        if plugin_annotations(bind_request, self.name):
            await ctx.annotate(pod, {ENVIRONMENT: None})
