"""Function declarations: signatures and implementations.

Libraries are lists of overloads. `Functions` combines them in cel-go's order, since the first overload that fits
determines an expression's type and its implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bayplan.cel.types.types import CelType, TypeKind

# Implements a function: CEL values in, a CEL value out; raises a `CelError` where cel-go returns an error.
Implementation = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Overload:
    """`run` is None if the function has one implementation for all its overloads."""

    function: str
    id: str
    args: tuple[CelType, ...]
    result: CelType
    member: bool = False
    run: Implementation | None = None
    guarded: bool = True

    @property
    def params(self) -> list[CelType]:
        found: dict[CelType, None] = {}
        for t in (self.result, *self.args):
            _collect(found, t)
        return list(found)


def _collect(found: dict[CelType, None], t: CelType) -> None:
    if t.kind is TypeKind.PARAM:
        found[t] = None
    for p in t.params:
        _collect(found, p)


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    overloads: tuple[Overload, ...]
    singleton: Implementation | None = None


def function(name: str, overload_id: str, args: tuple[CelType, ...], result: CelType, run: Implementation) -> Overload:
    return Overload(name, overload_id, args, result, run=run)


def method(name: str, overload_id: str, args: tuple[CelType, ...], result: CelType, run: Implementation) -> Overload:
    """`args[0]` is the receiver."""
    return Overload(name, overload_id, args, result, member=True, run=run)


class Functions:
    """An immutable table of functions by name."""

    def __init__(self, overloads: Iterable[Overload], singletons: dict[str, Implementation]) -> None:
        grouped: dict[str, list[Overload]] = {}
        for overload in overloads:
            grouped.setdefault(overload.function, []).append(overload)
        self._table = {name: Function(name, tuple(members), singletons.get(name)) for name, members in grouped.items()}

    def find(self, name: str) -> Function | None:
        return self._table.get(name.removeprefix("."))
