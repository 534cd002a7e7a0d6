"""Binds a pod only on a node that the binder knows in a version as new as the scheduler's.

The engine writes the required binder plugin, the version of the node that it saw, and whether that was cordoned. A
binder with an older version reads the node once. If that version is still older, it rejects the request and the engine
chooses another node; also if the node was cordoned meanwhile, unless the pod tolerates that.
"""

from bayplan.batch import Arguments, Session, Task
from bayplan.binder import BinderHandle, BindingState, BindRequest, RejectBind, annotation_key, annotations_for_plugin
from bayplan.framework import Cycle, Node, Pod

HANDLER = "nodestate"
CORDON = "node.kubernetes.io/unschedulable"
"""The taint of a cordoned node, with the effect NoSchedule."""


def seen(node: Node) -> dict[str, str]:
    """The annotations of either engine about the chosen node."""
    return {
        annotation_key(HANDLER, "handler"): HANDLER,
        annotation_key(HANDLER, "resource-version"): node.metadata.resource_version,
        annotation_key(HANDLER, "cordoned"): "true" if node.spec.unschedulable else "false",
    }


class NodeStateSeen:
    """The pod engine's side: writes the version of the node that the decision used."""

    name = "NodeStateSeen"

    def mutate_bind_request(self, cycle: Cycle, node_name: str) -> dict[str, str] | None:
        columns = cycle.snapshot.nodes
        row = columns.index.get(node_name)
        return None if row is None else seen(columns.nodes[row])


class BatchNodeStateSeen:
    """The batch engine's side."""

    name = "node-state-seen"

    def __init__(self, arguments: Arguments) -> None:
        pass

    def on_session_open(self, session: Session) -> None:
        self._nodes = session.nodes
        session.add_bind_request_mutate_fn(self._seen)

    def _seen(self, task: Task, node_name: str) -> dict[str, str] | None:
        chosen = self._nodes.get(node_name)
        return None if chosen is None else seen(chosen.node)


class NodeState:
    """Binder side: reads a node again if its version is older than the scheduler's, and rejects it if it stays so."""

    name = HANDLER

    async def pre_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        values = annotations_for_plugin(bind_request, self.name)
        if values.get("handler") != self.name:
            return  # an older scheduler, or a pod of another scheduler
        version = values.get("resource-version", "")
        if is_older(node, version):
            node = await ctx.read_node(node.name)
            if is_older(node, version):
                raise RejectBind(
                    f"node {node.name} is known in a version before {version}, on which the pod was placed"
                )
        if node.spec.unschedulable and values.get("cordoned") != "true" and not tolerates_cordon(pod):
            raise RejectBind(f"node {node.name} is cordoned by now, which the pod does not tolerate")


def is_older(node: Node, version: str) -> bool:
    known = node.metadata.resource_version
    return version.isdecimal() and known.isdecimal() and int(known) < int(version)


def tolerates_cordon(pod: Pod) -> bool:
    return any(
        each.effect in ("", "NoSchedule")
        and each.key in ("", CORDON)
        and (each.operator == "Exists" or (each.key == CORDON and each.operator in ("", "Equal") and not each.value))
        for each in pod.spec.tolerations
    )
