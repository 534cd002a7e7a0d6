"""Output for people, in tables that never cut a name, and for programs: the same value as JSON or YAML."""

from __future__ import annotations

import json
from typing import Any

import click
import yaml
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_UNBOUNDED = 100_000


def print_value(value: Any, form: str) -> None:
    """Print plain data in the form that was asked for."""
    if form == "json":
        click.echo(json.dumps(value, indent=2))
    else:
        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal, or as its words need: half a name is no name."""
    console, endless = Console(), Console(width=_UNBOUNDED)
    console.width = max(console.width, Measurement.get(endless, endless.options, table).minimum)
    console.print(table)
