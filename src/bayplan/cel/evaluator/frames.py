"""State of one evaluation.

A frame is created for every evaluation: the device (or object), the cost so far, and a slot for each variable of a fold
or a binding. Compiled nodes are functions of a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bayplan.cel.values.device_view import DeviceView

Run = Callable[["Frame"], Any]


class _UnsetType:
    """A binding that has not been evaluated yet."""

    __slots__ = ()


UNSET = _UnsetType()
_NO_SLOTS: list[Any] = []


class Frame:
    __slots__ = ("cost", "slots", "view")

    def __init__(self, view: DeviceView | Any, slots: int) -> None:
        self.view: Any = view
        self.cost = 0
        self.slots: list[Any] = [UNSET] * slots if slots else _NO_SLOTS
