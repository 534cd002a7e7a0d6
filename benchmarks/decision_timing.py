"""How long does one decision take? Pods of a workload, one after the other, each from the engine's door to its node.

A decision is timed from the pod handed to the engine until it is assumed, records and timings on; what a queue does
when a pod enters (`PodEngine.prepare`) is done before. The garbage collector runs as it does in any process: it is on,
nothing is frozen, and what it takes is in the figures. Only the litter of setting up is swept first. Beside the time of
the clock stands the processor's: on a machine that does other things too, the two drift apart. And between blocks of
decisions the loop of the calibration runs, to know what the machine was worth at that time.
"""

from __future__ import annotations

import gc
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns, thread_time_ns
from typing import Any

from msgspec.structs import replace

from bayplan.app import configured, known_plugins
from bayplan.cache import Cache
from bayplan.clock import SystemClock
from bayplan.errors import BayplanError
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Pod
from bayplan.objects.kinds import convert
from bayplan.objects.meta import KubeObject
from bayplan.scheduler.engine import PodEngine, ScheduleResult
from bayplan.snapshot import PodInfo
from benchmarks import clusters
from benchmarks.calibration import pace
from benchmarks.workloads import Workload

_BLOCK = 25
"""Pods that one engine decides before the machine's pace is looked at, and before the other engine has its turn where
two are held against each other."""
_ADDED = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{{plugins: {{multiPoint: {{enabled: [{{name: {}}}]}}}}}}]
"""

Progress = Callable[[str], None]


class Undecided(BayplanError):
    """A pod of a workload did not end as every pod of it must."""


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision, and what it took."""

    took_us: float
    cpu_us: float
    placed: ScheduleResult


@dataclass(frozen=True, slots=True)
class Latencies:
    """What a series of decisions took, in microseconds."""

    took_us: Sequence[float]
    cpu_us: Sequence[float] = ()
    """The same in time of the processor, where that was measured."""
    paces: Sequence[float] = ()
    """What the machine's calibration was in between, where budgets are about it."""

    @classmethod
    def of(cls, decisions: Sequence[Decided], paces: Sequence[float] = ()) -> Latencies:
        return cls([each.took_us for each in decisions], [each.cpu_us for each in decisions], paces)

    @property
    def pace(self) -> float:
        """The machine's calibration while this was measured."""
        return statistics.median(self.paces)

    @property
    def cpu_p50_us(self) -> float | None:
        return Latencies(self.cpu_us).p50_us if self.cpu_us else None

    @property
    def p50_us(self) -> float:
        return self.percentile(0.50)

    @property
    def p99_us(self) -> float:
        return self.percentile(0.99)

    @property
    def per_s(self) -> float:
        return 1e6 / statistics.fmean(self.took_us)

    def percentile(self, share: float) -> float:
        """The value below which such a share lies: one of those measured, never an average of two."""
        ordered = sorted(self.took_us)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# clusters


def filled(workload: Workload, nodes: int, pods: int) -> Cache:
    """The cluster of a workload before its first pod."""
    cache = Cache()
    for node in clusters.as_nodes(workload.node(number) for number in range(nodes)):
        cache.add_node(node)
    for pod in clusters.as_pods(clusters.daemons(nodes)):
        cache.add_pod(pod)
    for item in workload.around(nodes, pods):
        if isinstance(item, KubeObject):
            cache.upsert(item)
        else:
            cache.add_pod(convert(item, Pod))
    return cache


def engine_on(
    cache: Cache,
    *,
    share: bool = True,
    seed: int = 0,
    plugin: type[Any] | None = None,
    registry: Registry | None = None,
) -> PodEngine:
    """The default profile on a cluster; a plugin may be added to it, and other plugins may stand behind its names.

    All nodes are looked at. Without `share` every pod is evaluated in full.
    """
    ours = plugin is None and registry is None
    registry = registry or known_plugins()
    if plugin is not None:
        registry = registry.with_plugins(plugin)
    configuration = configured(None if plugin is None else _ADDED.format(plugin.name), registry)
    if not ours:
        configuration = replace(configuration, percentage_of_nodes_to_score=100)
    return PodEngine(configuration, registry, cache, clock=SystemClock(), chance=random.Random(seed), share=share)


def pods_of(workload: Workload, count: int, *, first: int = 0) -> list[Pod]:
    return [convert(workload.pod(number), Pod) for number in range(first, first + count)]


# decisions


def decide(engine: PodEngine, waiting: Iterable[PodInfo], workload: Workload) -> Iterator[Decided]:
    """Decide pod after pod."""
    for info in waiting:
        start_cpu, start = thread_time_ns(), perf_counter_ns()
        placed = engine.place(info)
        took_ns, cpu_ns = perf_counter_ns() - start, thread_time_ns() - start_cpu
        _check(placed, info, workload)
        if workload.preempts:  # each pod meets the same full cluster: nobody is evicted, nobody waits for room
            engine.nominator.delete_nomination(info.uid)
        yield Decided(took_ns / 1e3, cpu_ns / 1e3, placed)


def _check(placed: ScheduleResult, info: PodInfo, workload: Workload) -> None:
    found = placed.decision.nominated_node_name if workload.preempts else placed.node
    if not found:
        raise Undecided(f"pod {info.key} has no node: {placed.status.message}")


def run(
    workload: Workload, nodes: int, pods: int, *, seed: int = 0, plugin: type[Any] | None = None
) -> tuple[Latencies, PodEngine]:
    """Decide the pods of a workload; what it took, and the engine with the cluster as it then is."""
    engine = engine_on(filled(workload, nodes, pods), seed=seed, plugin=plugin)
    waiting = [engine.prepare(pod) for pod in pods_of(workload, pods)]
    gc.collect()
    decisions: list[Decided] = []
    paces = []
    for start in range(0, pods, _BLOCK):
        paces.append(pace())
        decisions += decide(engine, waiting[start : start + _BLOCK], workload)
    return Latencies.of(decisions, paces), engine


@dataclass(frozen=True, slots=True)
class Compared:
    """The same pods, with answers shared between those that are alike, and without."""

    shared: Latencies
    full: Latencies
    engine: PodEngine

    @property
    def ratio(self) -> float:
        return self.shared.p50_us / self.full.p50_us


def compare(workload: Workload, nodes: int, pods: int, *, seed: int = 0) -> Compared:
    """Decide the pods of a workload twice, on two clusters, in turns: whatever disturbs the machine disturbs both."""
    engines = [engine_on(filled(workload, nodes, pods), share=share, seed=seed) for share in (True, False)]
    queues = [[engine.prepare(pod) for pod in pods_of(workload, pods)] for engine in engines]
    gc.collect()
    shared: list[Decided] = []
    full: list[Decided] = []
    paces = []
    for start in range(0, pods, _BLOCK):
        paces.append(pace())
        for engine, queue, decisions in zip(engines, queues, (shared, full), strict=True):
            decisions += decide(engine, queue[start : start + _BLOCK], workload)
        if [each.placed.node for each in shared] != [each.placed.node for each in full]:
            raise Undecided(f"sharing answers chose other nodes, up to pod {start + _BLOCK}")
    return Compared(Latencies.of(shared, paces), Latencies.of(full, paces), engines[0])
