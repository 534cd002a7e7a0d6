"""Output for programs: the same value as JSON or YAML."""

from __future__ import annotations

import json
from typing import Any

import click
import yaml


def print_value(value: Any, form: str) -> None:
    """Print plain data in the form that was asked for."""
    if form == "json":
        click.echo(json.dumps(value, indent=2))
    else:
        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)
