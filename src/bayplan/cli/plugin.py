"""`bayplan plugin`: start a plugin of your own, and see which ones there are."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bayplan.app import configured, known_plugins
from bayplan.cli.options import chosen_plugins, plugin_options
from bayplan.cli.printing import print_value
from bayplan.cli.scaffold import FORMS, plugin_and_test
from bayplan.errors import UsageError
from bayplan.framework.points import ATTEMPT_ORDER
from bayplan.framework.registry import Entry, Registry

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*\Z")
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
LONGEST_NAME = 34
_SHIPPED = "bayplan.plugins."


@click.group("plugin")
def command() -> None:
    """Start a plugin of your own, and see which ones there are.

    \b
    Examples:
      bayplan plugin new RackAware --dir plugins
      bayplan plugin list --plugins-dir plugins
    """


@command.command("new")
@click.argument("name")
@click.option(
    "--form",
    type=click.Choice(FORMS),
    default=FORMS[0],
    show_default=True,
    help="Whether it is asked about one node at a time (simple) or about the whole table of nodes (quick).",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Where to put the files; made if it is not there. Default: the current folder.",
)
def new(name: str, form: str, folder: Path) -> None:
    """Write a plugin that works, and its tests, as a start for your own.

    NAME is what configurations will call it: RackAware, or rack-aware for short.
    """
    class_name, module = names_of(name)
    if class_name in known_plugins():
        raise UsageError(f'there is a plugin "{class_name}" already; choose another name')
    plugin, test = folder / f"{module}.py", folder / f"test_{module}.py"
    texts = plugin_and_test(form, name=class_name, module=module)
    _write(folder, dict(zip((plugin, test), texts, strict=True)))
    click.echo(f"wrote {plugin} and {test}")
    click.echo(f"test it:  python -m pytest {test}")
    click.echo(f'run it:   enable "{class_name}" in a configuration and add --plugins-dir {folder} to a command')


def names_of(name: str) -> tuple[str, str]:
    """The class and the module of a plugin, from whatever way its name was written."""
    if not _NAME.match(name):
        raise UsageError(f"{name!r} is no name for a plugin; use letters and digits, as in RackAware")
    if len(name) > LONGEST_NAME:
        raise UsageError(f"{name!r} is too long to be read in a table; use at most {LONGEST_NAME} letters")
    class_name = "".join(part[0].upper() + part[1:] for part in re.split("[-_]", name))
    module = _WORD_STARTS.sub("_", class_name).lower()
    if keyword.iskeyword(class_name) or keyword.iskeyword(module) or module in sys.stdlib_module_names:
        raise UsageError(f"a file {module}.py would hide something of Python's own; choose another name")
    return class_name, module


def _write(folder: Path, texts: dict[Path, str]) -> None:
    """Write all files or none. Nobody else may write them: plugins run with the scheduler's rights."""
    taken = [path for path in texts if path.exists()]
    if taken:
        raise UsageError(f"{taken[0]} exists already; nothing was written")
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for path, text in texts.items():
            path.touch(mode=0o644, exist_ok=False)
            path.write_text(text, encoding="utf-8")
    except OSError as fault:
        raise UsageError(f"{fault.filename or folder} cannot be written: {fault.strerror}") from None


@command.command("list")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@plugin_options
def list_plugins(output: str, plugin_folders: tuple[Path, ...], trust_writable_plugins: bool) -> None:
    """Show every plugin that a configuration can name: its points, and where it comes from."""
    registry = chosen_plugins(plugin_folders, trust_writable=trust_writable_plugins)
    rows = [_described(entry, registry) for entry in registry]
    if output == "table":
        _print(rows)
    else:
        print_value(rows, output)


def _described(entry: Entry, registry: Registry) -> dict[str, Any]:
    (profile,) = configured(None, registry).profiles
    return {
        "name": entry.name,
        "points": [point.key for point in ATTEMPT_ORDER if entry.extends(point)],
        "byDefault": entry.name in profile.plugins.enabled_names(),
        "from": _origin(entry),
    }


def _origin(entry: Entry) -> str:
    module = entry.plugin.__module__
    if module.startswith(_SHIPPED):
        return "shipped"
    file = getattr(sys.modules.get(module), "__file__", None)
    return module if file is None else _short(Path(file))


def _short(path: Path) -> str:
    """The path as a person here would write it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("NAME", "POINTS", "BY DEFAULT", "FROM"):
        table.add_column(title, no_wrap=title == "NAME", overflow="fold")
    for row in rows:
        table.add_row(row["name"], " ".join(row["points"]), "yes" if row["byDefault"] else "no", row["from"])
    Console().print(table)
