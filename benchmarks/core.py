"""Benchmark of the pod engine's decisions: one line per workload, on generated clusters, in this process.

    python benchmarks/core.py                       decisions, growth, memory; some minutes
    python benchmarks/core.py --quick               small clusters, as a smoke test
    python benchmarks/core.py --workload preemption

Prints tables and writes build/bench/core.json. docs/benchmarks.md describes the measurements.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # `tests` has the naive twins
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayplan.errors import BayplanError
from benchmarks import growth, memory
from benchmarks.decision_timing import Latencies, compare, pods_of, run
from benchmarks.naive import decide_with_twins, preempt_with_twins
from benchmarks.one_node import Cost, Simple, measure_cost
from benchmarks.progress import Progress
from benchmarks.report import BUDGET_NODES, Report, Row
from benchmarks.workloads import WORKLOADS, Workload

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "bench" / "core.json"
NAIVE_PODS = 3
ROUNDS = 3
"""How often each workload runs.

The least disturbed time of each counts, as for the calibration: other load can only add time, and rarely does so three
times at the same place.
"""


def measure(name: str, workload: Workload, nodes: int, pods: int, naive_pods: int) -> Row:
    """One workload: the engine, if `against_full` the engine without sharing, and the naive twins."""
    full: Latencies | None = None
    cost: Cost | None = None
    if workload.one_by_one:
        latencies, engine, cost = measure_cost(workload, nodes, pods)
    elif workload.against_full:
        both = compare(workload, nodes, pods)
        latencies, full, engine = both.shared, both.full, both.engine
    else:
        latencies, engine = run(workload, nodes, pods)
    more = pods_of(workload, naive_pods, first=pods)
    naive: Latencies | None = None
    if more:
        plugin = Simple if workload.one_by_one else None
        naive = (
            preempt_with_twins(engine, more, datetime.now(UTC))
            if workload.preempts
            else decide_with_twins(engine, more, plugin)
        )
    engine.close()
    return Row(name=name, workload=workload, nodes=nodes, latencies=latencies, naive=naive, full=full, cost=cost)


def measure_all(
    names: Sequence[str], nodes: int, pods: int | None, naive_pods: int, rounds: int, progress: Progress
) -> Report:
    rows: dict[str, Row] = {}
    for turn in range(1, rounds + 1):
        for number, name in enumerate(names, 1):
            progress(f"round {turn} of {rounds}, {name} ({number} of {len(names)}): {WORKLOADS[name].about}")
            # the naive twins run once: they only verify decisions, and take most of the time
            twins = naive_pods if turn == 1 else 0
            found = measure(name, WORKLOADS[name], nodes, pods or WORKLOADS[name].pods, twins)
            rows[name] = found.or_quieter(rows.get(name))
    return Report(rows=list(rows.values()))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--workload",
    "names",
    type=click.Choice(list(WORKLOADS)),
    multiple=True,
    metavar="NAME",
    help=f"Only this workload, without growth and memory; may be repeated. One of {', '.join(WORKLOADS)}.",
)
@click.option("--nodes", type=click.IntRange(min=2), help=f"Nodes of the cluster.  [default: {BUDGET_NODES}]")
@click.option("--pods", type=click.IntRange(min=1), help="Pods to decide.  [default: the workload's]")
@click.option(
    "--naive-pods",
    type=click.IntRange(min=0),
    help=f"Pods that the naive twins decide too, about a second each; 0 disables them.  [default: {NAIVE_PODS}]",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help=f"Runs of each workload; the least disturbed time counts.  [default: {ROUNDS}]",
)
@click.option("--growth/--no-growth", "with_growth", default=None, help="Also measure 500 to 15,000 nodes.")
@click.option("--memory/--no-memory", "with_memory", default=None, help="Also measure the memory of 150,000 pods.")
@click.option("--quick", is_flag=True, help="Small clusters and few pods, as a smoke test.")
@click.option("--check", is_flag=True, help="Exit with an error if a budget is exceeded.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=OUTPUT,
    help="The file for the JSON.  [default: build/bench/core.json]",
)
def main(
    names: tuple[str, ...],
    nodes: int | None,
    pods: int | None,
    naive_pods: int | None,
    rounds: int | None,
    with_growth: bool | None,
    with_memory: bool | None,
    quick: bool,
    check: bool,
    output: str,
    file: Path,
) -> None:
    """Measure the decisions of the pod engine: their time, its growth with the cluster, and the memory.

    A decision is timed from the pod handed to the engine until it is assumed, with all nodes evaluated, decision
    records and timings on. Beside each workload is the time of the plugins' naive twins, which must reach the same
    decision. Budgets apply to 5,000 nodes and are multiplied by the machine's calibration.
    """
    nodes = nodes or (300 if quick else BUDGET_NODES)
    pods = pods or (40 if quick else None)
    naive_pods = (1 if quick else NAIVE_PODS) if naive_pods is None else naive_pods
    rounds = rounds or (1 if quick else ROUNDS)
    everything = not names
    with Progress().show() as progress:
        try:
            report = measure_all(names or list(WORKLOADS), nodes, pods, naive_pods, rounds, progress)
        except BayplanError as fault:
            raise click.ClickException(str(fault)) from None
        if everything if with_growth is None else with_growth:
            report = _with_growth(report, progress, quick=quick)
        if everything if with_memory is None else with_memory:
            report = _with_memory(report, progress, quick=quick)
    _write(report, file, output)
    if check and report.broken:
        raise click.ClickException(f"over budget: {', '.join(report.broken)}")


def _with_growth(report: Report, progress: Progress, *, quick: bool) -> Report:
    sizes = (100, 200, 400) if quick else growth.NODES
    pods = 30 if quick else growth.PODS
    found = [growth.measure_growth(name, sizes=sizes, pods=pods, progress=progress) for name in growth.NAMES]
    return Report(rows=report.rows, growth=found)


def _with_memory(report: Report, progress: Progress, *, quick: bool) -> Report:
    nodes, pods = (200, 2000) if quick else (memory.NODES, memory.PODS)
    progress(f"memory: {nodes:,} nodes and {pods:,} pods in a separate process")
    found = memory.measure_memory(nodes, pods)
    return Report(rows=report.rows, growth=report.growth, memory=found)


def _write(report: Report, file: Path, output: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report.as_json(), indent=2)
    file.write_text(text + "\n", encoding="utf-8")
    if output == "json":
        click.echo(text)
        return
    report.print()
    click.echo(f"written to {file}")


if __name__ == "__main__":
    main()
