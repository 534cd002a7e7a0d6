"""Traces in virtual time: who waits how long, who is evicted, what is measured, and that nothing piles up."""

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
from bayplan.sim.virtual_time.metrics import (
    Sample,
    SimulationMetrics,
    SimulationTotals,
    WaitTimes,
)
from bayplan.sim.virtual_time.pod_engine_simulation import PodEngineSimulation
from bayplan.sim.virtual_time.policies import policy_configuration
from bayplan.sim.virtual_time.trace_objects import build_node_cache
from bayplan.sim.virtual_time.trace_replay import TraceReplay


class Simulation:
    """A replay with all that there is to look at."""

    def __init__(self, nodes: list[TraceNode], policy: str | None = None, typical: Iterable[TracePod] = ()) -> None:
        registry = known_plugins()
        configuration = configured(None, registry)
        if policy is not None:
            configuration, registry = policy_configuration(policy, typical)
        self.clock = ManualClock()
        cache = build_node_cache(nodes)
        self.engine = PodEngine(configuration, registry, cache, clock=self.clock, chance=random.Random(0))
        self.samples: list[Sample] = []
        self.replay = TraceReplay(nodes, self._world)

    def _world(self, placed: Callable[[Pod], None], evicted: Callable[[Pod], None]) -> PodEngineSimulation:
        return PodEngineSimulation(self.engine, self.clock, on_placed=placed, on_evicted=evicted)

    def run(self, pods: Iterable[TracePod], every_s: float = 10.0) -> SimulationTotals:
        return self.replay.run(pods, every_s=every_s, sink=self.samples.append)


def pod(at: float, runs: float | None = 10.0, cpu: int = 1000, **fields: object) -> TracePod:
    return TracePod(f"at-{at:g}", cpu, 128, GpuMilliRequest(), at, runs, **fields)  # type: ignore[arg-type]


ONE = [TraceNode("only", 1000, 4096)]


def test_pods_wait_for_those_before_them() -> None:
    found = Simulation(ONE).run([pod(0), pod(1), pod(2)])
    assert (found.arrived, found.placed, found.finished, found.waiting, found.running) == (3, 3, 3, 0, 0)
    assert found.seconds == 30
    assert found.wait_longest_s == 18  # the third: from 2 to 20
    assert found.wait_mean_s == pytest.approx((0 + 9 + 18) / 3)
    assert found.cpu_mean == 1.0


def test_a_pod_that_fits_nowhere_waits_for_ever_and_holds_nobody_up() -> None:
    found = Simulation(ONE).run([pod(0, cpu=5000), pod(1), pod(5)])
    assert (found.placed, found.waiting) == (2, 1)
    assert found.wait_longest_s == 6


def test_pods_without_an_end_stay() -> None:
    found = Simulation(ONE).run([pod(0, None), pod(3)])
    assert (found.running, found.waiting, found.finished) == (1, 1, 0)


def test_the_urgent_evict_others_which_start_anew() -> None:
    found = Simulation(ONE).run([pod(0, 100), pod(10, 20, priority=7)])
    assert (found.preemptions, found.arrived, found.placed, found.finished) == (1, 2, 3, 2)
    assert found.seconds == 130  # 10 + 20, and a hundred from the beginning again


def test_samples_tell_of_the_cluster_as_it_was() -> None:
    simulation = Simulation([TraceNode("a", 4000, 4096), TraceNode("b", 4000, 4096)])
    simulation.run([pod(0, 25, tenant="x"), pod(0, 25, 2000, tenant="y"), pod(5, 10, 2000, tenant="y")])
    shown = [(each.at_s, each.cpu, each.running, round(each.fairness, 4)) for each in simulation.samples]
    assert shown == [
        (0.0, 0.0, 0, 1.0),
        (10.0, 0.625, 3, round(25 / (2 * 17), 4)),
        (20.0, 0.375, 2, round(9 / (2 * 5), 4)),
        (25.0, 0.0, 0, 1.0),
    ]


def test_time_begins_with_the_first_arrival() -> None:
    """Tables that count from 1970 on are as long as what happens in them."""
    epoch_s = 1_700_000_000.0
    simulation = Simulation(ONE)
    found = simulation.run([pod(epoch_s, 20), pod(epoch_s + 5, 20)])
    assert (found.seconds, found.cpu_mean, found.wait_longest_s) == (40, 1.0, 15)
    assert [each.at_s - epoch_s for each in simulation.samples] == [0, 10, 20, 30, 40, 40]


def test_devices_are_given_back_when_pods_end() -> None:
    nodes = [TraceNode("a", 64_000, 65_536, 2, "T4")]
    shares = [TracePod(f"p{n}", 1000, 128, GpuMilliRequest(600, 1), float(n), 10.0) for n in range(6)]
    simulation = Simulation(nodes, "fgd", shares)
    found = simulation.run(shares)
    assert (found.placed, found.finished) == (6, 6)
    assert found.wait_longest_s == 16  # two at a time: the last comes at 5 and starts at 21
    assert max(each.gpu for each in simulation.samples) == 0.6
    assert simulation.samples[1].fragmentation == pytest.approx(0.4)  # what is left of both is of no use to anybody
    assert simulation.samples[-1].fragmentation == 0.0


def test_the_same_trace_gives_the_same_numbers() -> None:
    chance = random.Random(3)
    pods = [pod(float(at), chance.uniform(1, 200), chance.choice((500, 1500))) for at in range(60)]
    nodes = [TraceNode(f"n{number}", 8000, 65_536) for number in range(3)]
    first, second = Simulation(nodes), Simulation(nodes)
    assert first.run(pods) == second.run(pods)
    assert first.samples == second.samples


def test_nothing_piles_up_however_long_the_trace() -> None:
    """A trace is read as time passes, and what has ended leaves nothing behind."""
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


# meters


def test_quantiles_of_waits_are_right_to_five_percent() -> None:
    waits = WaitTimes()
    for waited_s in range(1, 1001):
        waits.record(float(waited_s))
    assert waits.mean_s == 500.5
    assert waits.longest_s == 1000
    for share in (0.1, 0.5, 0.95, 1.0):
        assert 1000 * share <= waits.quantile_s(share) <= 1050 * share
    waits.record(0.0)
    assert waits.quantile_s(0.0001) == 0.0


def test_nobody_waited() -> None:
    assert (WaitTimes().mean_s, WaitTimes().quantile_s(0.5)) == (0.0, 0.0)


def test_fairness_is_jain_s_index() -> None:
    meter = SimulationMetrics([TraceNode("a", 10_000, 10_000)])
    assert meter.fairness() == 1.0
    for tenant, cpu in (("a", 4000), ("b", 4000)):
        meter.add_pod(pod(0, cpu=cpu, tenant=tenant))
        meter.place(pod(0, cpu=cpu, tenant=tenant), 0.0)
    assert meter.fairness() == pytest.approx(1.0)
    meter.add_pod(pod(0, tenant="starving"))
    assert meter.fairness() == pytest.approx(2 / 3)
