"""`bayplan place`: a cluster from files, its pods placed, and why each went where it did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayplan.app import build_engine, configured, filled_cache
from bayplan.cli.options import chosen_plugins, file_text, plugin_options
from bayplan.cli.printing import print_value
from bayplan.errors import UsageError
from bayplan.objects.core import Pod
from bayplan.objects.defaults import admitted
from bayplan.objects.manifests import load_manifests
from bayplan.scheduler.engine import PodEngine
from bayplan.telemetry.decisions import DecisionRecord
from bayplan.telemetry.explain import why

_BAR = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one pod."""

    pod: Pod
    node: str | None
    why: str
    evicted: tuple[str, ...] = ()
    record: DecisionRecord | None = None


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
@click.option("--seed", type=int, default=0, show_default=True, help="Decides between equally good nodes.")
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
    """Place the pending pods of a cluster in files, and show where each went and why.

    Pods are taken in the order of a real queue: higher priority first, then as they stand in the files. A pod that
    fits nowhere may evict others, and is then tried again. Nothing outside this process is touched.

    \b
    Examples:
      bayplan place -f examples/cluster
      bayplan place -f nodes.yaml -f pods.yaml --config scheduler.yaml -o json
    """
    registry = chosen_plugins(plugin_folders, trust_writable=trust_writable_plugins)
    loaded = load_manifests(files)
    objects = list(admitted(loaded.objects, loaded.places))
    engine = build_engine(
        configured(file_text(config) if config else None, registry), registry, filled_cache(objects), seed=seed
    )
    for note in loaded.skipped:
        click.echo(f"not looked at: {note}", err=True)
    waiting = [pod for pod in objects if isinstance(pod, Pod) and not pod.spec.node_name]
    if not waiting:
        raise UsageError("there is no pending pod in these files; a pod without spec.nodeName is one")
    outcomes = place_all(engine, waiting)
    if output in ("json", "yaml"):
        print_value(_as_data(outcomes), output)
        return
    console = Console()
    _print_pods(console, outcomes, wide=output == "wide")
    _print_nodes(console, engine)


def place_all(engine: PodEngine, waiting: Iterable[Pod]) -> list[Outcome]:
    """Place pods in queue order; a pod that made room by evicting others is tried again at once.

    A pod that Permit holds back is placed when the others that it waits for have come, and not before.
    """
    ordered = engine.in_queue_order(list(waiting))
    engine.pending.update({pod.uid: pod for pod in ordered})
    outcomes: dict[str, Outcome] = {}
    held: dict[str, Outcome] = {}
    for pod in ordered:
        outcome, waits_for = _place(engine, pod)
        engine.pending.pop(pod.uid, None)
        if waits_for:
            held[pod.uid] = outcome
            outcome = replace(outcome, node=None, why=f"waiting at Permit for {' and '.join(waits_for)}")
        outcomes[pod.uid] = outcome
        for settled, status in engine.settle():
            outcome = held.pop(settled.uid)
            outcomes[settled.uid] = outcome if status.ok else replace(outcome, node=None, why=status.message)
    return list(outcomes.values())


def _place(engine: PodEngine, pod: Pod) -> tuple[Outcome, list[str]]:
    """What became of the pod, and the plugins at Permit that it waits for."""
    if not engine.serves(pod):
        return Outcome(pod, None, f'no profile serves scheduler name "{pod.scheduler_name}"'), []
    gate = engine.framework(pod.scheduler_name).pre_enqueue(pod)
    if not gate.ok:
        return Outcome(pod, None, gate.message), []
    placed = engine.place(pod)
    victims = placed.decision.victims
    if placed.decision.nominate and victims:
        for victim in [each for each in engine.cache.pods() if each.key in victims]:
            engine.cache.remove_pod(victim)
        placed = engine.place(pod)
    record = engine.records.latest(pod.key)
    text = why(record) if record is not None else placed.status.message
    if placed.node is None and placed.decision.node is not None:
        text = placed.status.message
    if victims:
        text = f"evicted {', '.join(victims)}; {text}"
    return Outcome(pod, placed.node, text, victims, record), sorted(placed.waits_s)


def _print_pods(console: Console, outcomes: list[Outcome], *, wide: bool) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("POD", no_wrap=True)
    table.add_column("PRIORITY", justify="right")
    table.add_column("NODE", no_wrap=True)
    table.add_column("WHY", overflow="fold")
    if wide:
        table.add_column("SCORES (best five)", overflow="fold")
    for outcome in outcomes:
        node = f"[green]{outcome.node}[/green]" if outcome.node else "[yellow]pending[/yellow]"
        row = [outcome.pod.key, str(outcome.pod.priority), node, escape(outcome.why)]
        table.add_row(*row, *([escape(_scores(outcome.record))] if wide else []))
    console.print(table)
    placed = sum(outcome.node is not None for outcome in outcomes)
    console.print(f"\n{placed} of {len(outcomes)} pods placed\n")


def _scores(record: DecisionRecord | None) -> str:
    if record is None:
        return ""
    return "\n".join(
        f"{scored.node} {scored.total}: " + " ".join(f"{plugin} {score}" for plugin, score in scored.by_plugin)
        for scored in record.best
    )


def _print_nodes(console: Console, engine: PodEngine) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("NODE", "PODS", "CPU", "", "MEMORY", ""):
        table.add_column(title, justify="right" if title in ("PODS", "") else "left", no_wrap=True)
    for node in sorted(engine.snapshot().table, key=lambda node: node.name):
        table.add_row(
            node.name,
            f"{len(node.pods)}/{node.allocatable('pods')}",
            *_gauge(node.requested("cpu"), node.allocatable("cpu")),
            *_gauge(node.requested("memory"), node.allocatable("memory")),
        )
    console.print(table)


def _gauge(used: int, total: int) -> tuple[str, str]:
    share = used / total if total else 0.0
    filled = min(_BAR, round(share * _BAR))
    return f"[cyan]{'█' * filled}[/cyan][dim]{'░' * (_BAR - filled)}[/dim]", f"{share:.0%}"


def _as_data(outcomes: list[Outcome]) -> list[dict[str, Any]]:
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
