"""Metrics of a simulation, in memory that does not grow with the trace.

Means are weighted by time. Waiting times are counted in buckets that grow by five percent, so quantiles have an error
of at most five percent. Fairness is Jain's index over the dominant shares of tenants with running or waiting pods: 1 if
all are equal, 1/n if one has everything.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import accumulate, repeat

from bayplan.sim.traces.trace_files import TraceNode, TracePod, gpu_capacity

_MIN_WAIT_S = 1e-3
_WAIT_BUCKETS_S = tuple(accumulate(repeat(1.05, 1_000), operator.mul, initial=_MIN_WAIT_S))
"""Each bound is five percent above the previous one. Products are equal on every machine, logarithms are not."""


@dataclass(frozen=True, slots=True)
class Sample:
    """State of the cluster at one moment. Shares are fractions of the capacity, from 0 to 1."""

    at_s: float
    cpu: float
    memory: float
    gpu: float
    fragmentation: float  # share of all GPUs that is free and that a typical pod cannot use
    running: int
    waiting: int
    fairness: float
    preemptions: int


class WaitTimes:
    """Histogram of waiting times."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.total_s = 0.0
        self.longest_s = 0.0

    def record(self, waited_s: float) -> None:
        self.count += 1
        self.total_s += waited_s
        self.longest_s = max(self.longest_s, waited_s)
        self._counts[bisect_left(_WAIT_BUCKETS_S, waited_s)] += 1

    @property
    def mean_s(self) -> float:
        return self.total_s / self.count if self.count else 0.0

    def quantile_s(self, share: float) -> float:
        """Upper bound of the waiting time of this share of the pods; up to five percent too long."""
        target, counted = share * self.count, 0
        for step in sorted(self._counts):
            counted += self._counts[step]
            if counted >= target:
                return min(_WAIT_BUCKETS_S[step], self.longest_s) if step else 0.0
        return 0.0


class SimulationMetrics:
    """Accumulates metrics from arrivals, placements, ends and evictions."""

    def __init__(self, nodes: Iterable[TraceNode]) -> None:
        nodes = list(nodes)
        self._capacity = (
            sum(node.cpu_milli for node in nodes),
            sum(node.memory_mib for node in nodes),
            gpu_capacity(nodes),
        )
        self._allocated = [0, 0, 0]
        self._tenants: dict[str, list[int]] = {}  # allocated amounts of each tenant, then its number of waiting pods
        self._integrals = [0.0] * 4
        self._started_s = self._since_s = 0.0
        self.waits = WaitTimes()
        self.arrived = self.running = self.finished = self.preemptions = 0

    # Events

    def start(self, at_s: float) -> None:
        """Start the measurement of means."""
        self._started_s = self._since_s = at_s

    def advance_to(self, at_s: float) -> None:
        """Advance the time; the state was constant since the last event."""
        elapsed_s = max(0.0, at_s - self._since_s)
        for place, value in enumerate((*self.shares(), self.fairness())):
            self._integrals[place] += value * elapsed_s
        self._since_s = max(self._since_s, at_s)

    def add_pod(self, pod: TracePod, *, again: bool = False) -> None:
        self.arrived += not again
        self._tenant(pod)[3] += 1

    def place(self, pod: TracePod, waited_s: float) -> None:
        self.waits.record(waited_s)
        self.running += 1
        self._tenant(pod)[3] -= 1
        self._change_allocation(pod, 1)

    def finish(self, pod: TracePod) -> None:
        self.finished += 1
        self._remove(pod)

    def evict(self, pod: TracePod) -> None:
        self.preemptions += 1
        self._remove(pod)

    def _remove(self, pod: TracePod) -> None:
        self.running -= 1
        self._change_allocation(pod, -1)
        if not any(self._tenant(pod)):
            del self._tenants[pod.tenant]

    def _tenant(self, pod: TracePod) -> list[int]:
        return self._tenants.setdefault(pod.tenant, [0, 0, 0, 0])

    def _change_allocation(self, pod: TracePod, factor: int) -> None:
        for allocated in (self._allocated, self._tenant(pod)):
            for place, amount in enumerate((pod.cpu_milli, pod.memory_mib, pod.gpu_request.total)):
                allocated[place] += factor * amount

    # Results

    def shares(self) -> tuple[float, float, float]:
        """Allocated shares of CPU, memory and GPUs."""
        cpu, memory, gpu = (
            used / total if total else 0.0 for used, total in zip(self._allocated, self._capacity, strict=True)
        )
        return cpu, memory, gpu

    def fairness(self) -> float:
        dominant = [
            max(used / total if total else 0.0 for used, total in zip(tenant[:3], self._capacity, strict=True))
            for tenant in self._tenants.values()
        ]
        squares = math.fsum(share * share for share in dominant)
        return math.fsum(dominant) ** 2 / (len(dominant) * squares) if squares else 1.0

    def sample(self, at_s: float, waiting: int, fragmentation: float) -> Sample:
        return Sample(at_s, *self.shares(), fragmentation, self.running, waiting, self.fairness(), self.preemptions)

    def totals(self, waiting: int) -> SimulationTotals:
        duration_s = self._since_s - self._started_s
        now = (*self.shares(), self.fairness())  # the current values replace means over no time
        integrals = zip(self._integrals, now, strict=True)
        cpu, memory, gpu, fairness = (integral / duration_s if duration_s else value for integral, value in integrals)
        waits = self.waits
        return SimulationTotals(
            seconds=duration_s,
            arrived=self.arrived,
            placed=waits.count,
            finished=self.finished,
            running=self.running,
            waiting=waiting,
            preemptions=self.preemptions,
            cpu_mean=cpu,
            memory_mean=memory,
            gpu_mean=gpu,
            fairness_mean=fairness,
            wait_mean_s=waits.mean_s,
            wait_median_s=waits.quantile_s(0.5),
            wait_p95_s=waits.quantile_s(0.95),
            wait_longest_s=waits.longest_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationTotals:
    """Totals of a simulation. Means are over time; waits are over placements."""

    seconds: float
    arrived: int
    placed: int
    finished: int
    running: int
    waiting: int
    preemptions: int
    cpu_mean: float
    memory_mean: float
    gpu_mean: float
    fairness_mean: float
    wait_mean_s: float
    wait_median_s: float
    wait_p95_s: float
    wait_longest_s: float

    def as_data(self) -> dict[str, int | float]:
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(self).items()}
