"""One workload on one API server, one contender after the other: what each of them reached.

A cluster of its own a workload, so that none meets the leftovers of another. For every contender the pods are made
anew; the clock runs from the first binding that the watch shows to the last, and the processor is counted until the
last Scheduled event is stored.
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
from benchmarks.live.background_load import disturbed
from benchmarks.live.bind_watch import BoundPods, Process, StoredEvents, look_at
from benchmarks.live.cluster_setup import Stagehand
from benchmarks.live.contenders import CONCURRENCIES, Contender, bare_loop, bayplan, kube_scheduler
from benchmarks.live.initial_state import Stage
from cluster.run import BENCHMARK_FLAGS, Cluster

QUIET_S = 60.0
_WINDOW_S = 0.25
FLAGS = (
    *BENCHMARK_FLAGS,
    "--disable-admission-plugins=Priority,StorageObjectInUseProtection",
    "--delete-collection-workers=8",
)
Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Reached:
    """What one contender did."""

    name: str
    bound_at_s: Sequence[float]
    """Moments at which pods were seen bound, in order."""
    cpu_s: float
    server_cpu_s: float
    """What the API server and etcd used meanwhile: on a machine that they share it is part of the price."""
    memory_mib: float
    stored_after_s: float
    """How long after the last binding the last event was stored."""
    unbound: int = 0
    """Pods that were left when nobody was bound any more."""

    @property
    def lasted_s(self) -> float:
        return max(self.bound_at_s[-1] - self.bound_at_s[0], 1e-9)

    @property
    def pods_per_s(self) -> float:
        return (len(self.bound_at_s) - 1) / self.lasted_s

    @property
    def cpu_us(self) -> float:
        """A pod."""
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
        """Pods a second in windows of a quarter of a second; those in which nobody was bound belong to the next."""
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
class Race:
    """What all contenders did on one workload."""

    theirs: Reached
    ours: Reached
    loops: Sequence[Reached]

    @property
    def limit(self) -> Reached:
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


def raced(stage: Stage, folder: Path, told: Told) -> Race:
    """Everybody, on a cluster in this folder."""
    with Cluster(folder, flags=FLAGS) as cluster:
        return asyncio.run(_race(cluster, stage, told))


async def _race(cluster: Cluster, stage: Stage, told: Told) -> Race:
    target, chance = cluster.target(), random.Random(0)
    async with Client(target, clock=SystemClock(), chance=chance, qps=-1.0, user_agent="bayplan-benchmark") as client:
        hand = Stagehand(client, stage)
        told(f"putting up {len(stage.trees):,} objects")
        await hand.put_up()
        reached = []
        loops = [bare_loop(cluster, stage.namespace, at_once) for at_once in CONCURRENCIES]
        for contender in (kube_scheduler(cluster, stage.config), bayplan(cluster, stage.config), *loops):
            reached.append(await measured(client, hand, stage, contender, cluster, told))
            await hand.clear()
    return Race(reached[0], reached[1], reached[2:])


async def measured(
    client: Client, hand: Stagehand, stage: Stage, contender: Contender, cluster: Cluster, told: Told
) -> Reached:
    """One contender, on pods made for it."""
    told(f"{contender.name}: making {len(stage.pods):,} pods")
    uids = await hand.fill()
    names = {key.partition("/")[2]: key for key in stage.measured}
    pods, opened = BoundPods(client, stage.namespace, frozenset(names)), asyncio.Event()
    watching = asyncio.ensure_future(pods.run(opened))
    await opened.wait()
    events = StoredEvents(client, stage.namespace)
    before = await events.count()
    told(f"{contender.name}: {len(stage.measured):,} pods to place")
    with contender.running(cluster.folder) as pid:
        process, servers = Process(pid), [Process(each) for each in cluster.pids]
        looking = asyncio.ensure_future(look_at(process, *servers))
        try:
            async with disturbed(hand, list(stage.beside)):
                bound = asyncio.ensure_future(pods.wait_for_all(QUIET_S))
                await asyncio.wait((bound, watching), return_when=asyncio.FIRST_COMPLETED)
                if not bound.done():
                    bound.cancel()
                    watching.result()  # raises: it ends by itself only when it breaks
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
    return Reached(
        contender.name,
        moments,
        process.cpu_between(moments[0], stored_s),
        sum(each.cpu_between(moments[0], stored_s) for each in servers),
        memory,
        max(0.0, stored_s - last_s),
        len(names) - len(moments),
    )
