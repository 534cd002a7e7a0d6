"""The interface of Kubernetes quantities in CEL.

Quantities are parsed elsewhere and passed in; this package uses the protocol below. A sum or difference differs from a
parsed quantity (`DerivedQuantity`), because cel-go cannot compare with one on the right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class QuantityValue(Protocol):
    """An exact decimal number with a notation; `str()` returns the canonical form."""

    def compare(self, other: Any, /) -> int:
        """-1, 0 or 1."""

    def add(self, other: Any, /) -> Any: ...

    def sub(self, other: Any, /) -> Any: ...

    def sign(self) -> int:
        """-1, 0 or 1."""

    def as_integer(self) -> int | None:
        """The value as int64, or None if it has a fraction, is too large, or has the decimal form."""

    def as_float(self) -> float:
        """The nearest double."""


ParseQuantity = Callable[[str], QuantityValue]


@dataclass(frozen=True, slots=True, eq=False)
class DerivedQuantity:
    """The result of `add` and `sub`."""

    value: QuantityValue
