"""Replays a trace in virtual time: arrivals from the trace, decisions by an engine, ends after the running time.

The trace is read lazily, so it may have any length. Cost: memory for the waiting and running pods.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from bayplan.clock import ManualClock
from bayplan.objects.core import Pod
from bayplan.plugins.gpu.fragment_columns import FragmentColumns
from bayplan.plugins.gpu.typical_pods import GpuPodShape, TypicalGroups, TypicalPods
from bayplan.sim.traces.trace_files import TraceNode, TracePod, gpu_capacity
from bayplan.sim.virtual_time.metrics import Sample, SimulationMetrics, SimulationTotals
from bayplan.sim.virtual_time.policies import pod_shape
from bayplan.snapshot import NodeColumns

_MAX_SHAPES = 4096
_NEVER_S = float("inf")


class SimulatedCluster(Protocol):
    """A cluster with an engine: `PodEngineSimulation` or `BatchEngineSimulation`."""

    @property
    def clock(self) -> ManualClock: ...
    @property
    def waiting(self) -> int: ...
    def next_wakeup_s(self) -> float | None: ...
    def advance_to(self, at_s: float) -> None: ...
    def nodes(self) -> NodeColumns: ...
    def make_pod(self, pod: TracePod, uid: str) -> Pod: ...
    def add_pod(self, pod_object: Pod, pod: TracePod) -> None: ...
    def remove_pod(self, pod: Pod) -> None: ...
    def schedule(self) -> None: ...


SimulationFactory = Callable[[Callable[[Pod], None], Callable[[Pod], None]], SimulatedCluster]
"""Builds a simulated cluster; the callbacks receive placed pods and evicted pods."""


@dataclass(slots=True)
class _TracedPod:
    """A pod of the trace that waits or runs."""

    pod: TracePod
    since_s: float  # start of its waiting time
    ends_s: float = _NEVER_S
    placed: Pod | None = None


class PodShapeCounts:
    """Counts the shapes of arrived pods. The rarest are dropped when there are too many."""

    def __init__(self) -> None:
        self._counts: dict[GpuPodShape, int] = {}

    def record(self, pod: TracePod) -> None:
        shape = pod_shape(pod)
        self._counts[shape] = self._counts.get(shape, 0) + 1
        if len(self._counts) > _MAX_SHAPES:
            most_frequent = sorted(self._counts.items(), key=lambda each: (each[1], each[0]), reverse=True)
            self._counts = dict(most_frequent[: _MAX_SHAPES // 2])

    def typical(self) -> TypicalPods:
        return TypicalPods.most_of(self._counts)


class TraceReplay:
    def __init__(self, nodes: Iterable[TraceNode], factory: SimulationFactory) -> None:
        self._nodes = list(nodes)
        self._gpus = gpu_capacity(self._nodes)
        self._cluster = factory(self._on_placed, self._on_evicted)
        self._metrics = SimulationMetrics(self._nodes)
        self._shapes = PodShapeCounts()
        self._traced_pods: dict[str, _TracedPod] = {}
        self._ends: list[tuple[float, int, str]] = []
        self._number = 0

    @property
    def started(self) -> int:
        """Number of arrivals so far; an evicted pod arrives again."""
        return self._number

    @property
    def live_count(self) -> int:
        """Number of waiting or running pods plus pending ends."""
        return len(self._traced_pods) + len(self._ends)

    def run(self, pods: Iterable[TracePod], *, every_s: float, sink: Callable[[Sample], None]) -> SimulationTotals:
        """Run to the end of the trace and of all pods that end. `sink` receives a sample every `every_s` seconds."""
        arrivals = iter(pods)
        next_pod = next(arrivals, None)
        sample_s = self._begin(0.0 if next_pod is None else next_pod.arrival_s)
        while True:
            end_s = self._ends[0][0] if self._ends else _NEVER_S
            at_s = min(end_s, next_pod.arrival_s if next_pod is not None else _NEVER_S)
            if at_s == _NEVER_S:
                break
            wakeup_s = self._cluster.next_wakeup_s()
            at_s = min(at_s, max(wakeup_s, self._cluster.clock.monotonic_s())) if wakeup_s is not None else at_s
            while sample_s <= at_s:
                self._advance_to(sample_s)
                sink(self._sample(sample_s))
                sample_s += every_s
            self._advance_to(at_s)
            self._finish_pods(at_s)
            while next_pod is not None and next_pod.arrival_s <= at_s:
                self._arrive(next_pod)
                next_pod = next(arrivals, None)
            self._cluster.schedule()
        sink(self._sample(self._cluster.clock.monotonic_s()))
        return self._metrics.totals(self._cluster.waiting)

    def _begin(self, at_s: float) -> float:
        """Start the time with the first arrival: a table may count from 1970, and nothing is measured before."""
        self._metrics.start(at_s)
        self._cluster.advance_to(at_s)
        return at_s

    def _advance_to(self, at_s: float) -> None:
        self._metrics.advance_to(at_s)
        self._cluster.advance_to(at_s)

    def _arrive(self, pod: TracePod, *, again: bool = False) -> None:
        if not again:
            self._shapes.record(pod)
        self._metrics.add_pod(pod, again=again)
        uid = f"pod-{self._number}"
        self._number += 1
        self._traced_pods[uid] = _TracedPod(pod, self._cluster.clock.monotonic_s())
        self._cluster.add_pod(self._cluster.make_pod(pod, uid), pod)

    def _on_placed(self, placed: Pod) -> None:
        traced, now_s = self._traced_pods[placed.uid], self._cluster.clock.monotonic_s()
        traced.placed = placed
        self._metrics.place(traced.pod, now_s - traced.since_s)
        if traced.pod.duration_s is not None:
            traced.ends_s = now_s + traced.pod.duration_s
            heapq.heappush(self._ends, (traced.ends_s, self._number, placed.uid))

    def _on_evicted(self, pod: Pod) -> None:
        """Let an evicted pod arrive again; it runs from the beginning."""
        traced = self._traced_pods.pop(pod.uid)
        self._metrics.evict(traced.pod)
        self._arrive(traced.pod, again=True)

    def _finish_pods(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            _, _, uid = heapq.heappop(self._ends)
            traced = self._traced_pods.pop(uid, None)
            if traced is not None and traced.placed is not None:  # else it was evicted before it ended
                self._metrics.finish(traced.pod)
                self._cluster.remove_pod(traced.placed)

    def _sample(self, at_s: float) -> Sample:
        return self._metrics.sample(at_s, self._cluster.waiting, self._fragmentation())

    def _fragmentation(self) -> float:
        typical = self._shapes.typical()
        if not self._gpus or not typical.covered:
            return 0.0
        columns = FragmentColumns(TypicalGroups(typical))
        columns.read(self._cluster.nodes())
        return math.fsum(columns.fragment(row) for row in range(len(self._nodes))) / self._gpus
