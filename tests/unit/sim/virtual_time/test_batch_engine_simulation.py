"""Traces in virtual time on the batch engine: gangs, fairness between tenants, and cleanup."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from bayplan.app import batch_configured, build_batch_engine, known_actions
from bayplan.clock import ManualClock
from bayplan.errors import UsageError
from bayplan.objects.core import Pod
from bayplan.objects.volcano.types import PodGroup
from bayplan.plugins.gpu.gpu_requests import GpuMilliRequest
from bayplan.sim.traces.trace_files import TraceNode, TracePod
from bayplan.sim.virtual_time.batch_engine_simulation import BatchEngineSimulation
from bayplan.sim.virtual_time.metrics import Sample, SimulationTotals
from bayplan.sim.virtual_time.trace_objects import build_node_cache
from bayplan.sim.virtual_time.trace_replay import TraceReplay

FAIR = """
actions: "enqueue, allocate, reclaim"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: proportion
  - name: nodeorder
"""


class Simulation:
    def __init__(self, nodes: list[TraceNode], config: str | None = None) -> None:
        self.clock = ManualClock()
        configuration = batch_configured(config, known_actions())
        cache = build_node_cache(nodes)
        self.engine = build_batch_engine(configuration, cache, clock=self.clock, chance=random.Random(0))
        self.samples: list[Sample] = []
        self.replay = TraceReplay(nodes, self._cluster)

    def _cluster(self, placed: Callable[[Pod], None], evicted: Callable[[Pod], None]) -> BatchEngineSimulation:
        return BatchEngineSimulation(self.engine, self.clock, on_placed=placed, on_evicted=evicted)

    def run(self, pods: Iterable[TracePod]) -> SimulationTotals:
        try:
            return self.replay.run(pods, every_s=10.0, sink=self.samples.append)
        finally:
            self.engine.close()


def pod(at: float, runs: float | None = 10.0, cpu: int = 1000, **fields: object) -> TracePod:
    return TracePod(f"at-{at:g}", cpu, 128, GpuMilliRequest(), at, runs, **fields)  # type: ignore[arg-type]


def test_pods_wait_for_earlier_ones_and_are_removed_when_they_end() -> None:
    simulation = Simulation([TraceNode("only", 1000, 4096)])
    found = simulation.run([pod(0), pod(1), pod(2)])
    assert (found.placed, found.finished, found.waiting) == (3, 3, 0)
    assert (found.seconds, found.wait_longest_s) == (30, 18)
    assert simulation.engine.cache.pod_count == 0
    assert dict(simulation.engine.cache.catalog.table(PodGroup)) == {}
    assert simulation.replay.live_count == 0


def test_a_gang_starts_when_all_of_it_fits() -> None:
    simulation = Simulation([TraceNode("a", 2000, 4096), TraceNode("b", 2000, 4096)])
    gang = [pod(5, 10, gang="train", gang_size=4) for _ in range(4)]
    found = simulation.run([pod(0, 20), *gang])
    assert found.placed == 5
    assert found.wait_longest_s == 15  # all four wait: only three fit until the first pod has ended
    assert found.wait_median_s == pytest.approx(15, rel=0.05)


def test_whole_gpus_are_allocated_by_model() -> None:
    nodes = [TraceNode("a", 64_000, 65_536, 2, "T4"), TraceNode("b", 64_000, 65_536, 2, "P100")]
    requests = [GpuMilliRequest(1000, 2, "T4"), GpuMilliRequest(1000, 1, "T4"), GpuMilliRequest(1000, 1)]
    found = Simulation(nodes).run(
        [TracePod(f"p{n}", 100, 16, request, 0.0, 10.0) for n, request in enumerate(requests)]
    )
    assert found.placed == 3
    assert found.wait_longest_s == 10  # the second pod waits for the model that the first one uses completely


def test_a_share_of_a_gpu_is_rejected() -> None:
    simulation = Simulation([TraceNode("a", 64_000, 65_536, 2, "T4")])
    with pytest.raises(UsageError, match="pod half requests 500 thousandths of a GPU"):
        simulation.run([TracePod("half", 100, 16, GpuMilliRequest(500, 1), 0.0, 10.0)])


def test_a_late_tenant_reclaims_its_share() -> None:
    simulation = Simulation([TraceNode("only", 4000, 8192)], FAIR)
    early = [pod(0, 100, tenant="early") for _ in range(4)]
    late = [pod(10, 20, tenant="late") for _ in range(2)]
    found = simulation.run([*early, *late])
    assert found.preemptions == 2
    assert found.arrived == 6
    assert found.finished == 6
