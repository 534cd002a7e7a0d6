"""The options for plugins. Separate from the code that loads plugins, so that --help stays fast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def plugin_options(command: F) -> F:
    """`--plugins-dir` and `--trust-writable-plugins`."""
    trust = click.option(
        "--trust-writable-plugins", is_flag=True, help="Load plugin files even if other users may write them."
    )
    folders = click.option(
        "--plugins-dir",
        "plugin_folders",
        type=click.Path(path_type=Path),
        multiple=True,
        help="A folder of .py files with plugins of your own. May be given several times.",
    )
    return folders(trust(command))
