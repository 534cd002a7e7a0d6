"""The OpenB experiment: fills a cluster with pods that never end, and measures the share of allocated GPUs.

Pods arrive one after another; a pod that does not fit is dropped. The result is the share of all GPUs that is allocated
when the arrived pods request 90, 100 and 130 percent of them. The pod engine makes every decision, with the cache, the
cycle and the plugins of a live scheduler. This module shuffles, counts and averages.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle as around
from statistics import fmean, pstdev

from bayplan.clock import ManualClock
from bayplan.scheduler.cycle.scheduling_cycle import first_row
from bayplan.scheduler.engine import PodEngine
from bayplan.sim.traces.trace_files import TraceNode, TracePod, gpu_capacity
from bayplan.sim.virtual_time.policies import parse_policy, policy_configuration
from bayplan.sim.virtual_time.trace_objects import PodFactory, build_node_cache
from bayplan.telemetry.decisions import DecisionRing

LOADS = (90, 100, 130)
"""Percent of the GPUs that pods have requested when the allocation is measured."""

_FULL_TENTHS = 13
"""Pods arrive until they have requested 1.3 times the capacity."""


@dataclass(frozen=True, slots=True)
class OpenbWorkload:
    """A cluster and the pods from which arrivals are drawn."""

    name: str
    nodes: Sequence[TraceNode]
    pods: Sequence[TracePod]

    @property
    def capacity(self) -> int:
        return gpu_capacity(self.nodes)


@dataclass(frozen=True, slots=True)
class OpenbRun:
    """Result of one run. `allocation` is in percent, by load; a load that was not reached is missing."""

    workload: str
    policy: str
    seed: int
    arrived: int
    failed: int
    allocated_milli: int
    allocation: dict[int, float]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Mean and deviation over several runs of one policy on one workload."""

    workload: str
    policy: str
    seeds: tuple[int, ...]
    mean: dict[int, float]
    deviation: dict[int, float]  # of the population

    @classmethod
    def of(cls, runs: Sequence[OpenbRun]) -> RunSummary:
        first = runs[0]
        loads = [load for load in LOADS if all(load in run.allocation for run in runs)]
        values = {load: [run.allocation[load] for run in runs] for load in loads}
        return cls(
            first.workload,
            first.policy,
            tuple(run.seed for run in runs),
            {load: fmean(found) for load, found in values.items()},
            {load: pstdev(found) for load, found in values.items()},
        )


class AllocationCurve:
    """Allocation by load, recorded after every arrival. The value of a load is the mean over its arrivals."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.arrived_milli = self.allocated_milli = 0
        self._sums: dict[int, tuple[float, int]] = {}

    def record(self, milli: int, *, placed: bool) -> None:
        self.arrived_milli += milli
        self.allocated_milli += milli if placed else 0
        load = round(100 * self.arrived_milli / self._capacity)
        total, count = self._sums.get(load, (0.0, 0))
        allocated = round(100 * self.allocated_milli / self._capacity, 2)
        self._sums[load] = (total + allocated, count + 1)

    def at(self, loads: Sequence[int]) -> dict[int, float]:
        return {load: self._sums[load][0] / self._sums[load][1] for load in loads if load in self._sums}


def tune_workload(pods: Sequence[TracePod], capacity: int, chance: random.Random) -> list[TracePod]:
    """Shuffle the pods, then append random copies or remove random pods until they request 1.3 times the GPUs."""
    sequence = list(pods)
    chance.shuffle(sequence)
    load = sum(pod.gpu_request.total for pod in sequence)
    if _exceeds_load(load, capacity):
        while _exceeds_load(load, capacity):
            load -= sequence.pop(chance.randrange(len(sequence))).gpu_request.total
        return sequence
    while True:
        copy = pods[chance.randrange(len(pods))]
        if _exceeds_load(load + copy.gpu_request.milli, capacity):
            return sequence
        sequence.append(copy)
        load += copy.gpu_request.total


def repeat_in_file_order(pods: Sequence[TracePod], capacity: int) -> Iterator[TracePod]:
    """Repeat the pods in file order up to the same load."""
    load = 0
    for pod in around(pods):
        if _exceeds_load(load + pod.gpu_request.milli, capacity):
            return
        yield pod
        load += pod.gpu_request.total


def _exceeds_load(load: int, capacity: int) -> bool:
    return 10 * load > _FULL_TENTHS * capacity


def run_experiment(workload: OpenbWorkload, policy: str, seed: int) -> OpenbRun:
    """Run once. The seed drives the order of pods, the copies, the order of nodes and the draws of the policy."""
    chance = random.Random(seed)
    sequence = tune_workload(workload.pods, workload.capacity, chance)
    nodes = list(workload.nodes)
    chance.shuffle(nodes)
    return fill_cluster(workload, policy, nodes, sequence, chance, seed)


def run_experiment_in_file_order(workload: OpenbWorkload, policy: str) -> OpenbRun:
    """Run without randomness, except that of the policy."""
    sequence = repeat_in_file_order(workload.pods, workload.capacity)
    return fill_cluster(workload, policy, workload.nodes, sequence, random.Random(0), 0)


def fill_cluster(
    workload: OpenbWorkload,
    policy: str,
    nodes: Sequence[TraceNode],
    sequence: Sequence[TracePod] | Iterator[TracePod],
    chance: random.Random,
    seed: int,
) -> OpenbRun:
    """Schedule the pods. Ties go to the first node in the given order, so that policies fill one node after another."""
    engine = _engine(workload, policy, nodes, chance)
    curve, make = AllocationCurve(workload.capacity), PodFactory(engine.prepare).make
    arrived = failed = 0
    try:
        for pod in sequence:
            placed = engine.place(make(pod, f"pod-{arrived}")).node is not None
            arrived += 1
            failed += not placed
            curve.record(pod.gpu_request.total, placed=placed)
    finally:
        engine.close()
    return OpenbRun(workload.name, policy, seed, arrived, failed, curve.allocated_milli, curve.at(LOADS))


def _engine(workload: OpenbWorkload, policy: str, nodes: Sequence[TraceNode], chance: random.Random) -> PodEngine:
    configuration, registry = policy_configuration(policy, workload.pods)
    ties = None if set(parse_policy(policy)) == {"random"} else first_row  # rows have the order of this run
    return PodEngine(
        configuration,
        registry,
        build_node_cache(nodes),
        clock=ManualClock(),
        chance=chance,
        tie_break=ties,
        records=DecisionRing(0),  # the experiment needs no decision records
    )
