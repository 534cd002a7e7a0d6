"""Metrics of a simulation: shares over time, fairness and waiting times."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.plugins.gpu.gpu_requests import GpuMilliRequest
from bayplan.sim.traces.trace_files import TraceNode, TracePod
from bayplan.sim.virtual_time.metrics import SimulationMetrics, WaitTimes

NODES = [TraceNode("a", 4000, 1000, gpus=2), TraceNode("b", 4000, 1000)]


def pod(name: str = "p", *, cpu: int = 800, memory: int = 0, gpus: int = 0, tenant: str = "t") -> TracePod:
    return TracePod(name, cpu, memory, GpuMilliRequest(1000 if gpus else 0, gpus, ""), tenant=tenant)


def metrics(*placed: TracePod) -> SimulationMetrics:
    found = SimulationMetrics(NODES)
    for each in placed:
        found.add_pod(each)
        found.place(each, 0.0)
    return found


def test_shares_are_fractions_of_the_capacity() -> None:
    found = metrics(pod(cpu=2000, memory=500, gpus=1))
    assert found.shares() == (0.25, 0.25, 0.5)
    found.finish(pod(cpu=2000, memory=500, gpus=1))
    assert found.shares() == (0.0, 0.0, 0.0)
    assert SimulationMetrics([TraceNode("a", 0, 0)]).shares() == (0.0, 0.0, 0.0)


def test_counts_of_events() -> None:
    found = SimulationMetrics(NODES)
    first, second = pod("p"), pod("q")
    for each in (first, second):
        found.add_pod(each)
        found.place(each, 1.0)
    found.evict(second)
    found.add_pod(second, again=True)
    found.finish(first)
    totals = found.totals(waiting=1)
    counts = (totals.arrived, totals.placed, totals.finished, totals.running, totals.preemptions, totals.waiting)
    assert counts == (2, 2, 1, 0, 1, 1)


@pytest.mark.parametrize(
    ("pods", "fairness"),
    [
        pytest.param([], 1.0, id="nothing"),
        pytest.param([pod(tenant="a"), pod(tenant="b")], 1.0, id="equal"),
        pytest.param([pod(tenant="a"), pod(tenant="b", cpu=2400)], 0.8, id="one has three times as much"),
        pytest.param([pod(tenant="a", cpu=4000), pod(tenant="b", cpu=0, gpus=1)], 1.0, id="the dominant share counts"),
    ],
)
def test_fairness_is_jain_s_index_of_dominant_shares(pods: list[TracePod], fairness: float) -> None:
    assert metrics(*pods).fairness() == pytest.approx(fairness)


def test_tenants_count_while_their_pods_run_or_wait() -> None:
    found = metrics(pod(tenant="a"))
    found.add_pod(pod(tenant="b"))
    assert found.fairness() == 0.5
    found.finish(pod(tenant="a"))
    assert found.fairness() == 1.0
    found.place(pod(tenant="b"), 0.0)
    found.add_pod(pod(tenant="a"))
    assert found.fairness() == 0.5


def test_means_are_over_the_time_since_start() -> None:
    found = SimulationMetrics(NODES)
    found.start(10.0)
    found.add_pod(pod())
    found.advance_to(20.0)
    found.place(pod(cpu=4000), 10.0)
    found.advance_to(15.0)  # time does not go back
    found.advance_to(50.0)
    totals = found.totals(waiting=0)
    assert (totals.seconds, totals.gpu_mean) == (40.0, 0.0)
    assert totals.cpu_mean == pytest.approx(0.375)


def test_means_over_no_time_are_the_current_values() -> None:
    totals = metrics(pod(cpu=2000, gpus=2)).totals(waiting=3)
    assert (totals.seconds, totals.cpu_mean, totals.memory_mean, totals.gpu_mean) == (0.0, 0.25, 0.0, 1.0)
    assert (totals.fairness_mean, totals.waiting) == (1.0, 3)


def test_a_sample_of_one_moment() -> None:
    sample = metrics(pod(cpu=2000)).sample(7.0, 5, 0.125)
    found: tuple[Any, ...] = (sample.at_s, sample.cpu, sample.memory, sample.gpu, sample.fragmentation)
    assert found == (7.0, 0.25, 0.0, 0.0, 0.125)
    assert (sample.running, sample.waiting, sample.fairness, sample.preemptions) == (1, 5, 1.0, 0)


def test_quantiles_of_waits_are_accurate_to_five_percent() -> None:
    waits = WaitTimes()
    assert (waits.mean_s, waits.quantile_s(0.5), waits.longest_s) == (0.0, 0.0, 0.0)
    for waited in (0.0, 0.001, 10.0, 10.0, 100.0):
        waits.record(waited)
    assert (waits.count, waits.mean_s, waits.longest_s) == (5, 24.0002, 100.0)
    assert waits.quantile_s(0.4) == 0.0
    assert 10.0 <= waits.quantile_s(0.41) <= 10.5
    assert 10.0 <= waits.quantile_s(0.8) <= 10.5
    assert waits.quantile_s(0.81) == waits.quantile_s(1.0) == 100.0


def test_exported_data_is_rounded() -> None:
    found = metrics(pod(cpu=1))
    found.waits.record(1 / 3)
    data = found.totals(waiting=0).as_data()
    assert (data["wait_longest_s"], data["cpu_mean"], data["arrived"]) == (0.333333, 0.000125, 1)
