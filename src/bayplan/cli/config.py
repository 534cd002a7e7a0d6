"""`bayplan config`: is a configuration right, and what does it really run?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bayplan.app import build_engine, configured
from bayplan.cache import Cache
from bayplan.cli.options import chosen_plugins, file_text, plugin_options
from bayplan.cli.printing import print_value
from bayplan.config.load import dump
from bayplan.errors import ConfigError
from bayplan.framework.points import ATTEMPT_ORDER
from bayplan.framework.registry import Registry
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
    """Say whether FILE ("-": standard input) is accepted; exit code 1 and the reason if not."""
    engine = _engine(file, chosen_plugins(plugin_folders, trust_writable=trust_writable_plugins))
    names = ", ".join(engine.scheduler_names)
    click.echo(f"{file} is valid: {len(list(engine.scheduler_names))} profile(s) for {names}")


@command.command("show")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@plugin_options
def show(file: Path | None, output: str, plugin_folders: tuple[Path, ...], trust_writable_plugins: bool) -> None:
    """Show the effective configuration: the plugins of each profile at each point, in running order.

    Without FILE the default configuration is shown. -o json and -o yaml print the whole configuration with every
    default filled in, as kube-scheduler would have it, and `effective`, what runs.
    """
    engine = _engine(file, chosen_plugins(plugin_folders, trust_writable=trust_writable_plugins))
    if output == "table":
        for name in engine.scheduler_names:
            _print_profile(engine, name)
        return
    print_value({"configuration": dump(engine.configuration), "effective": _effective(engine)}, output)


def _engine(file: Path | None, registry: Registry) -> PodEngine:
    try:
        configuration = configured(file_text(file) if file is not None else None, registry)
        return build_engine(configuration, registry, Cache(), seed=0)
    except ConfigError as fault:
        raise ConfigError(f"{file}: {fault}", stage=fault.stage) from None


def _effective(engine: PodEngine) -> dict[str, Any]:
    return {
        name: {
            "plugins": engine.framework(name).profile.described(),
            "nodesLookedAt": _nodes_looked_at(engine, name),
        }
        for name in engine.scheduler_names
    }


def _nodes_looked_at(engine: PodEngine, name: str) -> str:
    percentage = engine.percentage(name)
    if percentage is None:
        return "all"
    return "adaptive sample" if percentage == 0 else f"{percentage}%"


def _print_profile(engine: PodEngine, name: str) -> None:
    table = Table(title=f"profile {name}", title_justify="left", show_header=True, header_style="bold")
    table.add_column("point", no_wrap=True)
    table.add_column("plugins in running order (score plugins with their weight)")
    described = engine.framework(name).profile.described()
    for point in ATTEMPT_ORDER:
        if point.key in described:
            table.add_row(point.key, "  ".join(described[point.key]))
    console = Console()
    console.print(table)
    console.print(f"nodes looked at: {_nodes_looked_at(engine, name)}\n")
