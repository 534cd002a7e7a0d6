"""Answers one question: what does one evaluation carry with it?

A frame is made for every evaluation: the device, what it has cost so far, and one slot for each variable that a
fold or a binding of the expression has. Compiled nodes are functions of a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bayplan.cel.cost import LIMIT
from bayplan.cel.faults import COST_EXCEEDED, Abort
from bayplan.cel.values import CelMap

Run = Callable[["Frame"], Any]


class _Unset:
    """A binding that nobody has looked at yet."""

    __slots__ = ()


UNSET = _Unset()


class Frame:
    __slots__ = ("attributes", "capacity", "cost", "device", "slots")

    def __init__(self, device: CelMap, attributes: dict[str, Any], capacity: dict[str, Any], slots: int) -> None:
        self.device = device
        self.attributes = attributes
        self.capacity = capacity
        self.cost = 0
        self.slots: list[Any] = [UNSET] * slots

    def check(self) -> None:
        """Loops ask this, so that an expression which is too dear also ends soon."""
        if self.cost > LIMIT:
            raise Abort(COST_EXCEEDED)
