"""Benchmark of the simulator: one OpenB run with FGD on one core, a whole sweep, and a trace of one year.

    python benchmarks/simulation.py              one run of the default workload and of gpuspec33, and a long trace
    python benchmarks/simulation.py --sweep      also the whole published table, 300 runs; some minutes
    python benchmarks/simulation.py --quick      small amounts, as a smoke test

Prints a table, writes build/bench/simulation.json and, with --check, exits with an error if a budget is exceeded.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # `tests` has the OpenB workloads
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayplan.app import configured, known_plugins
from bayplan.clock import ManualClock
from bayplan.objects.core import Pod
from bayplan.plugins.gpu.gpu_requests import GpuMilliRequest
from bayplan.scheduler.engine import PodEngine
from bayplan.sim.sweeps.openb_experiment import RunSummary, run_experiment
from bayplan.sim.sweeps.process_pool import available_cores, run_jobs_in_order
from bayplan.sim.sweeps.published_results import differences
from bayplan.sim.sweeps.sweep import SweepJob, run_job
from bayplan.sim.traces.trace_files import TraceNode, TracePod
from bayplan.sim.virtual_time.pod_engine_simulation import PodEngineSimulation
from bayplan.sim.virtual_time.policies import POLICIES
from bayplan.sim.virtual_time.trace_objects import build_node_cache
from bayplan.sim.virtual_time.trace_replay import TraceReplay
from benchmarks.progress import Progress
from support.builders.openb_workloads import WORKLOADS, load_openb_workload, pods_file

OUTPUT = Path(__file__).resolve().parents[1] / "build" / "bench" / "simulation.json"
RUN_BUDGETS_S = {"default": 5.0, "gpuspec33": 10.0}
SWEEP_BUDGET_S = 15 * 60.0
SEEDS = 10
POINTS_BUDGET = 1.0
YEAR_S = 365 * 86_400.0
MEMORY_BUDGET_MIB = 16.0
_RUNS = 3


@dataclass(frozen=True, slots=True)
class Measured:
    """One line: description, value, unit, and maximum."""

    what: str
    value: float
    unit: str
    budget: float

    @property
    def holds(self) -> bool:
        return self.value <= self.budget


def one_run(workload: str, policy: str) -> float:
    """CPU seconds of one run, the best of some, because other load makes a run longer."""
    loaded, took_s = load_openb_workload(workload), []
    for seed in range(_RUNS):
        start_s = process_time()
        run_experiment(loaded, policy, seed)
        took_s.append(process_time() - start_s)
    return min(took_s)


def whole_sweep(seeds: int, progress: Progress) -> tuple[float, list[float]]:
    """Seconds for all workloads and policies on all cores, and the differences from the published means."""
    cells = [(name, policy) for name in WORKLOADS for policy in POLICIES]
    jobs = [SweepJob(pods_file(name), None, policy, seed) for name, policy in cells for seed in range(seeds)]
    start_s = perf_counter()
    runs = run_jobs_in_order(
        run_job, jobs, available_cores(), lambda done: progress(f"{done} of {len(jobs)} runs of the sweep")
    )
    took_s = perf_counter() - start_s
    summaries = (RunSummary.of(runs[at : at + seeds]) for at in range(0, len(runs), seeds))
    return took_s, [by for each in summaries for by in differences(each).values()]


def long_trace(pods: int) -> float:
    """MiB by which the process grew over the second half of a year of pods."""
    nodes = [TraceNode(f"n{number}", 32_000, 65_536, 4, "T4") for number in range(20)]
    registry, clock = known_plugins(), ManualClock()
    engine = PodEngine(
        configured(None, registry), registry, build_node_cache(nodes), clock=clock, chance=random.Random(0)
    )
    halfway: list[int] = []

    def trace() -> Iterator[TracePod]:
        chance = random.Random(1)
        for number in range(pods):
            if number == pods // 2:
                halfway.append(_resident())
            ask = GpuMilliRequest(chance.choice((250, 500, 1000)), 1)
            cpu, runs_s = 100 * chance.randrange(1, 40), chance.expovariate(pods / YEAR_S / 20)
            yield TracePod("", cpu, 1024, ask, number * YEAR_S / pods, runs_s, 0, chance.choice("abc"))

    def world(placed: Callable[[Pod], None], evicted: Callable[[Pod], None]) -> PodEngineSimulation:
        return PodEngineSimulation(engine, clock, on_placed=placed, on_evicted=evicted)

    TraceReplay(nodes, world).run(trace(), every_s=86_400.0, sink=lambda _: None)
    return (_resident() - halfway[0]) / 1024


def _resident() -> int:
    """KiB of peak resident memory of the process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@click.command()
@click.option("--sweep", is_flag=True, help="Also run the whole sweep.")
@click.option("--quick", is_flag=True, help="Small amounts, as a smoke test.")
@click.option("--check", is_flag=True, help="Exit with an error if a budget is exceeded.")
def main(sweep: bool, quick: bool, check: bool) -> None:
    """Measure, print and write the results."""
    found = [
        Measured(
            "a year-long trace, growth over its second half",
            long_trace(2_000 if quick else 40_000),
            "MiB",
            MEMORY_BUDGET_MIB,
        )
    ]
    for workload, budget_s in RUN_BUDGETS_S.items() if not quick else ():
        found.append(Measured(f"one run, {workload}, fgd, one core", one_run(workload, "fgd"), "s", budget_s))
    if sweep:
        seeds = 1 if quick else SEEDS
        with Progress().show() as progress:
            took_s, apart = whole_sweep(seeds, progress)
        found.append(
            Measured(f"5 workloads, 6 policies, {seeds} seeds, {available_cores()} cores", took_s, "s", SWEEP_BUDGET_S)
        )
        off = max(abs(by) for by in apart)
        found.append(Measured(f"the furthest of {len(apart)} published means", off, "points", POINTS_BUDGET))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("WHAT", "MEASURED", "BUDGET", ""):
        table.add_column(title, justify="left" if title == "WHAT" else "right")
    for each in found:
        verdict = "" if each.holds else "too much"
        table.add_row(each.what, f"{each.value:.2f} {each.unit}", f"{each.budget:g} {each.unit}", verdict)
    Console().print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n", encoding="utf-8")
    if check and not all(each.holds for each in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
