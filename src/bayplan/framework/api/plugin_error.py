"""Fault of a plugin at an extension point."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from bayplan.errors import PluginError
from bayplan.framework.api.extension_points import ExtensionPoint
from bayplan.snapshot import RowVector

PACKAGE_FOLDER = f"{Path(__file__).parents[2]}{os.sep}"
"""Prefix of the file names of this package in a traceback."""


class PluginFault(PluginError):
    """A plugin raised or returned an invalid answer. `text` becomes the message of the pod's status."""

    def __init__(self, plugin: str, point: str, text: str) -> None:
        super().__init__(f'plugin "{plugin}" at {point}: {text}')
        self.plugin = plugin
        self.point = point
        self.text = text
        self.failed_call: tuple[ExtensionPoint, RowVector | None] | None = None  # point and node rows of the call

    def raise_if_same_call(self, plugin: Any, point: ExtensionPoint, rows: RowVector | None = None) -> None:
        """Raise the fault again instead of repeating the call that failed."""
        if self.failed_call is None or self.plugin != plugin.name or self.failed_call[0] is not point:
            return
        before = self.failed_call[1]
        if rows is None or (before is not None and np.array_equal(before, rows)):
            raise self

    @classmethod
    def from_exception(cls, plugin: Any, point: str, fault: BaseException) -> PluginFault:
        """Build the fault of a plugin that raised, with the location in its code."""
        if isinstance(fault, PluginFault):
            return fault
        return cls(
            plugin.name, point, f"{type(fault).__name__}: {exception_text(fault)}{_fault_location(plugin, fault)}"
        )


def exception_text(fault: BaseException) -> str:
    """Return the text of an exception, also if its `__str__` raises."""
    try:
        return str(fault)
    except Exception:
        return "no error text: str() of the exception failed"


def _fault_location(plugin: Any, fault: BaseException) -> str:
    """Return file and line of the last frame in the plugin's own file, or else outside this package."""
    frames = traceback.extract_tb(fault.__traceback__)
    if not frames:
        return ""
    own = getattr(sys.modules.get(type(plugin).__module__), "__file__", None)
    external = [frame for frame in frames if not frame.filename.startswith(PACKAGE_FOLDER)]
    last = ([frame for frame in frames if frame.filename == own] or external or frames)[-1]
    return f" ({Path(last.filename).name}:{last.lineno})"
