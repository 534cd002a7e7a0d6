"""`bayplan plugin`: creates plugins from templates and lists plugins."""

from __future__ import annotations

import ast
import keyword
import re
import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bayplan.app.batch import build_batch_engine
from bayplan.app.configuration import configured, known_actions, known_batch_plugins, known_plugins
from bayplan.batch.config.scheduler_conf import BatchConfiguration, PluginOption, load_default_conf
from bayplan.batch.registry import BatchPluginSet
from bayplan.cache import Cache
from bayplan.cli.commands.configuration.batch_plugin_template import plugin_slug, render_batch_plugin
from bayplan.cli.commands.configuration.plugin_template import TEMPLATE_NAMES, render_plugin
from bayplan.cli.engine_setup import load_plugins
from bayplan.cli.flags.plugin_options import plugin_options
from bayplan.cli.output.printers import print_value
from bayplan.errors import UsageError
from bayplan.framework.api.extension_points import ATTEMPT_ORDER
from bayplan.framework.runtime.plugin_discovery import is_ignored_file
from bayplan.framework.runtime.registry import RegisteredPlugin, Registry

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*\Z")
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
MAX_NAME_LENGTH = 34
SHIPPED = "shipped"
_OWN_DISTRIBUTION = "bayplan"
_OWN_MODULE_PREFIXES = ("bayplan.plugins.", "bayplan.batch.")


@click.group("plugin")
def command() -> None:
    """Create a plugin from a template, and list plugins.

    \b
    Examples:
      bayplan plugin new RackAware --dir plugins
      bayplan plugin new --batch rack-aware --dir plugins
      bayplan plugin list --plugins-dir plugins
      bayplan plugin list --batch
    """


@command.command("new")
@click.argument("name")
@click.option("--batch", is_flag=True, help="Create a plugin of the batch engine, for gangs and queues.")
@click.option(
    "--form",
    type=click.Choice(TEMPLATE_NAMES),
    default=TEMPLATE_NAMES[0],
    show_default=True,
    help="Template: plugin_name for one node at a time (simple), or for the whole node table (fast).",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path(),
    help="The folder of the files; created if it does not exist. Default: the current folder.",
)
def new(name: str, batch: bool, form: str, folder: Path) -> None:
    """Write an example plugin and its tests as a starting point.

    NAME is the name in configurations: RackAware, or rack-aware for short. Plugins of the batch engine are named
    rack-aware in either spelling.

    \b
    Examples:
      bayplan plugin new RackAware
      bayplan plugin new RackAware --form table --dir plugins
      bayplan plugin new --batch rack-aware --dir plugins
    """
    class_name, module = class_and_module_names(name)
    plugin_name = plugin_slug(module) if batch else class_name
    if plugin_name in (known_batch_plugins() if batch else known_plugins()):
        raise UsageError(f'a plugin "{plugin_name}" exists already; choose another name')
    plugin, test = folder / f"{module}.py", folder / f"test_{module}.py"
    texts = (render_batch_plugin if batch else render_plugin)(form, name=class_name, module=module)
    if class_name in _imported_names(texts, module):
        raise UsageError(f"a class {class_name} would hide the {class_name} that it imports; choose another name")
    _write(folder, dict(zip((plugin, test), texts, strict=True)))
    place = "a tier of a volcano-scheduler.conf" if batch else "a configuration"
    verb = "name" if batch else "enable"
    click.echo(f"wrote {plugin} and {test}")
    click.echo(f"test it:  python -m pytest {test}")
    click.echo(f'run it:   {verb} "{plugin_name}" in {place} and add --plugins-dir {folder} to a command')


def class_and_module_names(name: str) -> tuple[str, str]:
    """The class and module names of a plugin, from either spelling of its name."""
    if not _NAME.match(name):
        raise UsageError(f"{name!r} is not a valid plugin name; use letters and digits, as in RackAware")
    if len(name) > MAX_NAME_LENGTH:
        raise UsageError(f"{name!r} is too long for tables; use at most {MAX_NAME_LENGTH} characters")
    class_name = "".join(part[0].upper() + part[1:] for part in re.split("[-_]", name))
    module = _WORD_STARTS.sub("_", class_name).lower()
    if is_ignored_file(f"{module}.py") or module == "test":
        raise UsageError(f"a file {module}.py would be loaded as a test and not as a plugin; choose another name")
    if keyword.iskeyword(class_name) or keyword.iskeyword(module) or module in sys.stdlib_module_names:
        raise UsageError(f"a file {module}.py would hide a module of Python's standard library; choose another name")
    if module == _OWN_DISTRIBUTION or module in packages_distributions():
        raise UsageError(f"a file {module}.py would hide the installed package {module}; choose another name")
    return class_name, module


