"""Times single decisions: pods of a workload, one after the other, each from the engine's entry to its node.

A decision is timed from the pod handed to the engine until it is assumed, with records and timings on. The work of a
queue when a pod enters (`PodEngine.prepare`) is done before. The garbage collector runs as in any process: it is on, no
object is frozen, and its time is in the figures. Only the garbage of the setup is collected first. Wall-clock time and
processor time are both recorded, because they differ on a busy machine. The calibration loop runs between blocks of
decisions, to measure the machine's speed at that time.
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
from bayplan.scheduler.cycle.schedule_result import ScheduleResult
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import PodInfo
from benchmarks import clusters
from benchmarks.calibration import pace
from benchmarks.workloads import Workload

_BLOCK = 25
"""Pods that one engine decides before the next calibration, and before the other engine's turn when two are compared.
"""
_ADDED = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{{plugins: {{multiPoint: {{enabled: [{{name: {}}}]}}}}}}]
"""

Progress = Callable[[str], None]


class UnexpectedOutcome(BayplanError):
    """A pod of a workload had another result than the workload prescribes."""


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision and its times."""

    took_us: float
    cpu_us: float
    placed: ScheduleResult


@dataclass(frozen=True, slots=True)
class Latencies:
    """Times of a series of decisions, in microseconds."""

    took_us: Sequence[float]
    cpu_us: Sequence[float] = ()
    """The same in processor time, if measured."""
    paces: Sequence[float] = ()
    """The machine's calibrations between the blocks, for figures with a budget."""

    @classmethod
    def of(cls, decisions: Sequence[Decided], paces: Sequence[float] = ()) -> Latencies:
        return cls([each.took_us for each in decisions], [each.cpu_us for each in decisions], paces)

    @property
    def pace(self) -> float:
        """The machine's calibration during this measurement."""
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
        """The value below which this share lies: one of the measured values, never an average of two."""
        ordered = sorted(self.took_us)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# clusters


def fill_cluster(workload: Workload, nodes: int, pods: int) -> Cache:
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
    """The default profile on a cluster. `plugin` is added to the profile; `registry` replaces the implementations of
    plugins.

    All nodes are evaluated. Without `share` every pod is evaluated in full.
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
        if workload.preempts:  # each pod meets the same full cluster: no victim is evicted, no pod waits for room
            engine.nominator.delete_nomination(info.uid)
        yield Decided(took_ns / 1e3, cpu_ns / 1e3, placed)


def _check(placed: ScheduleResult, info: PodInfo, workload: Workload) -> None:
    found = placed.decision.nominated_node_name if workload.preempts else placed.node
    if not found:
        raise UnexpectedOutcome(f"pod {info.key} has no node: {placed.status.message}")


def run(
    workload: Workload, nodes: int, pods: int, *, seed: int = 0, plugin: type[Any] | None = None
) -> tuple[Latencies, PodEngine]:
    """Decide the pods of a workload; return the times, and the engine with the resulting cluster."""
    engine = engine_on(fill_cluster(workload, nodes, pods), seed=seed, plugin=plugin)
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
    """The same pods with shared results of equal pods, and with full evaluation."""

    shared: Latencies
    full: Latencies
    engine: PodEngine

    @property
    def ratio(self) -> float:
        return self.shared.p50_us / self.full.p50_us


def compare(workload: Workload, nodes: int, pods: int, *, seed: int = 0) -> Compared:
    """Decide the pods of a workload twice, on two clusters, in turns, so that other load disturbs both equally."""
    engines = [engine_on(fill_cluster(workload, nodes, pods), share=share, seed=seed) for share in (True, False)]
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
            raise UnexpectedOutcome(f"shared results chose other nodes, up to pod {start + _BLOCK}")
    return Compared(Latencies.of(shared, paces), Latencies.of(full, paces), engines[0])
