"""Does a session grow with the cluster, with the jobs, with the queues, and how? One of them at a time.

The exponent is the slope of the medians in double logarithm, of time of the processor: sizes are compared with each
other, and whatever else the machine does meanwhile would count as growth. More nodes or queues for the same pods may
cost as much more at the very most; more jobs are more pods, so a session grows as they do, and the limit leaves room
for noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.batch_clusters import GANG
from benchmarks.batch_report import SessionGrowth
from benchmarks.batch_workloads import place_gangs
from benchmarks.growth import Growth


@dataclass(frozen=True, slots=True)
class Axis:
    """What grows, while all else stays; and how fast a session may grow with it."""

    sizes: tuple[int, ...]
    quick: tuple[int, ...]
    at_most: float
    cluster: Callable[[int], tuple[int, int, int]]
    """Nodes, gangs and queues."""


AXES = {
    "by nodes": Axis((500, 1000, 2000, 5000), (50, 100), 1.0, lambda nodes: (nodes, 50, 1)),
    "by jobs": Axis((25, 50, 100, 200), (4, 8), 1.2, lambda jobs: (1000, jobs, 1)),
    "by queues": Axis((1, 4, 16, 64), (1, 4), 1.0, lambda queues: (1000, 64, queues)),
}


def measure_growth(
    name: str, *, quick: bool = False, rounds: int = 3, told: Callable[[str], None] = lambda _: None
) -> SessionGrowth:
    axis, found = AXES[name], {}
    for size in axis.quick if quick else axis.sizes:
        told(f"growth {name}: {size:,}")
        nodes, gangs, queues = axis.cluster(size)
        nodes = min(nodes, 100) if quick else nodes
        sessions = place_gangs(nodes, [GANG] * gangs, 1 if quick else rounds, queues)
        found[size] = sessions.cpu_p50_us or sessions.p50_us
    return SessionGrowth(Growth(name, found), None if quick else axis.at_most)
