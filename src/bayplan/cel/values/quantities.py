"""Answers one question: what does CEL need to know of a Kubernetes quantity?

Quantities are made elsewhere and handed in; this room sees them through the protocol below. A sum or difference is
kept apart from a quantity that was read (`DerivedQuantity`), because cel-go cannot compare with one on the right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class QuantityValue(Protocol):
    """An exact decimal number with a notation; `str()` gives the canonical form."""

    def compare(self, other: Any, /) -> int:
        """-1, 0 or 1."""

    def add(self, other: Any, /) -> Any: ...

    def sub(self, other: Any, /) -> Any: ...

    def sign(self) -> int:
        """-1, 0 or 1."""

    def as_integer(self) -> int | None:
        """The value as int64, or None where it has a fraction, is too large, or is kept as a decimal."""

    def as_float(self) -> float:
        """The nearest double."""


ParseQuantity = Callable[[str], QuantityValue]


@dataclass(frozen=True, slots=True, eq=False)
class DerivedQuantity:
    """What `add` and `sub` return."""

    value: QuantityValue
