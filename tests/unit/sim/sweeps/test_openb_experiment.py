"""The OpenB experiment: reference results, sequences of pods, and the allocation curve."""

from __future__ import annotations

import random

import pytest

from bayplan.clock import ManualClock
from bayplan.plugins.gpu.gpu_requests import GpuMilliRequest, assigned_devices
from bayplan.plugins.gpu.typical_pods import TypicalPods
from bayplan.scheduler.cycle.scheduling_cycle import first_row
from bayplan.scheduler.engine import PodEngine
from bayplan.sim.sweeps.openb_experiment import (
    AllocationCurve,
    OpenbRun,
    OpenbWorkload,
    RunSummary,
    repeat_in_file_order,
    run_experiment,
    run_experiment_in_file_order,
    tune_workload,
)
from bayplan.sim.traces.trace_files import TraceNode, TracePod
from bayplan.sim.virtual_time.policies import POLICIES, pod_shape, policy_configuration
from bayplan.sim.virtual_time.trace_objects import PodFactory, build_node_cache
from bayplan.telemetry.decisions import DecisionRing
from support.builders.openb_workloads import WORKLOADS, load_openb_workload

CAPACITY = 6_212_000

FINAL = {
    "default": (10_891, "5435280 3005 5519080 2895 5558590 2845 5702450 2689 5874730 2496"),
    "gpuspec33": (10_891, "5447650 3058 5557840 2876 5668270 2727 5757780 2701 5854210 2437"),
    "multigpu50": (8_493, "5417520 1118 5502550 1004 5541790 955 5685920 798 5835580 639"),
    "gpushare100": (17_679, "4258430 6620 4377860 6446 4388940 6415 4891270 5822 4607460 6266"),
    "cpu200": (12_899, "3957310 4730 4078900 4583 4102140 4564 5071000 4173 4552470 4267"),
}
"""Arrivals, then allocated milli and failed pods of each policy, when nodes and pods come in the order of the files."""


@pytest.mark.parametrize("policy", list(POLICIES)[1:])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_runs_in_file_order_end_as_published(workload: str, policy: str) -> None:
    arrived, numbers = FINAL[workload]
    place = 2 * (list(POLICIES).index(policy) - 1)
    allocated, failed = map(int, numbers.split()[place : place + 2])
    found = run_experiment_in_file_order(load_openb_workload(workload), policy)
    assert (found.arrived, found.allocated_milli, found.failed) == (arrived, allocated, failed)


@pytest.mark.parametrize(
    ("workload", "pods", "load", "shapes", "typical", "covered"),
    [
        ("default", 8152, 97.98, 91, 35, 7766),
        ("gpuspec33", 8152, 97.98, 330, 127, 7748),
        ("multigpu50", 9061, 182.85, 91, 43, 8610),
        ("gpushare100", 8152, 63.63, 49, 21, 7784),
        ("cpu200", 8832, 97.98, 90, 34, 8401),
    ],
)
def test_workloads_are_those_of_the_publication(
    workload: str, pods: int, load: float, shapes: int, typical: int, covered: int
) -> None:
    found = load_openb_workload(workload)
    assert len(found.nodes) == 1213
    assert found.capacity == CAPACITY
    assert len(found.pods) == pods
    assert round(100 * sum(pod.gpu_request.total for pod in found.pods) / CAPACITY, 2) == load
    assert len({pod_shape(pod) for pod in found.pods}) == shapes
    typical_pods = TypicalPods.of(map(pod_shape, found.pods))
    assert (len(typical_pods.counts), typical_pods.covered) == (typical, covered)


def pod(milli: int, count: int = 1, name: str = "") -> TracePod:
    return TracePod(name, 1000, 1024, GpuMilliRequest(milli, count) if count else GpuMilliRequest())


def test_a_short_list_is_extended_by_copies() -> None:
    pods = [pod(1000, 1, str(number)) for number in range(50)]
    sequence = tune_workload(pods, 100_000, random.Random(7))
    assert sorted(sequence[:50], key=lambda each: int(each.name)) == pods
    assert sequence[:50] != pods
    assert sum(each.gpu_request.total for each in sequence) == 130_000
    assert set(sequence[50:]) <= set(pods)


def test_a_long_list_loses_pods_and_keeps_its_order() -> None:
    pods = [pod(1000, 1, str(number)) for number in range(400)]
    sequence = tune_workload(pods, 100_000, random.Random(7))
    shuffled = list(pods)
    random.Random(7).shuffle(shuffled)
    assert len(sequence) == 130
    places = [shuffled.index(each) for each in sequence]
    assert places == sorted(places)


def test_the_last_pod_is_compared_by_its_share_of_one_device() -> None:
    """Its total request is not used, so the load may be slightly higher."""
    whole = [pod(1000, 8), pod(1000, 4)]
    # 8000 + 1000 is below 11700
    assert [each.gpu_request.total for each in repeat_in_file_order(whole, 9_000)] == [8000, 4000]
    assert [each.gpu_request.total for each in repeat_in_file_order(whole, 10_000)] == [
        8000,
        4000,
        8000,
    ]  # 12000 + 1000 is not above


