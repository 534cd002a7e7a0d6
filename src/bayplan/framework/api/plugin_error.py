"""Error of a plugin at an extension point."""

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
    """A plugin raised or answered nonsense. `text` is what the pod's status will say."""

    def __init__(self, plugin: str, point: str, text: str) -> None:
        super().__init__(f'plugin "{plugin}" at {point}: {text}')
        self.plugin = plugin
        self.point = point
        self.text = text
        self.question: tuple[ExtensionPoint, RowVector | None] | None = None  # at which point, and about which nodes

    def raise_if_same_call(self, plugin: Any, point: ExtensionPoint, rows: RowVector | None = None) -> None:
        """Raise it again where the plugin is about to be asked the same once more."""
        if self.question is None or self.plugin != plugin.name or self.question[0] is not point:
            return
        before = self.question[1]
        if rows is None or (before is not None and np.array_equal(before, rows)):
            raise self

    @classmethod
    def from_exception(cls, plugin: Any, point: str, fault: BaseException) -> PluginFault:
        """The fault of a plugin that raised, with the place in its code."""
        if isinstance(fault, PluginFault):
            return fault
        return cls(
            plugin.name, point, f"{type(fault).__name__}: {exception_text(fault)}{_fault_location(plugin, fault)}"
        )


def exception_text(fault: BaseException) -> str:
    """What an exception says; whoever raises one may have no words for it."""
    try:
        return str(fault)
    except Exception:
        return "it cannot say what"


def _fault_location(plugin: Any, fault: BaseException) -> str:
    """Where the plugin's own file was left last: what it called from there is somebody else's."""
    frames = traceback.extract_tb(fault.__traceback__)
    if not frames:
        return ""
    own = getattr(sys.modules.get(type(plugin).__module__), "__file__", None)
    others = [frame for frame in frames if not frame.filename.startswith(PACKAGE_FOLDER)]
    last = ([frame for frame in frames if frame.filename == own] or others or frames)[-1]
    return f" ({Path(last.filename).name}:{last.lineno})"
