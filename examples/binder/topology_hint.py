"""Writes the rack and block of its node onto a pod.

The engine knows the labels of the node; the binder writes them onto the pod before it starts, so that the workload can
read them through the downward API.
"""

from collections.abc import Mapping

from bayplan.batch import Arguments, Session, Task
from bayplan.binder import BinderHandle, BindingState, BindRequest, annotation_key, annotations_for_plugin
from bayplan.framework import Cycle, Node, Pod

LEVELS = {"rack": "example.com/rack", "block": "example.com/block"}
PLUGIN = "topologyhint"


def position(labels: Mapping[str, str]) -> dict[str, str]:
    """The annotations of either engine about the chosen node."""
    return {annotation_key(PLUGIN, level): labels[key] for level, key in LEVELS.items() if key in labels}


class TopologyPosition:
    """The pod engine's side: the rack and the block of the chosen node."""

    name = "TopologyPosition"

    def mutate_bind_request(self, cycle: Cycle, node_name: str) -> dict[str, str] | None:
        columns = cycle.snapshot.nodes
        row = columns.index.get(node_name)
        return None if row is None else position(columns.nodes[row].labels)


class BatchTopologyPosition:
    """The batch engine's side."""

    name = "topology-position"

    def __init__(self, arguments: Arguments) -> None:
        pass

    def on_session_open(self, session: Session) -> None:
        self._nodes = session.nodes
        session.add_bind_request_mutate_fn(self._position)

    def _position(self, task: Task, node_name: str) -> dict[str, str] | None:
        chosen = self._nodes.get(node_name)
        return None if chosen is None else position(chosen.labels)


class TopologyHint:
    """Binder side: one patch of the pod's annotations."""

    name = PLUGIN

    async def pre_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        told = annotations_for_plugin(bind_request, self.name)
        where = {LEVELS[level]: value for level, value in told.items() if level in LEVELS}
        if where:
            await ctx.annotate(pod, where)

    async def rollback(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        if annotations_for_plugin(bind_request, self.name):
            await ctx.annotate(pod, dict.fromkeys(LEVELS.values()))
