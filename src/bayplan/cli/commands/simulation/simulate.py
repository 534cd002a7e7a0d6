"""`bayplan simulate`: replays a trace with the engine of a live scheduler and compares the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.table import Table

from bayplan.cli.commands.simulation.simulate_csv import simulate_csv
from bayplan.cli.output.printers import print_table, print_value, yaml_text
from bayplan.cli.output.progress_bar import progress_bar
from bayplan.errors import UsageError
from bayplan.sim.sweeps.openb_experiment import LOADS, OpenbRun, RunSummary
from bayplan.sim.sweeps.process_pool import available_cores, run_jobs_in_order
from bayplan.sim.sweeps.published_results import PublishedResult, differences, published_result, uses_published_nodes
from bayplan.sim.sweeps.sweep import SweepJob, load_nodes, run_job, workload_name
from bayplan.sim.traces.trace_files import TraceNode, gpu_capacity, read_openb_pods
from bayplan.sim.virtual_time.policies import POLICIES, policy_manifest


@click.command("simulate")
@click.option(
    "--trace",
    type=click.Choice(["openb", "csv", "recording"]),
    default="openb",
    show_default=True,
    help="The format of the files.",
)
@click.option("--pods", type=click.Path(path_type=Path), required=True, help="The pods: CSV, or CSV with .gz.")
@click.option("--nodes", type=click.Path(path_type=Path), help="The nodes. Default: the 1,213 GPU nodes of OpenB.")
@click.option("--policy", type=click.Choice(list(POLICIES)), help="The placement policy; default with openb: fgd.")
@click.option("--seeds", type=click.IntRange(1), default=10, show_default=True, help="Number of runs. (openb)")
@click.option("--first-seed", type=click.IntRange(0), default=0, show_default=True, help="The seed of the first run.")
@click.option("--processes", type=click.IntRange(1), help="Parallel runs. Default: one a core. (openb)")
@click.option("--show-config", is_flag=True, help="Print the configuration of the policy. (openb)")
@click.option(
    "--engine", type=click.Choice(["pod", "batch"]), default="pod", show_default=True, help="The engine. (csv)"
)
@click.option(
    "--config", type=click.Path(path_type=Path), help="The engine's configuration, instead of a policy. (csv)"
)
@click.option("--column", "columns", multiple=True, help="FIELD=NAME: a column with another name. (csv)")
@click.option(
    "--every", type=click.FloatRange(1.0), default=3600.0, show_default=True, help="Seconds between samples. (csv)"
)
@click.option("--samples", type=click.Path(path_type=Path), help="A file for the samples, as CSV. (csv)")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def command(
    trace: str,
    pods: Path,
    nodes: Path | None,
    policy: str | None,
    seeds: int,
    first_seed: int,
    processes: int | None,
    show_config: bool,
    engine: str,
    config: Path | None,
    columns: tuple[str, ...],
    every: float,
    samples: Path | None,
    output: str,
) -> None:
    """Replay a trace with the pod engine of a live scheduler, and show how well it fills the cluster.

    openb: pods arrive one after another in a random order until they have requested 1.3 times the GPUs of the cluster;
    a pod that fits no node is dropped. The allocated share of the GPUs is shown with the published one.
    csv: pods arrive and complete at the times of the table, and wait for free resources; the output has allocation,
    waiting times and fairness. recording: the same for a file of `bayplan record`, whose pods do not complete.
    Without --policy and --config the default profile places them, and GpuBestFit shares the GPUs of nodes with GPUs.
    With --engine batch every tenant has a queue, and gangs start together.
    The same seeds give the same numbers on every machine.

    \b
    Examples:
      bayplan simulate --trace openb --pods openb_pod_list_default.csv.gz --policy fgd --seeds 10
      bayplan simulate --pods openb_pod_list_gpuspec33.csv --policy bestfit --seeds 3 -o json
      bayplan simulate --pods openb_pod_list_default.csv --policy fgd --show-config > fgd.yaml
      bayplan simulate --trace csv --pods jobs.csv --nodes nodes.csv --column arrival=submit_time --samples load.csv
    """
    if trace != "openb":
        _reject_options("seeds", "processes", "show_config", because="only valid with --trace openb; leave out")
        if trace == "recording":
            _reject_options("columns", because="only valid with --trace csv; a recording has no columns")
        simulate_csv(
            trace,
            pods,
            nodes,
            columns=columns,
            engine=engine,
            policy=policy,
            config=config,
            seed=first_seed,
            every_s=every,
            samples=samples,
            output=output,
        )
        return
    _reject_options(
        "engine", "config", "columns", "every", "samples", because="only valid with --trace csv or recording; leave out"
    )
    chosen = policy or "fgd"
    if show_config:
        click.echo(yaml_text(policy_manifest(chosen, read_openb_pods(pods))), nl=False)
        return
    _simulate_openb(pods, nodes, chosen, range(first_seed, first_seed + seeds), processes or available_cores(), output)


def _reject_options(*parameters: str, because: str) -> None:
    """Refuse options that have no effect."""
    context = click.get_current_context()
    flags = {each.name: each.opts[0] for each in context.command.params}
    given = [name for name in parameters if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        raise UsageError(f"{', '.join(flags[name] for name in given)}: {because}")


def _simulate_openb(pods: Path, nodes: Path | None, policy: str, seeds: range, processes: int, output: str) -> None:
    cluster = load_nodes(nodes)
    read_openb_pods(pods)  # report errors once, and not in every process
    jobs = [SweepJob(pods, nodes, policy, seed) for seed in seeds]
    with progress_bar(f"{policy} on {workload_name(pods)}", len(jobs)) as update:
        runs = run_jobs_in_order(run_job, jobs, processes, update)
    summary = RunSummary.of(runs)
    known = published_result(summary.workload, summary.policy) if uses_published_nodes(cluster) else None
    if output == "table":
        _print(summary, runs, cluster, known)
    else:
        print_value(_as_data(summary, runs, cluster, known), output)


def _print(summary: RunSummary, runs: list[OpenbRun], nodes: list[TraceNode], known: PublishedResult | None) -> None:
    gpus = gpu_capacity(nodes) // 1000
    click.echo(f"{summary.policy} on {summary.workload} (openb): {len(nodes)} nodes, {gpus} GPUs, {len(runs)} runs\n")
    deviations = differences(summary)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("LOAD", "GPU ALLOCATION", "DEVIATION", *(("PUBLISHED", "DIFFERENCE") if known else ())):
        table.add_column(title, justify="right", no_wrap=True)
    for load, mean in summary.mean.items():
        cells = [f"{load}%", f"{mean:.2f}%", f"{summary.deviation[load]:.2f}"]
        if known:
            cells += [f"{known.mean[load]:.2f}%", f"{deviations[load]:+.2f}"]
        table.add_row(*cells)
    print_table(table)
    if not known and published_result(summary.workload, summary.policy):
        click.echo("\nthe published results of this workload are for other nodes")
    elif not known:
        click.echo("\nthere are no published results of this workload")


def _as_data(
    summary: RunSummary, runs: list[OpenbRun], nodes: list[TraceNode], known: PublishedResult | None
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "trace": "openb",
        "workload": summary.workload,
        "policy": summary.policy,
        "seeds": list(summary.seeds),
        "nodes": len(nodes),
        "gpus": gpu_capacity(nodes) // 1000,
    }
    deviations = differences(summary)
    for load in LOADS:
        data[f"gpu_allocation_at_{load}_mean"] = _round(summary.mean.get(load))
        data[f"gpu_allocation_at_{load}_sd"] = _round(summary.deviation.get(load))
    data["published"] = known and {
        **{f"gpu_allocation_at_{load}_mean": known.mean[load] for load in LOADS},
        **{f"gpu_allocation_at_{load}_sd": known.deviation[load] for load in LOADS},
        **{f"difference_at_{load}": _round(deviations.get(load)) for load in LOADS},
    }
    data["runs"] = [
        {
            "seed": each.seed,
            "arrived": each.arrived,
            "failed": each.failed,
            "gpu_milli_allocated": each.allocated_milli,
            **{f"gpu_allocation_at_{load}": _round(value) for load, value in each.allocation.items()},
        }
        for each in runs
    ]
    return data


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
