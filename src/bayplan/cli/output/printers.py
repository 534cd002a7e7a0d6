"""Output for people, in tables that never truncate a name, and for programs, as JSON or YAML."""

from __future__ import annotations

import json
from typing import Any

import click
import yaml
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from bayplan.codec.yaml_scalars import resolve_scalar

_UNLIMITED_WIDTH = 100_000
_LINE_BREAKS = frozenset("\x85\u2028\u2029\ufeff")
"""Characters that YAML reads as a line break, or not at all, unless they are escaped in double quotes."""


class _Dumper(yaml.SafeDumper):
    """Quotes every text that a YAML reader of Kubernetes or Volcano would take for another type, such as `y`."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write a repeated value twice: people read one place at a time."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = resolve_scalar(text, "", plain=True)[0] == "!!str"
    escaped = not _LINE_BREAKS.isdisjoint(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if escaped else None if plain else "'")


_Dumper.add_representer(str, _represent_text)


def print_value(value: Any, form: str) -> None:
    """Print plain data as JSON or YAML."""
    if form == "json":
        click.echo(json.dumps(value, indent=2))
    else:
        click.echo(yaml_text(value), nl=False)


def yaml_text(value: Any, *, sort_keys: bool = False) -> str:
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=sort_keys, allow_unicode=True)
    assert isinstance(text, str)
    return text


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal, or wider if names would be truncated."""
    console, endless = Console(), Console(width=_UNLIMITED_WIDTH)
    for column in table.columns:
        if column.no_wrap:  # Rich reserves only the longest word, and then truncates later columns
            texts = [*column.cells, *([column.header] if table.show_header else [])]
            column.min_width = max(
                (Measurement.get(endless, endless.options, text).maximum for text in texts), default=None
            )
    console.width = max(console.width, Measurement.get(endless, endless.options, table).minimum)
    console.print(table)
