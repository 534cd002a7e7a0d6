"""Hands the parameters of a device manager from the pod's placement to its containers.

The engine marks pods that ask for GPUs, with how many; the binder notes on the pod what its device manager is to set
in the environment of the containers.
"""

from bayplan.batch import Arguments, Session, Task
from bayplan.binder import BinderHandle, BindingState, BindRequest, annotation_key, annotations_for_plugin
from bayplan.framework import Cycle, Node, Pod

RESOURCE = "nvidia.com/gpu"
PLUGIN = "gpuenv"
ENVIRONMENT = "example.com/gpu-environment"


def parameters(pod: Pod) -> dict[str, str] | None:
    """The annotations of either engine for a pod that requests GPUs."""
    asked = [str(each.resources.requests.get(RESOURCE, "0")) for each in pod.spec.containers]
    count = sum(map(int, asked))
    if not count:
        return None
    return {annotation_key(PLUGIN, "requires-env-vars"): "true", annotation_key(PLUGIN, "count"): str(count)}


class GpuParameters:
    """The pod engine's side: marks the pods that need the variables. Such a pod is not bound without them."""

    name = "GpuParameters"
    on_mutate_error = "fail"

    def mutate_bind_request(self, cycle: Cycle, node_name: str) -> dict[str, str] | None:
        return parameters(cycle.pod)


class BatchGpuParameters:
    """The batch engine's side."""

    name = "gpu-parameters"

    def __init__(self, arguments: Arguments) -> None:
        pass

    def on_session_open(self, session: Session) -> None:
        session.add_bind_request_mutate_fn(self._parameters, on_error="fail")

    def _parameters(self, task: Task, node_name: str) -> dict[str, str] | None:
        return parameters(task.pod)


class GpuEnv:
    """Binder side: the parameters for the device manager of the node."""

    name = PLUGIN

    async def pre_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        told = annotations_for_plugin(bind_request, self.name)
        if told.get("requires-env-vars") == "true":
            await ctx.annotate(pod, {ENVIRONMENT: f"GPU_COUNT={told.get('count', '1')},GPU_NODE={node.name}"})

    async def rollback(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        if annotations_for_plugin(bind_request, self.name):
            await ctx.annotate(pod, {ENVIRONMENT: None})
