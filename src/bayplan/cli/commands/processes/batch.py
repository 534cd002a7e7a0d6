"""`bayplan batch`: the batch engine; checks and shows its configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bayplan.app.configuration import batch_configured, known_actions, known_batch_plugins
from bayplan.batch.config.argument_specs import argument_problems, argument_specs_of
from bayplan.batch.config.scheduler_conf import (
    DEFAULTED_FLAGS,
    BatchConfiguration,
    PluginOption,
    load_default_conf,
    suggest_remedy,
    to_conf_text,
    to_json_value,
)
from bayplan.batch.node_usage.metrics_sources import metrics_problems
from bayplan.batch.registry import ActionSet, BatchPluginSet
from bayplan.cli.commands.processes.batch_run import command as run
from bayplan.cli.engine_setup import read_text
from bayplan.cli.flags.plugin_options import plugin_options
from bayplan.cli.output.printers import print_table, print_value
from bayplan.codec.go_text import go_value
from bayplan.errors import ConfigError

_ARGUMENTS_READ_FROM = {"gangpreempt": "allocate", "gangreclaim": "allocate"}
"""Actions that read some of their arguments from the section of another action."""


class _DefaultToRunGroup(click.Group):
    """A group whose flags without a command belong to `run`, as vc-scheduler is started."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group("batch", cls=_DefaultToRunGroup)
def command() -> None:
    """The batch engine: gangs, queues and fair share, configured like Volcano's scheduler.

    Flags without a command belong to `run`.

    \b
    Examples:
      bayplan batch run --kubeconfig ~/.kube/config
      bayplan batch --scheduler-conf volcano-scheduler.conf
      bayplan batch config check volcano-scheduler.conf
      bayplan batch config show volcano-scheduler.conf
    """


command.add_command(run)


@command.group("config")
def config() -> None:
    """Check and show a volcano-scheduler.conf.

    \b
    Examples:
      bayplan batch config check volcano-scheduler.conf
      bayplan batch config show
      bayplan batch config show volcano-scheduler.conf -o yaml
    """


@config.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Check arguments and metrics, too; exit code 1 if anything is ignored.")
@plugin_options
def check(file: Path, strict: bool, plugin_folders: tuple[Path, ...], trust_writable_plugins: bool) -> None:
    """Check whether FILE ("-": standard input) is valid; if not, print the reason and exit with code 1.

    The command reports what Volcano ignores silently: unknown and duplicate keys, plugins that do not exist, and
    arguments of actions that do not run. With --strict it also reports arguments and keys of `metrics` that are not
    used, and values of the wrong type.

    \b
    Examples:
      bayplan batch config check volcano-scheduler.conf
      bayplan batch config check volcano-scheduler.conf --strict --plugins-dir plugins
      kubectl get cm volcano-scheduler-configmap -n volcano-system -o json \\
        | jq -r '.data["volcano-scheduler.conf"]' | bayplan batch config check -
    """
    plugins = known_batch_plugins(plugin_folders, trust_writable=trust_writable_plugins)
    actions = known_actions(plugin_folders, trust_writable=trust_writable_plugins)
    found = _load_file(file, actions)
    summary = f"{len(found.plugins)} plugin(s) in {len(found.tiers)} tier(s)"
    click.echo(f"{file} is valid: actions {', '.join(found.actions)}; {summary}")
    notes = [*_compatibility_warnings(found, plugins), *(_argument_warnings(found, plugins, actions) if strict else ())]
    for note in notes:
        click.echo(f"note: {note}")
    if strict and notes:
        raise ConfigError(f"{file}: {len(notes)} setting(s) are ignored; see the notes above", stage="validation")


@config.command("show")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@plugin_options
def show(file: Path | None, output: str, plugin_folders: tuple[Path, ...], trust_writable_plugins: bool) -> None:
    """Show the effective configuration: actions in running order, the plugins of each tier, flags and arguments.

    Without FILE ("-": standard input) the built-in configuration is shown. -o json and -o yaml print the equivalent
    complete file, with all defaults.

    \b
    Examples:
      bayplan batch config show
      bayplan batch config show volcano-scheduler.conf -o yaml
    """
    actions = known_actions(plugin_folders, trust_writable=trust_writable_plugins)
    found = load_default_conf() if file is None else _load_file(file, actions)
    if output == "yaml":
        print_value(to_conf_text(found), output)
    elif output == "json":
        print_value(to_json_value(to_conf_text(found)), output)
    else:
        _print(found)


def _load_file(file: Path, actions: ActionSet) -> BatchConfiguration:
    try:
        return batch_configured(read_text(file), actions)
    except ConfigError as fault:
        raise ConfigError(f"{file}: {fault}; {suggest_remedy(fault, tuple(actions))}", stage=fault.stage) from None


def _compatibility_warnings(found: BatchConfiguration, plugins: BatchPluginSet) -> list[str]:
    unknown = dict.fromkeys(each.name for each in found.plugins if each.name not in plugins)
    read = {*found.actions, *(_ARGUMENTS_READ_FROM.get(action, "") for action in found.actions)}
    unused = dict.fromkeys(each.name for each in found.configurations if each.name not in read)
    return [
        *found.notes,
        *(f"plugin {name!r} is not built in; it is ignored unless you add it" for name in unknown),
        *(f"configurations: {name!r} is not an enabled action, so its arguments are ignored" for name in unused),
    ]


def _argument_warnings(found: BatchConfiguration, plugins: BatchPluginSet, actions: ActionSet) -> Iterator[str]:
    """Arguments that are unused or have a wrong type. Plugins without declared arguments are not checked."""
    for option in found.plugins:
        yield from _invalid_argument_warnings(option.name, plugins.get(option.name), option.arguments)
    for each in found.configurations:
        yield from _invalid_argument_warnings(each.name, actions.get(each.name), each.arguments)
    yield from metrics_problems(found.metrics or {})


def _invalid_argument_warnings(name: str, owner: object, given: Mapping[str, Any]) -> Iterator[str]:
    takes = argument_specs_of(owner)
    return iter(()) if takes is None else argument_problems(name, takes, given)


def _print(found: BatchConfiguration) -> None:
    click.echo(f"actions: {', '.join(found.actions)}")
    table = Table(show_header=True, header_style="bold")
    for column in ("tier", "plugin"):
        table.add_column(column, no_wrap=True)
    table.add_column("flags that differ from the default")
    table.add_column("arguments")
    for number, tier in enumerate(found.tiers, 1):
        for plugin in tier:
            table.add_row(str(number), plugin.name, _changed_flags(plugin), _arguments(plugin.arguments))
    print_table(table)
    for each in found.configurations:
        click.echo(f"arguments of {each.name}: {_arguments(each.arguments)}")
    if found.metrics is not None:
        click.echo(f"metrics: {_arguments(found.metrics)}")


def _changed_flags(plugin: PluginOption) -> str:
    changed = {key: on for key, on in plugin.flags.items() if on != (key in DEFAULTED_FLAGS)}
    return "  ".join(f"{key}: {go_value(on)}" for key, on in changed.items())


def _arguments(arguments: Any) -> str:
    return "  ".join(f"{key}: {json.dumps(to_json_value(value))}" for key, value in arguments.items())