def test_the_curve_averages_over_all_arrivals_of_a_load() -> None:
    curve = AllocationCurve(1000)
    curve.record(896, placed=True)
    curve.record(0, placed=True)
    curve.record(6, placed=False)
    assert curve.at((90, 100)) == {90: pytest.approx(89.6)}
    curve.record(98, placed=True)
    assert curve.at((90, 100)) == {90: pytest.approx(89.6), 100: 99.4}


def test_summaries_are_means_and_deviations_of_the_population() -> None:
    runs = [OpenbRun("w", "fgd", seed, 1, 0, 0, {90: value, 100: value}) for seed, value in enumerate((90.0, 92.0))]
    found = RunSummary.of(runs)
    assert (found.mean, found.deviation, found.seeds) == ({90: 91.0, 100: 91.0}, {90: 1.0, 100: 1.0}, (0, 1))


SMALL = OpenbWorkload(
    "small",
    [TraceNode(f"n{number}", 16_000, 65_536, 2, "T4") for number in range(12)],
    [
        TracePod(f"p{n}", 1000 * (n % 4), 512, GpuMilliRequest(100 * (n % 10), 1) if n % 10 else GpuMilliRequest())
        for n in range(60)
    ],
)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_equal_seeds_give_equal_runs(policy: str) -> None:
    once, again, other = (run_experiment(SMALL, policy, seed) for seed in (3, 3, 4))
    assert once == again
    assert once.allocation != other.allocation
    assert 0 < once.allocated_milli <= SMALL.capacity


@pytest.mark.parametrize("policy", list(POLICIES))
def test_the_weight_of_a_single_policy_changes_nothing(policy: str) -> None:
    """This includes `random`, which chooses any of the best nodes; the remaining policies choose the first."""
    alone, weighted = (run_experiment(SMALL, text, 3) for text in (policy, f"{policy}:2"))
    assert (weighted.failed, weighted.allocated_milli, weighted.allocation) == (
        alone.failed,
        alone.allocated_milli,
        alone.allocation,
    )


@pytest.mark.parametrize("policy", list(POLICIES)[1:])
def test_shared_evaluations_give_the_same_nodes_as_full_ones(policy: str) -> None:
    found = []
    for share in (True, False):
        configuration, registry = policy_configuration(policy, SMALL.pods)
        engine = PodEngine(
            configuration,
            registry,
            build_node_cache(SMALL.nodes),
            clock=ManualClock(),
            chance=random.Random(0),
            tie_break=lambda *_: 0,
            share=share,
        )
        make = PodFactory(engine.prepare).make
        infos = [make(each, f"pod-{number}") for number, each in enumerate([*SMALL.pods, *SMALL.pods])]
        placed = [engine.place(info).node for info in infos]
        found.append([(node, info.cached(assigned_devices)) for node, info in zip(placed, infos, strict=True)])
        engine.close()
    assert found[0] == found[1]
    assert any(node is None for node, _ in found[0])


@pytest.mark.parametrize("limit_bytes", [0, 1 << 20])
def test_decision_records_do_not_change_decisions(limit_bytes: int) -> None:
    """The experiment stores no records; a live scheduler does."""
    configuration, registry = policy_configuration("fgd", SMALL.pods)
    ring = DecisionRing(limit_bytes)
    engine = PodEngine(
        configuration,
        registry,
        build_node_cache(SMALL.nodes),
        clock=ManualClock(),
        chance=random.Random(0),
        tie_break=first_row,
        records=ring,
    )
    make = PodFactory(engine.prepare).make
    sequence = list(repeat_in_file_order(SMALL.pods, SMALL.capacity))
    nodes = [engine.place(make(each, f"pod-{number}")).node for number, each in enumerate(sequence)]
    engine.close()
    allocated = sum(each.gpu_request.total for each, node in zip(sequence, nodes, strict=True) if node is not None)
    found = run_experiment_in_file_order(SMALL, "fgd")
    assert (found.arrived, found.failed, found.allocated_milli) == (len(nodes), nodes.count(None), allocated)
    assert len(ring) == (len(nodes) if limit_bytes else 0)


def test_devices_are_free_after_a_pod_is_forgotten() -> None:
    """Devices are free as soon as the cache no longer counts the pod."""
    configuration, registry = policy_configuration("bestfit", SMALL.pods)
    cache = build_node_cache([TraceNode("only", 16_000, 65_536, 1, "T4")])
    engine = PodEngine(configuration, registry, cache, clock=ManualClock(), chance=random.Random(0))
    make = PodFactory(engine.prepare).make
    first = engine.place(make(pod(700), "first"))
    assert first.node == "only"
    assert engine.place(make(pod(700), "second")).node is None
    assert first.assumed is not None
    cache.forget(first.assumed.pod)
    assert engine.place(make(pod(700), "third")).node == "only"
    engine.close()
