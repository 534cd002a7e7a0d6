"""`bayplan whatif`: shows what a change of a cluster would do to its pods and its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from bayplan.cli.commands.simulation.cluster_source import (
    check_setup,
    configuration_options,
    read_source,
    resolve_setup,
    source_option,
)
from bayplan.cli.connection import ClusterConnection
from bayplan.cli.flags.connection_options import connection_options
from bayplan.cli.flags.plugin_options import plugin_options
from bayplan.cli.output.printers import print_table, print_value
from bayplan.sim.offline.whatif import ClusterCost, PodOutcomeChange, WhatIfResult, apply_to_setup, run_whatif
from bayplan.sim.offline.whatif_file import read_whatif_file

_MAX_ROWS = 20
_MIN_TEXT_WIDTH = 30


@click.command("whatif")
@click.option(
    "-f", "--filename", "change", type=click.Path(path_type=Path), required=True, help="The file with the change."
)
@source_option
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for ties between nodes.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@configuration_options
@plugin_options
@connection_options
def command(
    change: Path,
    files: tuple[Path, ...],
    seed: int,
    output: str,
    config: Path | None,
    scheduler_conf: Path | None,
    plugin_folders: tuple[Path, ...],
    trust_writable_plugins: bool,
    connection: ClusterConnection,
) -> None:
    """Show which pods a change of a cluster would place, move or leave pending, and what it would cost.

    The cluster is the live one, a recording or manifests (--from). The change in the file of -f is a WhatIf: nodes to
    add or remove, another configuration, other priorities, prices; further documents are objects to add. The cluster
    is not changed.

    \b
    Examples:
      bayplan whatif -f change.yaml
      bayplan whatif -f change.yaml --from cluster.jsonl.gz -o json
      bayplan whatif -f change.yaml --from examples/cluster

    \b
    A change:
      apiVersion: bayplan.dev/v1alpha1
      kind: WhatIf
      nodes:
        add: ["gpu=2:cpu=96,nvidia.com/gpu=8", {like: node-1, count: 3}]
        remove: [node-7, "old-*"]
      configuration: bin-packing.yaml
      priorities: {classes: {urgent: 5000}}
      prices: {perHour: {m7.large: 0.10}}
    """
    change_spec = read_whatif_file(change)
    source = read_source(files, connection)
    setup = resolve_setup(
        config, scheduler_conf, plugin_folders, trust_writable=trust_writable_plugins, recorded=source.recording
    )
    check_setup(apply_to_setup(setup, change_spec), f"{change}: configuration", f"{change}: batchConfiguration")
    answer = run_whatif(source.objects, change_spec, setup, now=source.at, seed=seed)
    if output != "table":
        print_value(answer.as_data(), output)
        return
    _print_pod_changes("land", answer.lands, _describe_placement)
    _print_pod_changes("move", answer.moves, lambda outcome: f"{outcome.now} -> {outcome.then}")
    _print_pod_changes("wait", answer.waits, _describe_pending)
    if answer.gone:
        click.echo(f"{_pods(len(answer.gone))} would go with their node\n")
    _print_costs(answer)


def _pods(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}"


def _describe_placement(outcome: PodOutcomeChange) -> str:
    if not outcome.without:
        return outcome.then
    return outcome.then if outcome.without == outcome.then else f"{outcome.then} ({outcome.without} without the change)"


def _describe_pending(outcome: PodOutcomeChange) -> str:
    return f"was on {outcome.now}" if outcome.now else ""


def _print_pod_changes(
    title: str, outcomes: Sequence[PodOutcomeChange], where: Callable[[PodOutcomeChange], str]
) -> None:
    click.echo(f"{_pods(len(outcomes))} would {title}")
    if outcomes:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column("POD", no_wrap=True)
        table.add_column("WHERE", no_wrap=True)
        table.add_column("WHY", overflow="fold", min_width=_MIN_TEXT_WIDTH)
        for outcome in outcomes[:_MAX_ROWS]:
            table.add_row(escape(f"  {outcome.pod}"), escape(where(outcome)), escape(outcome.why))
        print_table(table)
    if len(outcomes) > _MAX_ROWS:
        click.echo(f"  and {len(outcomes) - _MAX_ROWS} more; -o json lists all")
    click.echo()


def _print_costs(answer: WhatIfResult) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("COST", "NOW", "THEN"):
        table.add_column(title, no_wrap=True, justify="left" if title == "COST" else "right")
    table.add_row("nodes", str(answer.now.nodes), str(answer.then.nodes))
    for name in sorted(answer.now.requested.keys() | answer.then.requested.keys()):
        table.add_row(escape(f"{name} requested"), *(f"{bill.requested.get(name, 0):.0%}" for bill in _costs(answer)))
    if answer.then.per_hour is not None:
        table.add_row("price an hour", *map(_price, _costs(answer)))
    table.add_row("pods that restart", "", str(answer.restarts))
    print_table(table)


def _costs(answer: WhatIfResult) -> tuple[ClusterCost, ClusterCost]:
    return answer.now, answer.then


def _price(bill: ClusterCost) -> str:
    unknown = f" and {bill.unpriced} unknown" if bill.unpriced else ""
    return f"{bill.per_hour or 0:.2f}{unknown}"