def _imported_names(texts: Iterable[str], module: str) -> set[str]:
    """The names that the files import from modules other than `module`."""
    steps = [step for text in texts for step in ast.walk(ast.parse(text))]
    named = [step for step in steps if isinstance(step, ast.ImportFrom) and step.module != module]
    return {alias.asname or alias.name for step in named for alias in step.names}


def _write(folder: Path, texts: dict[Path, str]) -> None:
    """Write all files or none. Only the user may write them: plugins run with the scheduler's rights."""
    existing = [path for path in texts if path.exists()]
    if existing:
        raise UsageError(f"{existing[0]} exists already; no file was written; choose another name or folder")
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for path, text in texts.items():
            path.touch(mode=0o644, exist_ok=False)
            path.write_text(text, encoding="utf-8")
    except OSError as fault:
        raise UsageError(f"cannot write {fault.filename or folder}: {fault.strerror}; choose another --dir") from None


@command.command("list")
@click.option("--batch", is_flag=True, help="List the plugins and actions of the batch engine.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@plugin_options
def list_plugins(batch: bool, output: str, plugin_folders: tuple[Path, ...], trust_writable_plugins: bool) -> None:
    """List every plugin that a configuration can enable: its extension points, and where it comes from.

    A plugin of the batch engine registers when a session opens. So the command opens one on an empty cluster without
    arguments. Points that depend on arguments or flags are listed after "if configured", if the plugin declares them
    in `also_at`.

    \b
    Examples:
      bayplan plugin list
      bayplan plugin list --plugins-dir plugins -o json
      bayplan plugin list --batch
    """
    if batch:
        rows = _batch_rows(plugin_folders, trust_writable=trust_writable_plugins)
    else:
        registry = load_plugins(plugin_folders, trust_writable=trust_writable_plugins)
        rows = [_plugin_row(entry, registry) for entry in registry]
    if output == "table":
        _print(rows)
    else:
        print_value(rows, output)


def _plugin_row(entry: RegisteredPlugin, registry: Registry) -> dict[str, Any]:
    (profile,) = configured(None, registry).profiles
    return {
        "name": entry.name,
        "points": [point.key for point in ATTEMPT_ORDER if entry.extends(point)],
        "byDefault": entry.name in profile.plugins.enabled_names(),
        "from": _origin(entry.plugin),
    }


def _batch_rows(folders: tuple[Path, ...], *, trust_writable: bool) -> list[dict[str, Any]]:
    plugins = known_batch_plugins(folders, trust_writable=trust_writable)
    actions = known_actions(folders, trust_writable=trust_writable)
    by_default = load_default_conf()
    named, points = {option.name for option in by_default.plugins}, _batch_points(plugins)
    return [
        *(_batch_row(name, "plugin", points[name], name in named, plugins.get(name) or object) for name in plugins),
        *(
            _batch_row(name, "action", [], name in by_default.actions, type(action))
            for name, action in actions.actions.items()
        ),
    ]


def _batch_row(name: str, kind: str, points: list[str], by_default: bool, implementation: type[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "points": points,
        "ifConfigured": [each for each in getattr(implementation, "also_at", ()) if each not in points],
        "byDefault": by_default,
        "from": _origin(implementation),
    }


def _batch_points(plugins: BatchPluginSet) -> dict[str, list[str]]:
    """The points where each plugin registers in a session on an empty cluster. Plugins that fail are reported."""
    tier = tuple(PluginOption(name).with_default_flags() for name in plugins)
    engine = build_batch_engine(BatchConfiguration(tiers=(tier,)), Cache(), plugins=plugins)
    with engine.session() as session:
        for fault in session.faults:
            click.echo(f"note: {fault}", err=True)
        return {name: session.points_of(name) for name in plugins}


def _origin(plugin: type[Any]) -> str:
    module = plugin.__module__
    if module.startswith(_OWN_MODULE_PREFIXES):
        return SHIPPED
    file = getattr(sys.modules.get(module), "__file__", None)
    return module if file is None else _display_path(Path(file))


def _display_path(path: Path) -> str:
    """The path, relative to the current folder if it is below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _print(rows: list[dict[str, Any]]) -> None:
    """A table for a terminal of 80 columns. The file of an external plugin is listed below its points."""
    titles = {"name": "NAME", "kind": "KIND", "byDefault": "BY DEFAULT", "points": "POINTS"}
    shown = [key for key in titles if key in rows[0]]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for key in shown:
        table.add_column(titles[key], no_wrap=key == "name", overflow="fold")
    for row in rows:
        origin = [] if row["from"] == SHIPPED else [row["from"]]
        *cells, points = (_cell(row[key]) for key in shown)
        more = row.get("ifConfigured")
        lines = [points, f"if configured: {_cell(more)}" if more else "", *origin]
        table.add_row(*cells, "\n".join(line for line in lines if line))
    Console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(value) if isinstance(value, list) else value
