"""The `nodeorder` plugin: scores nodes with kube-scheduler's score plugins and Volcano's weights."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.evaluation.framework_adapter import (
    FrameworkScores,
    FrameworkSignatures,
    cached_plugin,
    limit_affinity_rows,
)
from bayplan.batch.evaluation.node_points import NODE_STATIC
from bayplan.batch.handle import BatchHandle
from bayplan.batch.model.nodes import FloatVector, Nodes
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import SCORE
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS
from bayplan.snapshot import IntVector

_RESOURCES = ("cpu", "memory")
_BALANCED = ("cpu", "memory", "nvidia.com/gpu")
_DEFAULT_WEIGHTS = {
    "leastrequested": 1,
    "mostrequested": 0,
    "balancedresource": 1,
    "nodeaffinity": 2,
    "podaffinity": 2,
    "tainttoleration": 3,
    "podtopologyspread": 2,
    "imagelocality": 1,
}


class NodeOrderPlugin:
    """Runs ImageLocality per node and the other scorers per batch. A weight of 0 disables a scorer."""

    name = "nodeorder"
    takes: ClassVar[tuple[Argument, ...]] = (
        *(Argument(f"{key}.weight", int, default) for key, default in _DEFAULT_WEIGHTS.items()),
    )

    def __init__(self, arguments: Arguments, handle: BatchHandle) -> None:
        self._handle = handle
        self._weights = {key: arguments.get_int(f"{key}.weight", default) for key, default in _DEFAULT_WEIGHTS.items()}

    @classmethod
    def factory(cls, arguments: Arguments, handle: BatchHandle) -> NodeOrderPlugin:
        return cls(arguments, handle)

    def on_session_open(self, session: Session) -> None:
        self._session = session
        scorers = self._scorers()
        signatures = FrameworkSignatures(session, (plugin for plugin, _ in scorers))

        def make(task: Task) -> FrameworkScores:
            return FrameworkScores(session, task, scorers)

        session.add_batch_node_order_factory(self.name, make, signatures.signature)
        if self._weights["imagelocality"]:
            self._images = cached_plugin(self._handle, self.name, "ImageLocality")
            session.add_node_order_nodes_fn(
                self.name,
                self._image_locality,
                signature=FrameworkSignatures(session, [self._images]).signature,
                depends_on=NODE_STATIC,
            )

    def _scorers(self) -> list[tuple[Any, int]]:
        handle, weights = self._handle, self._weights
        balanced = cached_plugin(
            handle,
            self.name,
            "NodeResourcesBalancedAllocation",
            {"resources": [{"name": name, "weight": 1} for name in _BALANCED]},
        )
        balanced.scores_improvement = False
        affinity = cached_plugin(handle, NodeOrderPlugin.name, "InterPodAffinity", {"hardPodAffinityWeight": 0})
        limit_affinity_rows(affinity, self._session.snapshot)
        found = [
            (_resources_fit_plugin(handle, "LeastAllocated", 50), weights["leastrequested"]),
            (_resources_fit_plugin(handle, "MostAllocated", 1), weights["mostrequested"]),
            (balanced, weights["balancedresource"]),
            (cached_plugin(handle, NodeOrderPlugin.name, "NodeAffinity"), weights["nodeaffinity"]),
            (affinity, weights["podaffinity"]),
            (cached_plugin(handle, NodeOrderPlugin.name, "TaintToleration"), weights["tainttoleration"]),
            (
                cached_plugin(handle, NodeOrderPlugin.name, "PodTopologySpread", {"defaultingType": "System"}),
                weights["podtopologyspread"],
            ),
        ]
        return [(plugin, weight) for plugin, weight in found if weight]

    def _image_locality(self, task: Task, nodes: Nodes) -> FloatVector:
        try:
            scores: IntVector = self._images.score_nodes(Cycle(task.info, self._session.snapshot), nodes.table)
        except PLUGIN_EXCEPTIONS as fault:
            self._session.record_plugin_fault(self._images.name, fault, SCORE.key)
            return np.zeros(len(nodes))
        return scores.astype(np.float64) * float(self._weights["imagelocality"])


def _resources_fit_plugin(handle: BatchHandle, strategy: str, weight: int) -> Any:
    resources = [{"name": name, "weight": weight} for name in _RESOURCES]
    return cached_plugin(
        handle,
        NodeOrderPlugin.name,
        "NodeResourcesFit",
        {"scoringStrategy": {"type": strategy, "resources": resources}},
    )
