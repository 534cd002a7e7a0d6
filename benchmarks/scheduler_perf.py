"""kube-scheduler's own benchmarks, in this process: the same files and operations, without an API server.

    python benchmarks/scheduler_perf.py list
    python benchmarks/scheduler_perf.py run SchedulingBasic --workload 5000Nodes_10000Pods
    python benchmarks/scheduler_perf.py run affinity --label performance

The files are those of kubernetes 1.36.4 and are fetched into a cache at their first use. docs/benchmarks.md lists the
differences from upstream.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import click
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayplan.errors import BayplanError
from benchmarks.calibration import Calibration
from benchmarks.perf import configs, go_module
from benchmarks.perf.configs import LabelFilter, TestCase, Workload
from benchmarks.perf.operations import Run
from benchmarks.perf.throughput_collector import Measurement
from benchmarks.progress import Progress
from benchmarks.report import machine, print_wide

OUTPUT = Path(__file__).resolve().parents[1] / "build" / "bench" / "scheduler_perf.json"
DEFAULT_LABELS = "performance"


@dataclass(frozen=True)
class Result:
    """Result of one workload."""

    case: TestCase
    workload: Workload
    nodes: int = 0
    measurements: Sequence[Measurement] = ()
    notes: Sequence[str] = ()
    reason: str = ""
    """The reason why it did not run to its end."""
    took_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.case.topic,
            "test": self.case.name,
            "workload": self.workload.name,
            "labels": sorted(self.workload.labels),
            "feature_gates": dict(self.workload.feature_gates),
            "nodes": self.nodes,
            "ran": not self.reason,
            "reason": self.reason or None,
            "notes": list(self.notes),
            "measurements": [each.as_json() for each in self.measurements],
            "upstream_threshold_pods_per_s": self.workload.threshold,
            "took_s": round(self.took_s, 1),
        }


def run_one(case: TestCase, workload: Workload, *, steady_s: float | None) -> Result:
    start = perf_counter()
    run: Run | None = None
    reason = ""
    try:
        run = Run(case, workload, steady_s=steady_s)
        run.run()
    except BayplanError as fault:
        reason = str(fault)
    took_s = perf_counter() - start
    if run is None:
        return Result(case, workload, reason=reason, took_s=took_s)
    return Result(case, workload, run.nodes, run.measurements, run.notes, reason, took_s)


# output


def results_table(results: Sequence[Result]) -> Table:
    table = Table(title="in process, while the scheduler is busy; attempts in µs", title_justify="left")
    table.add_column("test")
    table.add_column("workload")
    for name in ("nodes", "pods", "pods/s", "attempts", "refused", "p50", "p90", "p99"):
        table.add_column(name, justify="right")
    table.add_column("upstream's threshold, pods/s", justify="right")
    for result in results:
        threshold = "" if result.workload.threshold is None else f"{result.workload.threshold:g}"
        names = (result.case.name, result.workload.name, f"{result.nodes:,}")
        if result.reason:
            table.add_row(*names, "[red]not run[/red]")
        for found in map(Measurement.as_json, result.measurements):
            times = ["" if found[key] is None else f"{found[key]:,.0f}" for key in ("p50_us", "p90_us", "p99_us")]
            counts = [f"{found[key]:,}" for key in ("attempts", "refused")]
            table.add_row(*names, f"{found['pods']:,}", f"{found['pods_per_s']:,.0f}", *counts, *times, threshold)
    return table


def list_table(found: Sequence[tuple[TestCase, Workload]]) -> Table:
    table = Table()
    for name in ("topic", "test", "workload", "labels"):
        table.add_column(name)
    table.add_column("upstream's threshold, pods/s", justify="right")
    for case, workload in found:
        threshold = "" if workload.threshold is None else f"{workload.threshold:g}"
        table.add_row(case.topic, case.name, workload.name, ", ".join(sorted(workload.labels)), threshold)
    return table


# commands

_source = click.option(
    "--source",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder test/integration/scheduler_perf to read instead of the fetched one.",
)
_output = click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Run kube-scheduler's own benchmarks (scheduler_perf of kubernetes 1.36.4) in this process.

    There is no API server, informer or backoff between the operations and the scheduler: the figures are about
    decisions, and are not comparable with upstream's thresholds, which apply to a whole cluster on other machines.
    """


@cli.command("list")
@click.option("--label", default="", help="Only workloads with these labels, for example performance,-short.")
@_source
@_output
def list_command(label: str, folder: Path | None, output: str) -> None:
    """List every benchmark: topic, test, workload, labels."""
    found = configs.chosen(configs.load_all(folder or go_module.ensure()), (), None, LabelFilter.of(label))
    if output == "json":
        rows = [
            {"topic": case.topic, "test": case.name, "workload": each.name, "labels": sorted(each.labels)}
            for case, each in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    print_wide(list_table(found))


@cli.command("run")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--workload", metavar="NAME", help="Only this workload, whatever its labels.")
@click.option(
    "--label",
    default=DEFAULT_LABELS,
    show_default=True,
    help='Only workloads with these labels, for example performance,-short; "" for all.',
)
@click.option("--steady", "steady_s", type=float, metavar="SECONDS", help="Length of a steady state in seconds.")
@_source
@_output
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=OUTPUT,
    help="The file for the JSON.  [default: build/bench/scheduler_perf.json]",
)
def run_command(
    names: tuple[str, ...],
    workload: str | None,
    label: str,
    steady_s: float | None,
    folder: Path | None,
    output: str,
    file: Path,
) -> None:
    """Run benchmarks by name: a test, a topic, topic/test, or "all". Exits with 1 if one did not run to its end.


    Examples:
      run SchedulingBasic --workload 5000Nodes_10000Pods
      run affinity --label performance
      run all --label integration-test,short
    """
    wanted = () if "all" in names else names
    cases = configs.load_all(folder or go_module.ensure())
    results = []
    with Progress().show() as progress:
        progress("calibrating")
        calibration = Calibration()
        for case, each in configs.chosen(cases, wanted, workload, LabelFilter.of(label)):
            progress(f"{case.topic}/{case.name}/{each.name}")
            results.append(run_one(case, each, steady_s=steady_s))
    found = {
        "workloads": [result.as_json() for result in results],
        "machine": {"calibration": round(calibration.value, 3), **machine()},
        "module": f"{go_module.SCHEDULER_PERF.path} {go_module.SCHEDULER_PERF.version}",
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=2)
    file.write_text(text + "\n", encoding="utf-8")
    _show(results, text, file, output)
    sys.exit(any(result.reason for result in results))


def _show(results: Sequence[Result], text: str, file: Path, output: str) -> None:
    if output == "json":
        click.echo(text)
        return
    print_wide(results_table(results))
    for result in results:
        for note in (*([f"not run: {result.reason}"] if result.reason else ()), *result.notes):
            click.echo(f"{result.case.name}/{result.workload.name}: {note}")
    click.echo(f"written to {file}")


def main() -> None:
    """Entry point. Errors that the user can correct are one sentence and an exit code."""
    try:
        cli()
    except BayplanError as fault:
        click.echo(f"error: {fault}", err=True)
        sys.exit(fault.exit_code)


if __name__ == "__main__":
    main()
