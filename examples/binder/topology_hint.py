"""Tells a pod in which rack and block it runs.

The scheduler knows the labels of the node; the binder writes them onto the pod before it starts, where the workload can
read them by the downward API.
"""

from bayplan.binder import BinderHandle, BindingState, BindRequest, annotation_key, plugin_annotations
from bayplan.framework import Cycle, Node, Pod

LEVELS = {"rack": "example.com/rack", "block": "example.com/block"}
PLUGIN = "topologyhint"


class TopologyPosition:
    """Scheduler side: the rack and the block of the chosen node."""

    name = "TopologyPosition"

    def mutate_bind_request(self, cycle: Cycle, node_name: str) -> dict[str, str] | None:
        columns = cycle.snapshot.nodes
        row = columns.index.get(node_name)
        labels = columns.nodes[row].labels if row is not None else {}
        return {annotation_key(PLUGIN, level): labels[key] for level, key in LEVELS.items() if key in labels}


class TopologyHint:
    """Binder side: one patch of the pod's annotations."""

    name = PLUGIN

    async def pre_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        told = plugin_annotations(bind_request, self.name)
        position = {LEVELS[level]: value for level, value in told.items() if level in LEVELS}
        if position:
            await ctx.annotate(pod, position)

    async def rollback(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        if plugin_annotations(bind_request, self.name):
            await ctx.annotate(pod, dict.fromkeys(LEVELS.values()))
