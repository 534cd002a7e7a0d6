"""`bayplan sweep`: simulates all combinations of workloads, policies and seeds; writes a table and a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import click

from bayplan.cli.output.progress_bar import progress_bar
from bayplan.errors import UsageError
from bayplan.sim.sweeps.openb_experiment import OpenbRun
from bayplan.sim.sweeps.optional_imports import import_optional
from bayplan.sim.sweeps.parquet import write_parquet
from bayplan.sim.sweeps.process_pool import available_cores, run_jobs
from bayplan.sim.sweeps.published_results import uses_published_nodes
from bayplan.sim.sweeps.ray_runner import run_jobs_on_ray
from bayplan.sim.sweeps.report import render_report
from bayplan.sim.sweeps.sweep import SweepJob, SweepJournal, build_jobs, load_nodes, run_job, run_sweep, write_csv
from bayplan.sim.traces.trace_files import read_openb_pods
from bayplan.sim.virtual_time.policies import POLICIES, parse_policy


@click.command("sweep")
@click.option(
    "--pods",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="A list of pods: CSV, or CSV with .gz. May be given several times.",
)
@click.option("--nodes", type=click.Path(path_type=Path), help="The nodes. Default: the 1,213 GPU nodes of OpenB.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    help="A policy, or several with weights: fgd:2+bestfit:1. May be given several times. Default: all policies.",
)
@click.option("--seeds", type=click.IntRange(1), default=10, show_default=True, help="Number of runs of each.")
@click.option("--first-seed", type=click.IntRange(0), default=0, show_default=True, help="The seed of the first run.")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="The file of the results: .csv or .parquet."
)
@click.option("--report", "page", type=click.Path(path_type=Path), help="An HTML page with tables and plots.")
@click.option("--processes", type=click.IntRange(1), help="Parallel runs. Default: one a core.")
@click.option("--ray", "address", help="Run on a Ray cluster at this address; `local` starts one here.")
def command(
    pods: tuple[Path, ...],
    nodes: Path | None,
    policies: tuple[str, ...],
    seeds: int,
    first_seed: int,
    out: Path,
    page: Path | None,
    processes: int | None,
    address: str | None,
) -> None:
    """Run every workload with every policy and every seed, and collect the results.

    Finished runs are stored beside the results in FILE.partial: when an interrupted sweep is started again with the
    same arguments, it continues. The same seeds give the same results, on one process, on many and on Ray.

    \b
    Examples:
      bayplan sweep --pods openb_pod_list_default.csv.gz --seeds 10 --out results.csv --report report.html
      bayplan sweep --pods a.csv --pods b.csv --policy fgd --policy fgd:2+bestfit:1 --out results.parquet
      bayplan sweep --pods a.csv --out results.csv --ray auto
    """
    if out.suffix not in (".csv", ".parquet"):
        raise UsageError(f"--out must be a .csv or .parquet file; got {out}")
    for path in filter(None, (out, page)):
        if not path.absolute().parent.is_dir():
            raise UsageError(
                f"cannot write {path}: the folder {path.parent} does not exist; create it, or give another"
            )
        if path.is_dir():
            raise UsageError(f"cannot write {path}: it is a folder; give a file name")
    if out.suffix == ".parquet":  # report missing packages now, and not after an hour of runs
        import_optional("pyarrow", wanted_for="Parquet", extra="sweep")
    if page is not None:
        import_optional("matplotlib", wanted_for="a report", extra="sweep")
    chosen = policies or tuple(POLICIES)
    for policy in chosen:
        parse_policy(policy)
    compared = uses_published_nodes(load_nodes(nodes))
    for path in pods:
        read_openb_pods(path)
    jobs = build_jobs(pods, nodes, chosen, range(first_seed, first_seed + seeds))
    spread = (
        partial(run_jobs_on_ray, address=address)
        if address
        else partial(_run_locally, processes=processes or available_cores())
    )
    journal = SweepJournal(out.with_name(f"{out.name}.partial"))
    with progress_bar(f"{len(pods)} workloads, {len(chosen)} policies", len(jobs)) as update:
        found = run_sweep(jobs, journal, spread, on_progress=update)
    (write_csv if out.suffix == ".csv" else write_parquet)(out, found)
    if page is not None:
        page.write_text(render_report([each.run for each in found], compared=compared), encoding="utf-8")
    journal.remove()
    click.echo(f"{len(found)} runs in {out}" + (f", a report in {page}" if page is not None else ""))


def _run_locally(jobs: Sequence[SweepJob], processes: int) -> Iterable[tuple[int, OpenbRun]]:
    return run_jobs(run_job, jobs, processes)
