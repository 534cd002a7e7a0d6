"""Cost of a third-party plugin that evaluates one node at a time, apart from its own time.

The plugin does almost no work, so the additional time of its profile over the default one is the framework's: calling
it, checking its results, combining them, and evaluating every pod in full, because the results of such a plugin are not
shared. Its own time is that of a plain loop over the same calls, and is subtracted. All times are processor time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import thread_time_ns
from typing import Any

from bayplan.framework import Cycle, NodeInfo, Status, unschedulable
from bayplan.objects.core import Pod
from bayplan.scheduler.engine import PodEngine
from benchmarks.decision_timing import Latencies, pods_of, run
from benchmarks.workloads import ONE_NODE_US, Workload

_ROUNDS = 15


class Simple:
    """A filter and a score in the simplest form."""

    name = "Simple"

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:  # noqa: ARG002
        return unschedulable("node(s) have an unlucky name") if node.name.endswith("7") else None

    def score(self, cycle: Cycle, node: NodeInfo) -> int:  # noqa: ARG002
        return len(node.name)


@dataclass(frozen=True, slots=True)
class Cost:
    """Additional time of a decision with the plugin, and how much of that is the plugin itself."""

    asked: int
    """Nodes that the plugin evaluated, at all extension points together."""
    more_us: float
    own_us: float

    @property
    def us_a_node(self) -> float:
        """Time that the framework adds for each node that is left when the plugin runs."""
        return max(self.more_us - self.own_us, 0.0) / self.asked

    def holds(self, calibration: float) -> bool:
        return self.us_a_node <= ONE_NODE_US * calibration


def measure_cost(workload: Workload, nodes: int, pods: int) -> tuple[Latencies, PodEngine, Cost]:
    """Decide the pods of a workload with the plugin, and without."""
    bare, engine = run(workload, nodes, pods)
    engine.close()
    latencies, engine = run(workload, nodes, pods, plugin=Simple)
    asked, own_us = own_time(engine, pods_of(workload, 1, first=pods)[0])
    return latencies, engine, Cost(asked, (latencies.cpu_p50_us or 0.0) - (bare.cpu_p50_us or 0.0), own_us)


def own_time(engine: PodEngine, pod: Pod) -> tuple[int, float]:
    """How many nodes the plugin evaluates for a pod, and its own time for all of them."""
    simple, cycle = Simple(), engine.begin(pod)
    nodes = list(cycle.snapshot.table)
    left = [node for node in nodes if simple.filter(cycle, node) is None]
    times = [_asking(simple.filter, cycle, nodes) + _asking(simple.score, cycle, left) for _ in range(_ROUNDS)]
    return len(nodes) + len(left), statistics.median(times)


def _asking(question: Callable[[Cycle, NodeInfo], Any], cycle: Cycle, nodes: list[NodeInfo]) -> float:
    start = thread_time_ns()
    for node in nodes:
        question(cycle, node)
    return (thread_time_ns() - start) / 1e3
