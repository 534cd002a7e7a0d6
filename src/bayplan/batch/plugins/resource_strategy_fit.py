"""The `resource-strategy-fit` plugin: scores nodes with a strategy per resource.

It has three policies. `resources` sets the strategy of each resource; annotations of a pod can replace it. `sra` keeps
tasks away from nodes with scarce resources that they do not request. `proportional` reserves cpu and memory for each
idle device. Cost: a few column operations per resource.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.evaluation.node_columns import WeightedDemand, exceeds_capacity, rows_with_resource
from bayplan.batch.evaluation.node_points import ROW_LOCAL
from bayplan.batch.model.nodes import FloatVector, Nodes
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.framework.api.plugin import MAX_SCORE, Rejection
from bayplan.objects.resources import CPU, MEMORY
from bayplan.snapshot import BoolVector

MOST_ALLOCATED = "MostAllocated"
LEAST_ALLOCATED = "LeastAllocated"
_TYPES = (MOST_ALLOCATED, LEAST_ALLOCATED)
POD_SCORING_TYPE = "volcano.sh/resource-strategy-scoring-type"
POD_RESOURCE_WEIGHTS = "volcano.sh/resource-strategy-weight"
DEFAULT_WEIGHT = 10

_THOUSAND = 1000.0
BoolMatrix = npt.NDArray[np.bool_]
_pod_weights_decoder = msgspec.json.Decoder(dict[str, int | None] | None)


@dataclass(frozen=True, slots=True)
class ResourceStrategy:
    type: str = ""
    weight: int = 0


@dataclass(frozen=True, slots=True)
class ScarceResources:
    """The argument `sra`."""

    enable: bool = False
    resources: str = ""
    weight: int = 0
    resource_weight: dict[str, int] = field(default_factory=dict)

    def weights(self) -> list[tuple[str, int]]:
        """Weights in the order of the list, with duplicates; a weight below zero becomes 1."""
        found = [(name, self.resource_weight.get(name, 1)) for name in _split_names(self.resources)]
        return [(name, weight if weight >= 0 else 1) for name, weight in found]


@dataclass(frozen=True, slots=True)
class ProportionalReserve:
    """The argument `proportional`: the cpu and memory that an idle device reserves."""

    enable: bool = False
    resources: str = ""
    resource_proportion: dict[str, float] = field(default_factory=dict)

    def rates(self) -> dict[str, tuple[float, float]]:
        """Rates of cpu and memory by device; cpu and memory themselves are ignored."""
        devices = (name for name in _split_names(self.resources) if name not in (CPU, MEMORY))
        return {name: (self._rate(f"{name}.cpu"), self._rate(f"{name}.memory")) for name in devices}

    def _rate(self, key: str) -> float:
        rate = self.resource_proportion.get(key, 1.0)
        return 1.0 if rate < 0 else rate


class ResourceStrategyFitPlugin:
    """Scores nodes by strategies and scarcity; filters them by proportion."""

    name = "resource-strategy-fit"
    also_at: ClassVar[tuple[str, ...]] = ("predicate",)
    takes: ClassVar[tuple[Argument, ...]] = (
        Argument("resourceStrategyFitWeight", int | None, DEFAULT_WEIGHT),  # read by `get`, which truncates floats
        Argument("resources", dict[str, ResourceStrategy]),
        Argument("sra", ScarceResources),
        Argument("proportional", ProportionalReserve),
    )

    def __init__(self, arguments: Arguments) -> None:
        weight = arguments.get("resourceStrategyFitWeight", int)
        self._weight = DEFAULT_WEIGHT if weight is None or weight < 0 else weight
        self._strategies = _strategies(arguments)
        scarce = arguments.get("sra", ScarceResources) or ScarceResources()
        self._sra_weight = scarce.weight if scarce.enable else 0
        self._scarce = scarce.weights()
        proportions = arguments.get("proportional", ProportionalReserve) or ProportionalReserve()
        self._rates = proportions.rates() if proportions.enable else None
        self._demands: dict[tuple[object, ...], tuple[WeightedDemand, BoolMatrix, int]] = {}
        self._scarcity_by_demand: dict[tuple[object, ...], FloatVector] = {}

    def on_session_open(self, session: Session) -> None:
        self._session = session
        self._scarcity_base = self._scarcity_base_scores(session.nodes)
        if self._rates is not None:
            self._rows_with_device = {name: rows_with_resource(session.nodes, name) for name in self._rates}
            session.add_predicate_nodes_fn(
                self.name, self._reject_disproportionate, signature=lambda task: task.demand_key, depends_on=ROW_LOCAL
            )
        if self._weight > 0 or self._sra_weight > 0:
            session.add_node_order_nodes_fn(self.name, self._score, signature=_signature, depends_on=ROW_LOCAL)

    # Policy `proportional`

    def _reject_disproportionate(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:
        """Reject rows where a task that requests none of the devices leaves too little cpu or memory for them."""
        rates = self._rates or {}
        if any(task.resreq.get(name) > 0 for name in rates):
            return
        cpu = nodes.idle(CPU) - task.resreq.milli_cpu
        memory = nodes.idle(MEMORY) - task.resreq.memory
        rejected: BoolVector = np.zeros(len(nodes), dtype=np.bool_)
        for name, (cpu_rate, memory_rate) in rates.items():
            idle = nodes.idle(name)
            too_little = (cpu < idle * cpu_rate) | (memory < idle * memory_rate * _THOUSAND * _THOUSAND)
            too_little &= (self._rows_with_device[name][nodes.rows] | (idle != 0)) & ~rejected
            rejected |= too_little
            yield Rejection(too_little, f"proportional of resource {name} check failed", resolvable=False)

    # Scores

    def _score(self, task: Task, nodes: Nodes) -> FloatVector:
        score = np.zeros(len(nodes))
        if self._weight > 0:
            score += self._strategy_scores(task, nodes)
        if self._sra_weight > 0:
            score += self._scarcity_scores(task, nodes)
        return score

    def _strategy_scores(self, task: Task, nodes: Nodes) -> FloatVector:
        demand, least, total_weight = self._demand(task, nodes)
        taken, capacity = demand.used_with_task(nodes), demand.capacity(nodes)
        score = demand.weighted_mean(np.where(least, capacity - taken, taken), capacity, total_weight)
        score *= float(MAX_SCORE) * float(self._weight)
        score[exceeds_capacity(taken, capacity)] = 0.0
        return score

    def _demand(self, task: Task, nodes: Nodes) -> tuple[WeightedDemand, BoolMatrix, int]:
        """The task's weighted requests, a mask of those with LeastAllocated, and the sum of all weights."""
        key = _signature(task)
        known = self._demands.get(key)
        if known is None:
            found = list(self._strategies_for(task))
            weighted = [(name, each) for name, each in found if each.weight and each.type in _TYPES]
            demand = WeightedDemand.of(task, nodes, [(name, each.weight) for name, each in weighted])
            least = np.array([[each.type == LEAST_ALLOCATED] for _, each in weighted], dtype=np.bool_).reshape(-1, 1)
            known = self._demands[key] = (demand, least, sum(each.weight for _, each in found))
        return known

    def _strategies_for(self, task: Task) -> Iterator[tuple[str, ResourceStrategy]]:
        """The strategies of the task's requested resources, from the pod's annotations or the arguments."""
        scoring_type = task.pod.metadata.annotations.get(POD_SCORING_TYPE, "")
        weights = _weights_of(task) if scoring_type else {}
        for resource in task.resreq.names():
            if not scoring_type:
                found = _matching_strategy(resource, self._strategies)
                if found is not None:
                    yield resource, found
            elif resource in weights:
                yield resource, ResourceStrategy(scoring_type, weights[resource])

    def _scarcity_scores(self, task: Task, nodes: Nodes) -> FloatVector:
        """Higher where a node has fewer scarce resources; 0 if it lacks a requested resource."""
        known = self._scarcity_by_demand.get(task.demand_key)
        if known is None:  # allocatable amounts do not change during a session
            all_nodes = self._session.nodes
            known = self._scarcity_base.copy()
            for resource in task.resreq.names():
                known[all_nodes.allocatable(resource) == 0] = 0.0
            self._scarcity_by_demand[task.demand_key] = known
        return known[nodes.rows]

    def _scarcity_base_scores(self, nodes: Nodes) -> FloatVector:
        present = np.zeros(len(nodes))
        for name, weight in dict(self._scarce).items():
            present += np.where(nodes.allocatable(name) > 0, float(weight), 0.0)
        total = sum(weight for _, weight in self._scarce)
        return (1.0 - present / total if total > 0 else present) * float(MAX_SCORE * self._sra_weight)


