"""Benchmark of batch engine sessions: one line per workload, on generated clusters, in this process.

    python benchmarks/batch.py                     all sessions and their growth; some minutes
    python benchmarks/batch.py --quick             small clusters, as a smoke test
    python benchmarks/batch.py --workload reclaim

Prints tables and writes build/bench/batch.json. docs/benchmarks.md describes the measurements.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayplan.errors import BayplanError
from benchmarks.batch_growth import AXES, measure_growth
from benchmarks.batch_naive import naive_us_of
from benchmarks.batch_report import BatchReport, BatchRow
from benchmarks.batch_workloads import WORKLOADS
from benchmarks.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "bench" / "batch.json"
QUICK = (100, 200)
"""Nodes and pods of the smoke test."""


def measure(name: str, nodes: int | None, pods: int | None, rounds: int | None) -> BatchRow:
    workload = WORKLOADS[name]
    nodes, pods = nodes or workload.nodes, pods or workload.pods
    found = workload.measure(nodes, pods, rounds or workload.rounds)
    return BatchRow(
        name=name,
        workload=workload,
        nodes=nodes,
        pods=pods,
        rounds=found.rounds,
        cold=found.cold,
        naive_us=naive_us_of(workload, nodes, pods, found),
    )


def measure_all(
    names: Sequence[str], nodes: int | None, pods: int | None, rounds: int | None, progress: Progress
) -> BatchReport:
    rows = []
    for number, name in enumerate(names, 1):
        progress(f"{name} ({number} of {len(names)}): {WORKLOADS[name].about}")
        rows.append(measure(name, nodes, pods, rounds))
    return BatchReport(rows=rows)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--workload",
    "names",
    type=click.Choice(list(WORKLOADS)),
    multiple=True,
    metavar="NAME",
    help=f"Only this workload, and growth only with --growth; may be repeated. One of {', '.join(WORKLOADS)}.",
)
@click.option("--nodes", type=click.IntRange(min=2), help="Nodes of the cluster.  [default: the workload's]")
@click.option("--pods", type=click.IntRange(min=20), help="Pods to place or evict.  [default: the workload's]")
@click.option("--rounds", type=click.IntRange(min=1), help="Number of rounds; the median counts.")
@click.option("--growth/--no-growth", "with_growth", default=None, help="Also measure growth.")
@click.option("--quick", is_flag=True, help="Small clusters, one round, as a smoke test.")
@click.option("--check", is_flag=True, help="Exit with an error if a budget is exceeded.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=OUTPUT,
    help="The file for the JSON.  [default: build/bench/batch.json]",
)
def main(
    names: tuple[str, ...],
    nodes: int | None,
    pods: int | None,
    rounds: int | None,
    with_growth: bool | None,
    quick: bool,
    check: bool,
    output: str,
    file: Path,
) -> None:
    """Measure sessions of the batch engine under the default configuration: their time and its growth.

    Gangs are timed from the opening of a session to its close, with all tasks bound. Reclaim and preempt are timed as
    the action alone. Budgets apply to a workload's default size and are multiplied by the machine's calibration.
    """
    if quick:
        nodes, pods, rounds = nodes or QUICK[0], pods or QUICK[1], rounds or 1
    with Progress().show() as progress:
        try:
            report = measure_all(names or list(WORKLOADS), nodes, pods, rounds, progress)
            if not names if with_growth is None else with_growth:
                growth = [measure_growth(name, quick=quick, progress=progress) for name in AXES]
                report = BatchReport(rows=report.rows, growth=growth)
        except BayplanError as fault:
            raise click.ClickException(str(fault)) from None
    _write(report, file, output)
    if check and report.broken:
        raise click.ClickException(f"over budget: {', '.join(report.broken)}")


def _write(report: BatchReport, file: Path, output: str) -> None:
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
