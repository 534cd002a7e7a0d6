"""The `binpack` plugin: prefers the node that the task fills most, to avoid fragments of scarce resources.

A node's score is the weighted mean of the used shares after placement, over the requested resources that have a weight.
The score is 0 if the task would exceed the capacity. Cost: a few column operations per resource.
"""

from __future__ import annotations

from typing import ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.evaluation.node_columns import WeightedDemand, exceeds_capacity
from bayplan.batch.evaluation.node_points import ROW_LOCAL
from bayplan.batch.model.nodes import FloatVector, Nodes
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.objects.resources import CPU, MEMORY

RESOURCES = "binpack.resources"


class BinpackPlugin:
    """Best fit: scores the fullest feasible node highest."""

    name = "binpack"
    takes: ClassVar[tuple[Argument, ...]] = (
        Argument("binpack.weight", int, 1),
        Argument("binpack.cpu", int, 1),
        Argument("binpack.memory", int, 1),
        Argument(RESOURCES, str, ""),
        Argument(f"{RESOURCES}.<resource>", int, 1, listed_in=RESOURCES),
    )

    def __init__(self, arguments: Arguments) -> None:
        self.weight = arguments.get_int("binpack.weight", 1)
        self.weights = _weights(arguments)
        self._demands: dict[tuple[object, ...], tuple[WeightedDemand, int]] = {}

    def on_session_open(self, session: Session) -> None:
        if self.weight:
            session.add_node_order_nodes_fn(
                self.name, self._score, signature=lambda task: task.demand_key, depends_on=ROW_LOCAL
            )

    def _score(self, task: Task, nodes: Nodes) -> FloatVector:
        demand, total_weight = self._demand(task, nodes)
        taken, capacity = demand.used_with_task(nodes), demand.capacity(nodes)
        score = demand.weighted_mean(taken, capacity, total_weight)
        score *= float(MAX_SCORE * self.weight)
        score[exceeds_capacity(taken, capacity)] = 0.0
        return score

    def _demand(self, task: Task, nodes: Nodes) -> tuple[WeightedDemand, int]:
        """The task's requests with a nonzero weight, and the sum of the weights of all its requests."""
        known = self._demands.get(task.demand_key)
        if known is None:
            found = [(name, self.weights[name]) for name in task.resreq.names() if name in self.weights]
            weighted = [(name, weight) for name, weight in found if weight]
            known = (WeightedDemand.of(task, nodes, weighted), sum(weight for _, weight in found))
            self._demands[task.demand_key] = known
        return known


def _weights(arguments: Arguments) -> dict[str, int]:
    """Weights by resource: cpu, memory and the listed ones. A weight below zero becomes 1."""
    listed = arguments.get_str(RESOURCES).split(",")
    found = {name: arguments.get_int(f"{RESOURCES}.{name}", 1) for each in listed if (name := each.strip())}
    found[CPU] = arguments.get_int("binpack.cpu", 1)
    found[MEMORY] = arguments.get_int("binpack.memory", 1)
    return {name: weight if weight >= 0 else 1 for name, weight in found.items()}
