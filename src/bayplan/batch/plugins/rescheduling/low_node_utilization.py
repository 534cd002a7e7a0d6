"""The strategy `lowNodeUtilization` of `rescheduling`: moves tasks from busy nodes to idle nodes.

A node is low if it is schedulable and all of its real usage is below `thresholds`. It is high if some usage is above
`targetThresholds`. Tasks are evicted from high nodes, the busiest first, in eviction order. The eviction of a node ends
when it is below its target or the low nodes have no capacity left up to theirs. Usage is an average over a period, in
percent. Thresholds are whole numbers for `cpu` and `memory`; the default is 100.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bayplan.batch.config.arguments import Arguments
from bayplan.batch.model.nodes import Node
from bayplan.batch.model.qos import qos_of
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.codec.quantity import Quantity, parse_quantity
from bayplan.objects.core import Pod
from bayplan.objects.meta import ResourceList
from bayplan.objects.resources import CPU, MEMORY

RESOURCES = (CPU, MEMORY)
_NOTHING = Quantity()


def _all_100() -> dict[str, float]:
    return dict.fromkeys(RESOURCES, 100.0)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds in percent, by resource."""

    low: Mapping[str, float] = field(default_factory=_all_100)
    target: Mapping[str, float] = field(default_factory=_all_100)

    @classmethod
    def of(cls, params: Mapping[str, Any], arguments: Arguments) -> Thresholds:
        """Read the parameters of a strategy. As upstream, an invalid map ends the reading of further keys."""
        found = [_all_100(), _all_100()]
        for key, values in zip(("thresholds", "targetThresholds"), found, strict=True):
            if key not in params:
                continue
            if not isinstance(params[key], Mapping):
                arguments.warn(f"{key} must be a map of resources to percentages; 100 is used")
                break
            values.update(_percentages(key, params[key]))
        return cls(*found)


def _percentages(key: str, given: Mapping[Any, Any]) -> dict[str, float]:
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{key}.{name} must be a whole number of percent, not {value!r}")
    return {name: float(given[name]) for name in RESOURCES if name in given}


class _NodeLoad:
    """Usage of one node in percent."""

    def __init__(self, node: Node, period: str) -> None:
        usage = node.usage
        self.node = node
        self.percent: dict[str, float] = {
            CPU: usage.cpu.get(period, 0.0) if usage is not None else 0.0,
            MEMORY: usage.memory.get(period, 0.0) if usage is not None else 0.0,
        }

    def is_low(self, thresholds: Mapping[str, float]) -> bool:
        if self.node.node.spec.unschedulable:
            return False
        return not any(self.percent[name] >= thresholds[name] for name in RESOURCES)

    def is_high(self, thresholds: Mapping[str, float]) -> bool:
        return any(self.percent[name] > thresholds[name] for name in RESOURCES)

    def is_at(self, thresholds: Mapping[str, float]) -> bool:
        return any(self.percent[name] >= thresholds[name] for name in RESOURCES)

    def amount(self, name: str, percent: float) -> int:
        """The given percentage of the node's allocatable amount, in whole units."""
        status = self.node.node.status
        whole = _units(name, status.allocatable or status.capacity)
        found = percent * float(whole) * 0.01
        return int(found) if math.isfinite(found) else -(2**63)

    def subtract_task(self, task: Task) -> None:
        """Subtract the task's request, as a share of the node's capacity."""
        capacity = self.node.node.status.capacity
        for name, requested in _request_of(task).items():
            part = (Quantity.of_milli(requested) if name == CPU else Quantity.of(requested)).as_float() * 100
            whole = parse_quantity(capacity[name]).as_float() if name in capacity else 0.0
            self.percent[name] -= part / whole if whole else (math.inf if part else math.nan)


def _units(name: str, resources: ResourceList) -> int:
    quantity = parse_quantity(resources[name]) if name in resources else _NOTHING
    return quantity.milli_value() if name == CPU else quantity.value()


def _request_of(task: Task) -> dict[str, int]:
    return {CPU: int(task.resreq.milli_cpu), MEMORY: int(task.resreq.memory)}


class LowNodeUtilization:
    """One run of the strategy."""

    name = "lowNodeUtilization"

    def __init__(self, session: Session, thresholds: Thresholds, period: str) -> None:
        self._session = session
        self._low, self._target = thresholds.low, thresholds.target
        self._period = period

    def victims(self, running: Sequence[Task]) -> list[Task]:
        """Tasks to evict; empty without a high node, without a low node, or if all nodes are low."""
        loads = [_NodeLoad(node, self._period) for node in self._session.nodes]
        low = [load for load in loads if load.is_low(self._low)]
        high = [load for load in loads if not load.is_low(self._low) and load.is_high(self._target)]
        if not low or not high or len(low) == len(loads):
            return []
        spare = {
            name: sum(load.amount(name, self._target[name]) - load.amount(name, load.percent[name]) for load in low)
            for name in RESOURCES
        }
        high.sort(key=lambda load: load.percent[CPU] + load.percent[MEMORY], reverse=True)
        by_name: dict[str, Task] = {}  # as upstream, the task of a pod is found by the pod's name alone
        for task in running:
            by_name.setdefault(task.name, task)
        return [task for load in high for task in self._tasks_to_evict(load, spare, by_name)]

    def _tasks_to_evict(self, load: _NodeLoad, spare: dict[str, int], by_name: Mapping[str, Task]) -> list[Task]:
        found: list[Task] = []
        for pod in sorted((task.pod for task in load.node.tasks.values()), key=_eviction_order):
            if not load.is_at(self._target) or 0 in spare.values():  # a negative amount does not end the loop
                break
            task = by_name.get(pod.metadata.name)
            if task is not None:
                for name, requested in _request_of(task).items():
                    spare[name] -= requested
                load.subtract_task(task)
                found.append(task)
        return found


def _eviction_order(pod: Pod) -> tuple[bool, int, int]:
    priority = pod.spec.priority
    return priority is not None, priority or 0, qos_of(pod)
