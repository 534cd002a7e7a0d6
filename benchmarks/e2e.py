"""Benchmark of Bayplan on a real API server, beside kube-scheduler and beside a loop that only writes.

    python benchmarks/e2e.py                            the default set, within half an hour on two cores
    python benchmarks/e2e.py --all                      every workload; skips those with results in the output file
    python benchmarks/e2e.py --test SchedulingBasic

Prints a table and writes build/bench/e2e.json after every workload. docs/benchmarks.md describes the measurements.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import click
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # `tests` has the cluster fixture
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayplan.errors import BayplanError
from benchmarks.live.comparison import compare_contenders
from benchmarks.live.initial_state import UnsupportedWorkload, build_initial_state
from benchmarks.perf import configs, go_module
from benchmarks.perf.configs import TestCase, Workload
from benchmarks.progress import Progress
from benchmarks.report import machine, print_wide
from cluster.run import ClusterError

OUTPUT = Path(__file__).resolve().parents[1] / "build" / "bench" / "e2e.json"

DEFAULT_SET: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "SchedulingBasic": ("5000Nodes_10000Pods", {"measurePods": 3000}),
    "SchedulingNodeAffinity": ("500Nodes", {}),
    "SchedulingWithNodeInclusionPolicy": ("500Nodes", {}),
    "TopologySpreading": ("500Nodes", {}),
    "SchedulingPreferredPodAffinity": ("500Nodes", {}),
    "SchedulingPreferredPodAntiAffinity": ("500Nodes", {}),
    "SchedulingPodAffinity": ("500Nodes", {}),
    "SchedulingPodAntiAffinity": ("500Nodes", {}),
    "PreemptionBasic": ("1000Nodes", {"initNodes": 500, "initPods": 2000, "measurePods": 500}),
    "Unschedulable": ("500Nodes/10Init/1kPods", {}),
    "SchedulingWhileGated": ("1Node_10000GatedPods", {"gatedPods": 1000, "deletingPods": 1000, "measurePods": 1000}),
    "MixedSchedulingBasePod": ("500Nodes", {}),
    "SchedulingCSIPVs": ("500Nodes", {}),
    "SchedulingWithResourceClaimTemplate": (
        "2000pods_200nodes",
        {"nodesWithDRA": 100, "initPods": 500, "measurePods": 500},
    ),
}
"""By test case: the upstream workload, and the parameters that are smaller because of two cores."""

GOALS = {"ratio_throughput": 2.0, "ratio_limit": 0.8, "ratio_cpu": 0.25}
"""Goals of SchedulingBasic; every other workload must not be slower than kube-scheduler."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One workload of one test case, as run here."""

    case: TestCase
    workload: Workload

    @property
    def key(self) -> tuple[str, str, str]:
        return self.case.name, self.workload.name, json.dumps(dict(self.workload.params), sort_keys=True)

    def as_json(self) -> Row:
        return {
            "workload": self.case.name,
            "topic": self.case.topic,
            "upstream_workload": self.workload.name,
            "params": dict(self.workload.params),
        }


def default_set(cases: Sequence[TestCase]) -> Iterator[Entry]:
    known = {case.name: case for case in cases}
    for name, (workload, params) in DEFAULT_SET.items():
        chosen = next(each for each in known[name].workloads if each.name == workload)
        yield Entry(known[name], replace(chosen, params={**chosen.params, **params}))


def everything(cases: Sequence[TestCase]) -> Iterator[Entry]:
    """The default set, then the rest: each set of parameters once, because the feature gates here are the defaults."""
    seen = set()
    for entry in default_set(cases):
        seen.add((entry.case.name, json.dumps(dict(entry.workload.params), sort_keys=True)))
        yield entry
    for case in cases:
        for workload in case.workloads:
            size = (case.name, json.dumps(dict(workload.params), sort_keys=True))
            if size not in seen:
                seen.add(size)
                yield Entry(case, workload)


def measure(entry: Entry, progress: Progress) -> Row:
    """Measure one workload; an error is its result."""
    start = perf_counter()
    row = entry.as_json()
    title = f"{entry.case.name}/{entry.workload.name}"
    try:
        initial = build_initial_state(entry.case, entry.workload)
        row |= {"nodes": initial.nodes, "pods": len(initial.measured)}
        with tempfile.TemporaryDirectory(prefix="bayplan-bench-") as folder:
            cluster = Path(folder) / "cluster"
            comparison = compare_contenders(initial, cluster, lambda text: progress(f"{title}: {text}"))
        row |= comparison.as_json()
    except (BayplanError, ClusterError, OSError, KeyError, ValueError) as fault:
        row |= {
            "failed": f"{type(fault).__name__}: {fault}",
            "cannot_be_staged": isinstance(fault, UnsupportedWorkload),
        }
        progress(f"{title}: failed: {fault}")
    return row | {"took_s": round(perf_counter() - start, 1)}


# output


def is_done(row: Row) -> bool:
    return "failed" not in row or bool(row.get("cannot_be_staged"))


