"""Options that several verbs share, and how their values are read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bayplan.app import known_plugins
from bayplan.errors import UsageError
from bayplan.framework.registry import Registry

F = TypeVar("F", bound=Callable[..., Any])


def plugin_options(command: F) -> F:
    """`--plugins-dir` and `--trust-writable-plugins`."""
    trust = click.option(
        "--trust-writable-plugins", is_flag=True, help="Load plugin files even if others may write them."
    )
    folders = click.option(
        "--plugins-dir",
        "plugin_folders",
        type=click.Path(path_type=Path),
        multiple=True,
        help="A folder of .py files with plugins of your own. May be given several times.",
    )
    return folders(trust(command))


def chosen_plugins(folders: tuple[Path, ...], *, trust_writable: bool) -> Registry:
    return known_plugins(folders, trust_writable=trust_writable)


def file_text(path: Path) -> str:
    """The text of a file; standard input for `-`."""
    if str(path) == "-":
        return sys.stdin.read()
    try:
        return path.read_text(encoding="utf-8")
    except OSError as fault:
        raise UsageError(f"{path} cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text") from None