def _signature(task: Task) -> tuple[object, ...]:
    annotations = task.pod.metadata.annotations
    return task.demand_key, annotations.get(POD_SCORING_TYPE), annotations.get(POD_RESOURCE_WEIGHTS)


def _strategies(arguments: Arguments) -> dict[str, ResourceStrategy]:
    given = arguments.get("resources", dict[str, ResourceStrategy]) or {
        CPU: ResourceStrategy(LEAST_ALLOCATED, 1),
        MEMORY: ResourceStrategy(LEAST_ALLOCATED, 1),
    }
    found = {}
    for name, strategy in given.items():
        if "*" in name and (name == "*" or name.find("*") != len(name) - 1):
            arguments.warn(f"resources: {name} is ignored; one * is allowed, at the end of a name")
            continue
        kind = strategy.type if strategy.type in _TYPES else LEAST_ALLOCATED
        found[name] = ResourceStrategy(kind, strategy.weight if strategy.weight > 0 else 1)
    return found


def _matching_strategy(resource: str, strategies: dict[str, ResourceStrategy]) -> ResourceStrategy | None:
    """The strategy with exactly this name, else the one with the longest matching prefix."""
    exact = strategies.get(resource)
    if exact is not None:
        return exact
    matching = [name for name in strategies if name.endswith("*") and resource.startswith(name[:-1])]
    return strategies[max(matching, key=len)] if matching else None


def _weights_of(task: Task) -> dict[str, int]:
    """The weights in the pod's annotation; empty if it is missing or a value is not a whole number."""
    text = task.pod.metadata.annotations.get(POD_RESOURCE_WEIGHTS, "")
    try:
        found = _pod_weights_decoder.decode(text) or {} if text else {}
    except msgspec.MsgspecError:
        return {}
    weights = {name: weight or 0 for name, weight in found.items()}
    return weights if all(-(2**63) <= weight < 2**63 for weight in weights.values()) else {}


def _split_names(names: str) -> list[str]:
    return [name for each in names.split(",") if (name := each.strip())]