def holds(row: Row) -> bool | None:
    """Whether a workload reaches its goal; None if it was not measured."""
    if "failed" in row:
        return None
    if row["bayplan"]["unbound"]:
        return False
    if row["workload"] != "SchedulingBasic":
        return bool(row["ratio_throughput"] >= 1.0)
    enough = all(row[name] >= GOALS[name] for name in ("ratio_throughput", "ratio_limit"))
    return enough and bool(row["ratio_cpu"] <= GOALS["ratio_cpu"])


def table_of(rows: Sequence[Row]) -> Table:
    table = Table(title="pods a second on one API server; CPU in µs a pod, memory in MiB", title_justify="left")
    table.add_column("test")
    for name in (
        "nodes",
        "pods",
        "by",
        "average",
        "p50",
        "p95",
        "latency p50 ms",
        "p99",
        "CPU",
        "memory",
        "events after s",
    ):
        table.add_column(name, justify="right")
    table.add_column("ratios: throughput, limit, CPU")
    for row in rows:
        if "failed" in row:
            table.add_row(row["workload"], "", "", "[red]failed[/red]")
            continue
        names = (row["workload"], f"{row['nodes']:,}", f"{row['pods']:,}")
        ratios = f"{row['ratio_throughput']:.2f}  {row['ratio_limit']:.2f}  {row['ratio_cpu']:.2f}"
        table.add_row(*names, "kube-scheduler", *_figures(row["kube_scheduler"]))
        table.add_row(
            "", "", "", "bayplan", *_figures(row["bayplan"]), ratios if holds(row) else f"[red]{ratios}[/red]"
        )
        table.add_row("", "", "", "bare loop", *_figures(row["bare_loop"]))
    return table


def _figures(found: Mapping[str, float]) -> list[str]:
    names = ("pods_per_s", "pods_per_s_p50", "pods_per_s_p95", "latency_ms_p50", "latency_ms_p99")
    figures = [f"{found[name]:,.0f}" for name in (*names, "cpu_us_a_pod", "memory_mib")]
    return [*figures, f"{found['events_stored_after_s']:.1f}"]


def write(rows: Sequence[Row], file: Path) -> None:
    found = {"workloads": list(rows), "goals": GOALS, "machine": machine(), "module": go_module.SCHEDULER_PERF.version}
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    part.replace(file)


def read(file: Path) -> dict[tuple[str, str, str], Row]:
    """Results of an earlier run."""
    if not file.exists():
        return {}
    rows = json.loads(file.read_text(encoding="utf-8"))["workloads"]
    keys = ((row["workload"], row["upstream_workload"], json.dumps(row["params"], sort_keys=True)) for row in rows)
    return {key: row for key, row in zip(keys, rows, strict=True) if is_done(row)}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--all", "with_all", is_flag=True, help="Every workload; continues an earlier run.")
@click.option("--test", "tests", multiple=True, metavar="NAME", help="Only this test case; may be repeated.")
@click.option("--param", "params", multiple=True, metavar="NAME=COUNT", help="Another size, such as measurePods=500.")
@click.option("--fresh", is_flag=True, help="With --all: measure everything again.")
@click.option("--check", is_flag=True, help="Exit with an error if a goal is missed or a workload failed.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=OUTPUT,
    help="The file for the JSON.  [default: build/bench/e2e.json]",
)
def main(with_all: bool, tests: tuple[str, ...], params: tuple[str, ...], fresh: bool, check: bool, file: Path) -> None:
    """Run kube-scheduler's own benchmarks on a real API server: kube-scheduler, Bayplan, and a loop that only writes.

    All three get the same pods, which exist before the scheduler starts, and the same qps. The time is from the first
    binding to the last. The first run builds the programs with Go.
    """
    cases = configs.load_all(go_module.ensure())
    entries = [_resized(each, params) for each in (everything if with_all else default_set)(cases)]
    if tests:
        entries = [each for each in entries if each.case.name in tests]
    known = read(file) if with_all and not fresh else {}
    rows = [known[entry.key] for entry in entries if entry.key in known]
    with Progress().show() as progress:
        for number, entry in enumerate(entries, 1):
            if entry.key in known:
                continue
            progress(f"{entry.case.name}/{entry.workload.name} ({number} of {len(entries)})")
            rows.append(measure(entry, progress))
            write(rows, file)
    _show(rows, file)
    missed = [row["workload"] for row in rows if not holds(row) and not row.get("cannot_be_staged")]
    if check and missed:
        raise click.ClickException(f"goal missed or failed: {', '.join(missed)}")


def _resized(entry: Entry, params: Sequence[str]) -> Entry:
    given = {name: int(count) for name, _, count in (each.partition("=") for each in params)}
    fitting = {name: count for name, count in given.items() if name in entry.workload.params}
    return replace(entry, workload=replace(entry.workload, params={**entry.workload.params, **fitting}))


def _show(rows: Sequence[Row], file: Path) -> None:
    print_wide(table_of(rows))
    for row in rows:
        if "failed" in row:
            click.echo(f"{row['workload']}/{row['upstream_workload']}: {row['failed']}")
        for name in ("kube_scheduler", "bayplan"):
            if left := row.get(name, {}).get("unbound"):
                click.echo(f"{row['workload']}/{row['upstream_workload']}: {name} left {left} pods for its next flush")
    click.echo(f"written to {file}")


if __name__ == "__main__":
    main()
