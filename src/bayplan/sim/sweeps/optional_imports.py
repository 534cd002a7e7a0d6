"""Imports of optional libraries, with an error that names the extra to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bayplan.errors import UsageError


def import_optional(module: str, *, wanted_for: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        library = module.partition(".")[0]
        text = f"{wanted_for} needs {library}; install it with: pip install 'bayplan[{extra}]'"
        raise UsageError(text) from None
