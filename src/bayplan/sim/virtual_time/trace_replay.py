"""Replays a trace in virtual time: arrivals from the trace, departures when pods have run, decisions by an engine.

The trace is read as time goes on, so it may be as long as it likes: what is kept are the pods that wait or run.
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
    """A cluster with an engine that places pods: `sim.world` and `sim.batch_world` are two."""

    @property
    def clock(self) -> ManualClock: ...
    @property
    def waiting(self) -> int: ...
    def next_wakeup_s(self) -> float | None: ...
    def advance_to(self, at_s: float) -> None: ...
    def nodes(self) -> NodeColumns: ...
    def make_pod(self, pod: TracePod, uid: str) -> Pod: ...
    def add_pod(self, made: Pod, pod: TracePod) -> None: ...
    def remove_pod(self, pod: Pod) -> None: ...
    def schedule(self) -> None: ...


SimulationFactory = Callable[[Callable[[Pod], None], Callable[[Pod], None]], SimulatedCluster]
"""Makes a world; the two are told of pods that were placed and of pods that were evicted."""


@dataclass(slots=True)
class _TracedPod:
    """A pod of the trace that waits or runs."""

    pod: TracePod
    since_s: float  # since when it waits
    ends_s: float = _NEVER_S
    placed: Pod | None = None


class PodShapeCounts:
    """Which pods usually come, learnt as they come. The rarest are forgotten when there are too many kinds."""

    def __init__(self) -> None:
        self._counts: dict[GpuPodShape, int] = {}

    def record(self, pod: TracePod) -> None:
        shape = pod_shape(pod)
        self._counts[shape] = self._counts.get(shape, 0) + 1
        if len(self._counts) > _MAX_SHAPES:
            kept = sorted(self._counts.items(), key=lambda each: (each[1], each[0]), reverse=True)
            self._counts = dict(kept[: _MAX_SHAPES // 2])

    def typical(self) -> TypicalPods:
        return TypicalPods.most_of(self._counts)


class TraceReplay:
    """One trace on one world."""

    def __init__(self, nodes: Iterable[TraceNode], make: SimulationFactory) -> None:
        self._nodes = list(nodes)
        self._gpus = gpu_capacity(self._nodes)
        self._world = make(self._placed, self._evicted)
        self._meter = SimulationMetrics(self._nodes)
        self._shapes = PodShapeCounts()
        self._lives: dict[str, _TracedPod] = {}
        self._endings: list[tuple[float, int, str]] = []
        self._number = 0

    @property
    def started(self) -> int:
        """How many pods have come so far; one that was evicted has come again."""
        return self._number

    @property
    def live_count(self) -> int:
        """Pods that wait or run, and endings that are still to come."""
        return len(self._lives) + len(self._endings)

    def run(self, pods: Iterable[TracePod], *, every_s: float, sink: Callable[[Sample], None]) -> SimulationTotals:
        """To the end of the trace, and on until all that end have ended. A sample every so often goes to the sink."""
        arrivals = iter(pods)
        coming = next(arrivals, None)
        sample_s = self._begin(0.0 if coming is None else coming.arrival_s)
        while True:
            ending_s = self._endings[0][0] if self._endings else _NEVER_S
            at_s = min(ending_s, coming.arrival_s if coming is not None else _NEVER_S)
            if at_s == _NEVER_S:
                break
            wakeup_s = self._world.next_wakeup_s()
            at_s = min(at_s, max(wakeup_s, self._world.clock.monotonic_s())) if wakeup_s is not None else at_s
            while sample_s <= at_s:
                self._pass_to(sample_s)
                sink(self._sample(sample_s))
                sample_s += every_s
            self._pass_to(at_s)
            self._end(at_s)
            while coming is not None and coming.arrival_s <= at_s:
                self._arrive(coming)
                coming = next(arrivals, None)
            self._world.schedule()
        sink(self._sample(self._world.clock.monotonic_s()))
        return self._meter.totals(self._world.waiting)

    def _begin(self, at_s: float) -> float:
        """Time begins with the first arrival: a table may count from 1970 on, and nothing was measured before."""
        self._meter.start(at_s)
        self._world.advance_to(at_s)
        return at_s

    def _pass_to(self, at_s: float) -> None:
        self._meter.advance_to(at_s)
        self._world.advance_to(at_s)

    def _arrive(self, pod: TracePod, *, again: bool = False) -> None:
        if not again:
            self._shapes.record(pod)
        self._meter.add_pod(pod, again=again)
        uid = f"pod-{self._number}"
        self._number += 1
        self._lives[uid] = _TracedPod(pod, self._world.clock.monotonic_s())
        self._world.add_pod(self._world.make_pod(pod, uid), pod)

    def _placed(self, placed: Pod) -> None:
        life, now_s = self._lives[placed.uid], self._world.clock.monotonic_s()
        life.placed = placed
        self._meter.place(life.pod, now_s - life.since_s)
        if life.pod.duration_s is not None:
            life.ends_s = now_s + life.pod.duration_s
            heapq.heappush(self._endings, (life.ends_s, self._number, placed.uid))

    def _evicted(self, pod: Pod) -> None:
        """It starts anew, from the beginning."""
        life = self._lives.pop(pod.uid)
        self._meter.evict(life.pod)
        self._arrive(life.pod, again=True)

    def _end(self, now_s: float) -> None:
        while self._endings and self._endings[0][0] <= now_s:
            _, _, uid = heapq.heappop(self._endings)
            life = self._lives.pop(uid, None)
            if life is not None and life.placed is not None:  # else it was evicted before its end
                self._meter.finish(life.pod)
                self._world.remove_pod(life.placed)

    def _sample(self, at_s: float) -> Sample:
        return self._meter.sample(at_s, self._world.waiting, self._fragmentation())

    def _fragmentation(self) -> float:
        typical = self._shapes.typical()
        if not self._gpus or not typical.covered:
            return 0.0
        columns = FragmentColumns(TypicalGroups(typical))
        columns.read(self._world.nodes())
        return math.fsum(columns.fragment(row) for row in range(len(self._nodes))) / self._gpus
