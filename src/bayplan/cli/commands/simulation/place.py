"""`bayplan place`: schedules the pods of a cluster in files and shows the reason of each decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from bayplan.app.configuration import filled_cache
from bayplan.cli.engine_setup import load_plugins, open_engine
from bayplan.cli.flags.plugin_options import plugin_options
from bayplan.cli.output.printers import print_table, print_value
from bayplan.errors import UsageError
from bayplan.objects.core import Pod
from bayplan.objects.defaults import with_all_defaults
from bayplan.objects.manifests import load_manifests
from bayplan.scheduler.engine import PodEngine
from bayplan.sim.offline.pod_placement import PlacementOutcome, place_pods

_BAR_WIDTH = 20
_MIN_TEXT_WIDTH = 30


@click.command("place")
@click.option(
    "-f",
    "--filename",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="A manifest or a folder of manifests. May be given several times.",
)
@click.option("--config", type=click.Path(path_type=Path), help="A KubeSchedulerConfiguration.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for ties between nodes.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json", "yaml"]), default="table", show_default=True
)
@plugin_options
def command(
    files: tuple[Path, ...],
    config: Path | None,
    seed: int,
    output: str,
    plugin_folders: tuple[Path, ...],
    trust_writable_plugins: bool,
) -> None:
    """Schedule the pending pods of a cluster in files, and show each decision with its reason.

    Pods are taken in the order of the scheduling queue: higher priority first, then in the order of the files. A pod
    that fits no node may evict other pods and is then tried again. Nothing outside this process is changed.

    \b
    Examples:
      bayplan place -f examples/cluster
      bayplan place -f nodes.yaml -f pods.yaml --config scheduler.yaml -o json
    """
    registry = load_plugins(plugin_folders, trust_writable=trust_writable_plugins)
    loaded = load_manifests(files)
    objects = list(with_all_defaults(loaded.objects, loaded.places))
    for note in loaded.skipped:
        click.echo(f"ignored: {note}", err=True)
    pending = [pod for pod in objects if isinstance(pod, Pod) and not pod.spec.node_name]
    if not pending:
        raise UsageError("these files contain no pending pod; add one without spec.nodeName")
    with open_engine(config, registry, filled_cache(objects), seed=seed) as engine:
        outcomes = place_pods(engine, pending)
        if output in ("json", "yaml"):
            print_value(_as_data(outcomes), output)
            return
        _print_pods(outcomes)
        if output == "wide":
            _print_scores(outcomes)
        _print_nodes(engine)


def _print_pods(outcomes: list[PlacementOutcome]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("POD", no_wrap=True)
    table.add_column("PRIORITY", justify="right", no_wrap=True)
    table.add_column("NODE", no_wrap=True)
    table.add_column("WHY", overflow="fold", min_width=_MIN_TEXT_WIDTH)
    for outcome in outcomes:
        node = f"[green]{escape(outcome.node)}[/green]" if outcome.node else "[yellow]pending[/yellow]"
        table.add_row(escape(outcome.pod.key), str(outcome.pod.priority), node, escape(outcome.why))
    print_table(table)
    placed = sum(outcome.node is not None for outcome in outcomes)
    click.echo(f"\n{placed} of {len(outcomes)} pods placed\n")


def _print_scores(outcomes: list[PlacementOutcome]) -> None:
    """The scores of the best nodes by plugin. Scores of zero are left out."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("POD", no_wrap=True)
    table.add_column("NODE", no_wrap=True)
    table.add_column("TOTAL", justify="right", no_wrap=True)
    table.add_column("SCORES (best five)", overflow="fold", min_width=_MIN_TEXT_WIDTH)
    for outcome in outcomes:
        for place, scored in enumerate(outcome.record.best if outcome.record else ()):
            shares = " ".join(f"{plugin}={score}" for plugin, score in scored.by_plugin if score)
            pod = escape(outcome.pod.key) if place == 0 else ""
            table.add_row(pod, escape(scored.node), str(scored.total), escape(shares))
    if table.row_count:
        print_table(table)
        click.echo()


def _print_nodes(engine: PodEngine) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("NODE", "PODS", "CPU", "", "MEMORY", ""):
        table.add_column(title, justify="right" if title in ("PODS", "") else "left", no_wrap=True)
    for node in sorted(engine.snapshot().table, key=lambda node: node.name):
        table.add_row(
            escape(node.name),
            f"{len(node.pods)}/{node.allocatable('pods')}",
            *_usage_bar(node.requested("cpu"), node.allocatable("cpu")),
            *_usage_bar(node.requested("memory"), node.allocatable("memory")),
        )
    print_table(table)


def _usage_bar(used: int, total: int) -> tuple[str, str]:
    share = used / total if total else 0.0
    filled = min(_BAR_WIDTH, round(share * _BAR_WIDTH))
    return f"[cyan]{'█' * filled}[/cyan][dim]{'░' * (_BAR_WIDTH - filled)}[/dim]", f"{share:.0%}"


def _as_data(outcomes: list[PlacementOutcome]) -> list[dict[str, Any]]:
    return [
        {
            "pod": outcome.pod.key,
            "priority": outcome.pod.priority,
            "node": outcome.node,
            "why": outcome.why,
            "evicted": list(outcome.evicted),
            "scores": {
                scored.node: {"total": scored.total, **dict(scored.by_plugin)}
                for scored in (outcome.record.best if outcome.record else ())
            },
        }
        for outcome in outcomes
    ]
