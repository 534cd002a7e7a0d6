"""Compares schedulers on one workload and one API server, one after the other.

Each workload has a new cluster, without objects of another workload. For every contender the pods are created again.
The time is from the first binding that the watch shows to the last, and processor time counts until the last Scheduled
event is stored.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bayplan.client import Client
from bayplan.clock import SystemClock
from benchmarks.live.background_load import run_background_load
from benchmarks.live.bind_watch import BoundPods, Process, StoredEvents, look_at
from benchmarks.live.cluster_setup import ClusterSetup
from benchmarks.live.contenders import CONCURRENCIES, Contender, bare_loop, bayplan, kube_scheduler
from benchmarks.live.initial_state import InitialState
from cluster.run import BENCHMARK_FLAGS, Cluster

QUIET_S = 60.0
_WINDOW_S = 0.25
FLAGS = (
    *BENCHMARK_FLAGS,
    "--disable-admission-plugins=Priority,StorageObjectInUseProtection",
    "--delete-collection-workers=8",
)
ProgressSink = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ContenderResult:
    """Result of one contender."""

    name: str
    bound_at_s: Sequence[float]
    """Times at which pods were seen bound, in order."""
    cpu_s: float
    server_cpu_s: float
    """Processor time of the API server and etcd meanwhile: on a shared machine it is part of the cost."""
    memory_mib: float
    stored_after_s: float
    """Time from the last binding until the last event was stored."""
    unbound: int = 0
    """Pods that were left when no more pods were bound."""

    @property
    def lasted_s(self) -> float:
        return max(self.bound_at_s[-1] - self.bound_at_s[0], 1e-9)

    @property
    def pods_per_s(self) -> float:
        return (len(self.bound_at_s) - 1) / self.lasted_s

    @property
    def cpu_us(self) -> float:
        """Processor time per pod."""
        return 1e6 * self.cpu_s / len(self.bound_at_s)

    def as_json(self) -> dict[str, Any]:
        waited_ms = [1000 * (at - self.bound_at_s[0]) for at in self.bound_at_s]
        rates = self._rates()
        return {
            "pods_per_s": round(self.pods_per_s, 1),
            "pods_per_s_p50": round(float(np.percentile(rates, 50)), 1),
            "pods_per_s_p95": round(float(np.percentile(rates, 95)), 1),
            "latency_ms_p50": round(float(np.percentile(waited_ms, 50)), 1),
            "latency_ms_p99": round(float(np.percentile(waited_ms, 99)), 1),
            "cpu_us_a_pod": round(self.cpu_us, 1),
            "server_cpu_us_a_pod": round(1e6 * self.server_cpu_s / len(self.bound_at_s), 1),
            "memory_mib": round(self.memory_mib, 1),
            "lasted_s": round(self.lasted_s, 3),
            "events_stored_after_s": round(self.stored_after_s, 3),
            "pods_per_s_with_events": round(len(self.bound_at_s) / (self.lasted_s + self.stored_after_s), 1),
            "unbound": self.unbound,
        }

    def _rates(self) -> list[float]:
        """Pods a second in windows of a quarter of a second; a window without bindings is added to the next."""
        edges = np.arange(self.bound_at_s[0], self.bound_at_s[-1], _WINDOW_S)
        if len(edges) < 3:
            return [self.pods_per_s]
        counts, since, rates = np.histogram(self.bound_at_s, edges)[0], 0, []
        for count in counts:
            since += 1
            if count:
                rates.append(count / (since * _WINDOW_S))
                since = 0
        return rates


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results of all contenders on one workload."""

    theirs: ContenderResult
    ours: ContenderResult
    loops: Sequence[ContenderResult]

    @property
    def limit(self) -> ContenderResult:
        return max(self.loops, key=lambda each: each.pods_per_s)

    def as_json(self) -> dict[str, Any]:
        return {
            "ratio_throughput": round(self.ours.pods_per_s / self.theirs.pods_per_s, 3),
            "ratio_limit": round(self.ours.pods_per_s / self.limit.pods_per_s, 3),
            "ratio_cpu": round(self.ours.cpu_us / self.theirs.cpu_us, 3),
            "kube_scheduler": self.theirs.as_json(),
            "bayplan": self.ours.as_json(),
            "bare_loop": {**self.limit.as_json(), "by_concurrency": {each.name: each.as_json() for each in self.loops}},
        }


def compare_contenders(initial: InitialState, folder: Path, progress: ProgressSink) -> Comparison:
    """Compare all contenders, on a cluster in this folder."""
    with Cluster(folder, flags=FLAGS) as cluster:
        return asyncio.run(_compare(cluster, initial, progress))


async def _compare(cluster: Cluster, initial: InitialState, progress: ProgressSink) -> Comparison:
    target, chance = cluster.target(), random.Random(0)
    async with Client(target, clock=SystemClock(), chance=chance, qps=-1.0, user_agent="bayplan-benchmark") as client:
        setup = ClusterSetup(client, initial)
        progress(f"putting up {len(initial.trees):,} objects")
        await setup.put_up()
        reached = []
        loops = [bare_loop(cluster, initial.namespace, at_once) for at_once in CONCURRENCIES]
        for contender in (kube_scheduler(cluster, initial.config), bayplan(cluster, initial.config), *loops):
            reached.append(await measure_contender(client, setup, initial, contender, cluster, progress))
            await setup.clear()
    return Comparison(reached[0], reached[1], reached[2:])


async def measure_contender(
    client: Client,
    setup: ClusterSetup,
    initial: InitialState,
    contender: Contender,
    cluster: Cluster,
    progress: ProgressSink,
) -> ContenderResult:
    """Measure one contender, on new pods."""
    progress(f"{contender.name}: making {len(initial.pods):,} pods")
    uids = await setup.fill()
    names = {key.partition("/")[2]: key for key in initial.measured}
    pods, opened = BoundPods(client, initial.namespace, frozenset(names)), asyncio.Event()
    watching = asyncio.ensure_future(pods.run(opened))
    await opened.wait()
    events = StoredEvents(client, initial.namespace)
    before = await events.count()
    progress(f"{contender.name}: {len(initial.measured):,} pods to place")
    with contender.running(cluster.folder) as pid:
        process, servers = Process(pid), [Process(each) for each in cluster.pids]
        looking = asyncio.ensure_future(look_at(process, *servers))
        try:
            async with run_background_load(setup, list(initial.beside)):
                bound = asyncio.ensure_future(pods.wait_for_all(QUIET_S))
                await asyncio.wait((bound, watching), return_when=asyncio.FIRST_COMPLETED)
                if not bound.done():
                    bound.cancel()
                    watching.result()  # raises: the task ends by itself only on an error
                await bound
                last_s = max(pods.at_s.values())
                wanted = frozenset(uids[names[name]] for name in pods.at_s)
                stored_s = await events.wait_for(wanted, more_than=before)
            for each in (process, *servers):
                each.look()
            memory = process.memory_mib()
        finally:
            for task in (looking, watching):
                task.cancel()
            await asyncio.gather(looking, watching, return_exceptions=True)
    moments = sorted(pods.at_s.values())
    return ContenderResult(
        contender.name,
        moments,
        process.cpu_between(moments[0], stored_s),
        sum(each.cpu_between(moments[0], stored_s) for each in servers),
        memory,
        max(0.0, stored_s - last_s),
        len(names) - len(moments),
    )
