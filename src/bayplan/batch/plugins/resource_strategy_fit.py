"""Is a full or an empty node better for this task, resource by resource, and which nodes are too good for it?

Three policies in one: the strategy of each resource (`resources`; a pod's annotations can replace it), keeping tasks
off nodes with scarce resources that they do not ask for (`sra`), and keeping enough cpu and memory beside each idle
device for those who will come for it (`proportional`). Cost: a few column operations a resource.
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
    """How one resource is scored."""

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
        """In the order of the list, a name that is there twice twice; below zero counts as 1."""
        found = [(name, self.resource_weight.get(name, 1)) for name in _listed(self.resources)]
        return [(name, weight if weight >= 0 else 1) for name, weight in found]


@dataclass(frozen=True, slots=True)
class ProportionalReserve:
    """The argument `proportional`: how much cpu and memory an idle device keeps for itself."""

    enable: bool = False
    resources: str = ""
    resource_proportion: dict[str, float] = field(default_factory=dict)

    def rates(self) -> dict[str, tuple[float, float]]:
        """Of cpu and memory, by device; these two themselves are no devices."""
        devices = (name for name in _listed(self.resources) if name not in (CPU, MEMORY))
        return {name: (self._rate(f"{name}.cpu"), self._rate(f"{name}.memory")) for name in devices}

    def _rate(self, key: str) -> float:
        rate = self.resource_proportion.get(key, 1.0)
        return 1.0 if rate < 0 else rate


class ResourceStrategyFitPlugin:
    """Scores nodes by strategies, scarcity and proportion."""

    name = "resource-strategy-fit"
    also_at: ClassVar[tuple[str, ...]] = ("predicate",)
    takes: ClassVar[tuple[Argument, ...]] = (
        Argument("resourceStrategyFitWeight", int | None, DEFAULT_WEIGHT),  # read by `get`, which cuts floats
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
        self._spared_by_demand: dict[tuple[object, ...], FloatVector] = {}

    def on_session_open(self, session: Session) -> None:
        self._session = session
        self._spare = self._spare_scores(session.nodes)
        if self._rates is not None:
            self._offered = {name: rows_with_resource(session.nodes, name) for name in self._rates}
            session.add_predicate_nodes_fn(
                self.name, self._reject_disproportionate, signature=lambda task: task.demand_key, depends_on=ROW_LOCAL
            )
        if self._weight > 0 or self._sra_weight > 0:
            session.add_node_order_nodes_fn(self.name, self._score, signature=_signature, depends_on=ROW_LOCAL)

    # proportional -----------------------------------------------------------------------------------------------

    def _reject_disproportionate(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:
        """Rows on which a task that asks for none of the devices would leave too little beside them."""
        rates = self._rates or {}
        if any(task.resreq.get(name) > 0 for name in rates):
            return
        cpu = nodes.idle(CPU) - task.resreq.milli_cpu
        memory = nodes.idle(MEMORY) - task.resreq.memory
        judged: BoolVector = np.zeros(len(nodes), dtype=np.bool_)
        for name, (cpu_rate, memory_rate) in rates.items():
            idle = nodes.idle(name)
            short = (cpu < idle * cpu_rate) | (memory < idle * memory_rate * _THOUSAND * _THOUSAND)
            short &= (self._offered[name][nodes.rows] | (idle != 0)) & ~judged
            judged |= short
            yield Rejection(short, f"proportional of resource {name} check failed", resolvable=False)

    # scores -----------------------------------------------------------------------------------------------------

    def _score(self, task: Task, nodes: Nodes) -> FloatVector:
        score = np.zeros(len(nodes))
        if self._weight > 0:
            score += self._strategic(task, nodes)
        if self._sra_weight > 0:
            score += self._scarcity_scores(task, nodes)
        return score

    def _strategic(self, task: Task, nodes: Nodes) -> FloatVector:
        demand, least, total_weight = self._demand(task, nodes)
        taken, capacity = demand.used_with_task(nodes), demand.capacity(nodes)
        score = demand.weighted_mean(np.where(least, capacity - taken, taken), capacity, total_weight)
        score *= float(MAX_SCORE) * float(self._weight)
        score[exceeds_capacity(taken, capacity)] = 0.0
        return score

    def _demand(self, task: Task, nodes: Nodes) -> tuple[WeightedDemand, BoolMatrix, int]:
        """What counts of what the task asks for, which of it is better left alone, and the sum of all weights."""
        key = _signature(task)
        known = self._demands.get(key)
        if known is None:
            found = list(self._strategies_for(task))
            counting = [(name, each) for name, each in found if each.weight and each.type in _TYPES]
            demand = WeightedDemand.of(task, nodes, [(name, each.weight) for name, each in counting])
            least = np.array([[each.type == LEAST_ALLOCATED] for _, each in counting], dtype=np.bool_).reshape(-1, 1)
            known = self._demands[key] = (demand, least, sum(each.weight for _, each in found))
        return known

    def _strategies_for(self, task: Task) -> Iterator[tuple[str, ResourceStrategy]]:
        """What the task asks for and somebody has said how to score."""
        own = task.pod.metadata.annotations.get(POD_SCORING_TYPE, "")
        weights = _weights_of(task) if own else {}
        for resource in task.resreq.names():
            if not own:
                found = _matching_strategy(resource, self._strategies)
                if found is not None:
                    yield resource, found
            elif resource in weights:
                yield resource, ResourceStrategy(own, weights[resource])

    def _scarcity_scores(self, task: Task, nodes: Nodes) -> FloatVector:
        """High where a node has few of the scarce resources; 0 where it lacks something that the task asks for."""
        known = self._spared_by_demand.get(task.demand_key)
        if known is None:  # what nodes offer stays as it is for the whole session
            every = self._session.nodes
            known = self._spare.copy()
            for resource in task.resreq.names():
                known[every.allocatable(resource) == 0] = 0.0
            self._spared_by_demand[task.demand_key] = known
        return known[nodes.rows]

    def _spare_scores(self, nodes: Nodes) -> FloatVector:
        present = np.zeros(len(nodes))
        for name, weight in dict(self._scarce).items():
            present += np.where(nodes.allocatable(name) > 0, float(weight), 0.0)
        total = sum(weight for _, weight in self._scarce)
        return (1.0 - present / total if total > 0 else present) * float(MAX_SCORE * self._sra_weight)


def _signature(task: Task) -> tuple[object, ...]:
    own = task.pod.metadata.annotations
    return task.demand_key, own.get(POD_SCORING_TYPE), own.get(POD_RESOURCE_WEIGHTS)


def _strategies(arguments: Arguments) -> dict[str, ResourceStrategy]:
    given = arguments.get("resources", dict[str, ResourceStrategy]) or {
        CPU: ResourceStrategy(LEAST_ALLOCATED, 1),
        MEMORY: ResourceStrategy(LEAST_ALLOCATED, 1),
    }
    found = {}
    for name, strategy in given.items():
        if "*" in name and (name == "*" or name.find("*") != len(name) - 1):
            arguments.warn(f"resources: {name} is passed over; one * is allowed, at the end of a name")
            continue
        kind = strategy.type if strategy.type in _TYPES else LEAST_ALLOCATED
        found[name] = ResourceStrategy(kind, strategy.weight if strategy.weight > 0 else 1)
    return found


def _matching_strategy(resource: str, strategies: dict[str, ResourceStrategy]) -> ResourceStrategy | None:
    """The strategy of exactly this name, else of the longest beginning."""
    exact = strategies.get(resource)
    if exact is not None:
        return exact
    fitting = [name for name in strategies if name.endswith("*") and resource.startswith(name[:-1])]
    return strategies[max(fitting, key=len)] if fitting else None


def _weights_of(task: Task) -> dict[str, int]:
    """The weights that a pod brings along; none where they are missing or are not whole numbers."""
    text = task.pod.metadata.annotations.get(POD_RESOURCE_WEIGHTS, "")
    try:
        found = _pod_weights_decoder.decode(text) or {} if text else {}
    except msgspec.MsgspecError:
        return {}
    weights = {name: weight or 0 for name, weight in found.items()}
    return weights if all(-(2**63) <= weight < 2**63 for weight in weights.values()) else {}


def _listed(names: str) -> list[str]:
    return [name for each in names.split(",") if (name := each.strip())]
