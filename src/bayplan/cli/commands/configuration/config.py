"""`bayplan config`: checks a KubeSchedulerConfiguration and shows its effective content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bayplan.cache import Cache
from bayplan.cli.engine_setup import load_plugins, open_engine
from bayplan.cli.flags.plugin_options import plugin_options
from bayplan.cli.output.printers import print_table, print_value
from bayplan.config.load import dump
from bayplan.framework.api.extension_points import ATTEMPT_ORDER
from bayplan.scheduler.engine import PodEngine


@click.group("config")
def command() -> None:
    """Check and show a KubeSchedulerConfiguration.

    \b
    Examples:
      bayplan config check scheduler.yaml
      bayplan config show scheduler.yaml
      bayplan config show scheduler.yaml -o yaml
    """


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@plugin_options
def check(file: Path, plugin_folders: tuple[Path, ...], trust_writable_plugins: bool) -> None:
    """Check whether FILE ("-": standard input) is valid; if not, print the reason and exit with code 1.

    \b
    Examples:
      bayplan config check scheduler.yaml
      bayplan config check scheduler.yaml --plugins-dir plugins
      helm template . | bayplan config check -
    """
    registry = load_plugins(plugin_folders, trust_writable=trust_writable_plugins)
    with open_engine(file, registry, Cache(), seed=0) as engine:
        names = list(engine.scheduler_names)
    click.echo(f"{file} is valid: {len(names)} profile(s) for {', '.join(names)}")


@command.command("show")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@plugin_options
def show(file: Path | None, output: str, plugin_folders: tuple[Path, ...], trust_writable_plugins: bool) -> None:
    """Show the effective configuration: the plugins of each profile at each point, in running order.

    Without FILE ("-": standard input) the default configuration is shown. -o json and -o yaml print the complete
    configuration with all defaults, as kube-scheduler has it, and the effective plugins under `effective`.

    \b
    Examples:
      bayplan config show
      bayplan config show scheduler.yaml -o yaml
    """
    registry = load_plugins(plugin_folders, trust_writable=trust_writable_plugins)
    with open_engine(file, registry, Cache(), seed=0) as engine:
        if output != "table":
            print_value({"configuration": dump(engine.configuration), "effective": _effective(engine)}, output)
            return
        for name in engine.scheduler_names:
            _print_profile(engine, name)


def _effective(engine: PodEngine) -> dict[str, Any]:
    return {
        name: {
            "plugins": engine.framework(name).profile.describe(),
            "nodesLookedAt": str(engine.sample_size(name)),
            "because": engine.sample_size(name).reason,
        }
        for name in engine.scheduler_names
    }


def _print_profile(engine: PodEngine, name: str) -> None:
    table = Table(title=f"profile {name}", title_justify="left", show_header=True, header_style="bold")
    table.add_column("point", no_wrap=True)
    table.add_column("plugins in running order (score plugins with their weight)")
    described = engine.framework(name).profile.describe()
    for point in ATTEMPT_ORDER:
        if point.key in described:
            table.add_row(point.key, "  ".join(described[point.key]))
    print_table(table)
    share = engine.sample_size(name)
    click.echo(f"evaluated nodes: {share}{f', because {share.reason}' if share.reason else ''}")
    if share.percentage == 0:
        click.echo("set percentageOfNodesToScore: 100 in the profile to evaluate all nodes")
    click.echo()
