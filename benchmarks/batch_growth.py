"""Growth of a batch session with the nodes, the jobs and the queues, one at a time.

The exponent is the slope of the medians in double logarithm, in processor time: sizes are compared with each other, and
other load of the machine would count as growth. More nodes or queues for the same pods may cost at most proportionally
more. More jobs are more pods, so the session grows as they do, and the limit leaves room for noise.
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
    """The quantity that grows while the rest is constant, and the limit of the session's growth."""

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
    name: str, *, quick: bool = False, rounds: int = 3, progress: Callable[[str], None] = lambda _: None
) -> SessionGrowth:
    axis, found = AXES[name], {}
    for size in axis.quick if quick else axis.sizes:
        progress(f"growth {name}: {size:,}")
        nodes, gangs, queues = axis.cluster(size)
        nodes = min(nodes, 100) if quick else nodes
        sessions = place_gangs(nodes, [GANG] * gangs, 1 if quick else rounds, queues)
        found[size] = sessions.cpu_p50_us or sessions.p50_us
    return SessionGrowth(Growth(name, found), None if quick else axis.at_most)
