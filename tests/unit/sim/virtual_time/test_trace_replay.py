"""Traces in virtual time on the pod engine: waiting times, preemption, samples and memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

import pytest

from bayplan.app import configured, known_plugins
from bayplan.clock import ManualClock
from bayplan.objects.core import Pod
from bayplan.plugins.gpu.gpu_requests import GpuMilliRequest
from bayplan.scheduler.engine import PodEngine
from bayplan.sim.traces.trace_files import TraceNode, TracePod
from bayplan.sim.virtual_time.metrics import Sample, SimulationMetrics, SimulationTotals, WaitTimes
from bayplan.sim.virtual_time.pod_engine_simulation import PodEngineSimulation
from bayplan.sim.virtual_time.policies import policy_configuration
from bayplan.sim.virtual_time.trace_objects import build_node_cache
from bayplan.sim.virtual_time.trace_replay import TraceReplay


class Simulation:
    """A replay with its clock, engine and samples."""

    def __init__(self, nodes: list[TraceNode], policy: str | None = None, typical: Iterable[TracePod] = ()) -> None:
        registry = known_plugins()
        configuration = configured(None, registry)
        if policy is not None:
            configuration, registry = policy_configuration(policy, typical)
        self.clock = ManualClock()
        cache = build_node_cache(nodes)
        self.engine = PodEngine(configuration, registry, cache, clock=self.clock, chance=random.Random(0))
        self.samples: list[Sample] = []
        self.replay = TraceReplay(nodes, self._cluster)

    def _cluster(self, placed: Callable[[Pod], None], evicted: Callable[[Pod], None]) -> PodEngineSimulation:
        return PodEngineSimulation(self.engine, self.clock, on_placed=placed, on_evicted=evicted)

    def run(self, pods: Iterable[TracePod], every_s: float = 10.0) -> SimulationTotals:
        return self.replay.run(pods, every_s=every_s, sink=self.samples.append)


def pod(at: float, runs: float | None = 10.0, cpu: int = 1000, **fields: object) -> TracePod:
    return TracePod(f"at-{at:g}", cpu, 128, GpuMilliRequest(), at, runs, **fields)  # type: ignore[arg-type]


ONE_NODE = [TraceNode("only", 1000, 4096)]


def test_pods_wait_for_earlier_ones() -> None:
    found = Simulation(ONE_NODE).run([pod(0), pod(1), pod(2)])
    assert (found.arrived, found.placed, found.finished, found.waiting, found.running) == (3, 3, 3, 0, 0)
    assert found.seconds == 30
    assert found.wait_longest_s == 18  # the third: from 2 to 20
    assert found.wait_mean_s == pytest.approx((0 + 9 + 18) / 3)
    assert found.cpu_mean == 1.0


def test_a_pod_that_never_fits_does_not_block_other_pods() -> None:
    found = Simulation(ONE_NODE).run([pod(0, cpu=5000), pod(1), pod(5)])
    assert (found.placed, found.waiting) == (2, 1)
    assert found.wait_longest_s == 6


def test_pods_without_an_end_stay() -> None:
    found = Simulation(ONE_NODE).run([pod(0, None), pod(3)])
    assert (found.running, found.waiting, found.finished) == (1, 1, 0)


def test_a_preempted_pod_starts_again() -> None:
    found = Simulation(ONE_NODE).run([pod(0, 100), pod(10, 20, priority=7)])
    assert (found.preemptions, found.arrived, found.placed, found.finished) == (1, 2, 3, 2)
    assert found.seconds == 130  # 10 + 20, and 100 again from the beginning


def test_samples_have_the_state_of_their_moment() -> None:
    simulation = Simulation([TraceNode("a", 4000, 4096), TraceNode("b", 4000, 4096)])
    simulation.run([pod(0, 25, tenant="x"), pod(0, 25, 2000, tenant="y"), pod(5, 10, 2000, tenant="y")])
    shown = [(each.at_s, each.cpu, each.running, round(each.fairness, 4)) for each in simulation.samples]
    assert shown == [
        (0.0, 0.0, 0, 1.0),
        (10.0, 0.625, 3, round(25 / (2 * 17), 4)),
        (20.0, 0.375, 2, round(9 / (2 * 5), 4)),
        (25.0, 0.0, 0, 1.0),
    ]


def test_time_starts_with_the_first_arrival() -> None:
    """The duration of a table with epoch seconds is that of its events."""
    epoch_s = 1_700_000_000.0
    simulation = Simulation(ONE_NODE)
    found = simulation.run([pod(epoch_s, 20), pod(epoch_s + 5, 20)])
    assert (found.seconds, found.cpu_mean, found.wait_longest_s) == (40, 1.0, 15)
    assert [each.at_s - epoch_s for each in simulation.samples] == [0, 10, 20, 30, 40, 40]


def test_devices_are_released_when_pods_end() -> None:
    nodes = [TraceNode("a", 64_000, 65_536, 2, "T4")]
    shares = [TracePod(f"p{n}", 1000, 128, GpuMilliRequest(600, 1), float(n), 10.0) for n in range(6)]
    simulation = Simulation(nodes, "fgd", shares)
    found = simulation.run(shares)
    assert (found.placed, found.finished) == (6, 6)
    assert found.wait_longest_s == 16  # two at a time: the last comes at 5 and starts at 21
    assert max(each.gpu for each in simulation.samples) == 0.6
    assert simulation.samples[1].fragmentation == pytest.approx(0.4)  # no pod can use the rest of both devices
    assert simulation.samples[-1].fragmentation == 0.0


def test_the_same_trace_gives_the_same_numbers() -> None:
    chance = random.Random(3)
    pods = [pod(float(at), chance.uniform(1, 200), chance.choice((500, 1500))) for at in range(60)]
    nodes = [TraceNode(f"n{number}", 8000, 65_536) for number in range(3)]
    first, second = Simulation(nodes), Simulation(nodes)
    assert first.run(pods) == second.run(pods)
    assert first.samples == second.samples


def test_memory_does_not_grow_with_the_trace() -> None:
    """A trace is read lazily, and ended pods are removed."""
    read, ahead = 0, 0
    simulation = Simulation([TraceNode("a", 4000, 65_536)])

    def endless() -> Iterator[TracePod]:
        nonlocal read, ahead
        for number in range(1500):
            read += 1
            ahead = max(ahead, read - simulation.replay.started)
            yield pod(10.0 * number, 25.0)

    found = simulation.run(endless(), every_s=1000.0)
    assert (found.arrived, found.finished) == (1500, 1500)
    assert ahead <= 2
    assert simulation.engine.cache.pod_count == 0
    assert simulation.engine.pending == {}
    assert simulation.replay.live_count == 0


# Metrics


def test_quantiles_of_waits_are_accurate_to_five_percent() -> None:
    waits = WaitTimes()
    for waited_s in range(1, 1001):
        waits.record(float(waited_s))
    assert waits.mean_s == 500.5
    assert waits.longest_s == 1000
    for share in (0.1, 0.5, 0.95, 1.0):
        assert 1000 * share <= waits.quantile_s(share) <= 1050 * share
    waits.record(0.0)
    assert waits.quantile_s(0.0001) == 0.0


def test_quantiles_without_waits_are_zero() -> None:
    assert (WaitTimes().mean_s, WaitTimes().quantile_s(0.5)) == (0.0, 0.0)


def test_fairness_is_jains_index() -> None:
    metrics = SimulationMetrics([TraceNode("a", 10_000, 10_000)])
    assert metrics.fairness() == 1.0
    for tenant, cpu in (("a", 4000), ("b", 4000)):
        metrics.add_pod(pod(0, cpu=cpu, tenant=tenant))
        metrics.place(pod(0, cpu=cpu, tenant=tenant), 0.0)
    assert metrics.fairness() == pytest.approx(1.0)
    metrics.add_pod(pod(0, tenant="starving"))
    assert metrics.fairness() == pytest.approx(2 / 3)
