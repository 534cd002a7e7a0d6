"""Growth of a decision with the cluster: the same pods on clusters of 500 to 15,000 nodes.

The exponent is the slope of the medians in double logarithm: 1.0 grows as fast as the nodes, 0.0 does not grow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.decision_timing import run
from benchmarks.workloads import WORKLOADS

NODES = (500, 1000, 2000, 5000, 10_000, 15_000)
NAMES = ("basic_identical", "all_different")
PODS = 300
EXPONENT_AT_MOST = 1.0


@dataclass(frozen=True, slots=True)
class Growth:
    """The median decision by the number of nodes."""

    workload: str
    p50_us: Mapping[int, float]

    @property
    def exponent(self) -> float:
        """The slope through all sizes."""
        sizes = [math.log(nodes) for nodes in self.p50_us]
        times = [math.log(each) for each in self.p50_us.values()]
        return statistics.linear_regression(sizes, times).slope

    @property
    def holds(self) -> bool:
        return self.exponent <= EXPONENT_AT_MOST


def measure_growth(
    name: str, *, sizes: Sequence[int] = NODES, pods: int = PODS, progress: Callable[[str], None] = lambda _: None
) -> Growth:
    found = {}
    for nodes in sizes:
        progress(f"growth of {name}: {nodes:,} nodes")
        found[nodes] = run(WORKLOADS[name], nodes, pods)[0].p50_us
    return Growth(name, found)
