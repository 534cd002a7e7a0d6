"""Binds a pod only on a node that the binder knows as well as the scheduler did.

The scheduler says who is to look after the pod and which version of the node it saw. A binder that has seen an older
one asks for the node once; if that is still older, or the node was cordoned meanwhile, it refuses and the scheduler
chooses another node.
"""

from bayplan.binder import BinderHandle, BindingState, BindRequest, RejectBind, annotation_key, plugin_annotations
from bayplan.framework import Cycle, Node, Pod

HANDLER = "nodestate"


class NodeStateSeen:
    """Scheduler side: notes which version of the node the decision was made on."""

    name = "NodeStateSeen"

    def mutate_bind_request(self, cycle: Cycle, node_name: str) -> dict[str, str] | None:
        columns = cycle.snapshot.nodes
        row = columns.index.get(node_name)
        if row is None:
            return None
        return {
            annotation_key(HANDLER, "handler"): HANDLER,
            annotation_key(HANDLER, "resource-version"): columns.nodes[row].metadata.resource_version,
        }


class NodeState:
    """Binder side: refreshes a node that it knows less of, once, and refuses it after that."""

    name = HANDLER

    async def pre_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        told = plugin_annotations(bind_request, self.name)
        if told.get("handler") != self.name:
            return  # an older scheduler, or somebody else's pod
        seen = told.get("resource-version", "")
        if is_older(node, seen):
            node = await ctx.fresh_node(node.name)
            if is_older(node, seen):
                raise RejectBind(f"node {node.name} is known in a version before {seen}, on which the pod was placed")
        if node.spec.unschedulable:
            raise RejectBind(f"node {node.name} was cordoned after the pod was placed")


def is_older(node: Node, seen: str) -> bool:
    known = node.metadata.resource_version
    return seen.isdecimal() and known.isdecimal() and int(known) < int(seen)
