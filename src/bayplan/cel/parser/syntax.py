"""Node types of parsed expressions.

The parser and the macros create nodes, the checker annotates them (types and references are stored beside the tree, by
node id), and the validators and the compiler read them. The checker converts `a.b.c(x)` to a plain call if `a.b.c` is a
function's name, so calls are the only nodes that change after parsing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

Scalar: TypeAlias = "str | int | float | bool | bytes | None"


@dataclass(slots=True)
class Literal:
    id: int
    value: Scalar


@dataclass(slots=True)
class Ident:
    id: int
    name: str


@dataclass(slots=True)
class Select:
    id: int
    operand: Expr
    field: str
    test_only: bool = False


@dataclass(slots=True)
class Call:
    id: int
    function: str
    args: list[Expr]
    target: Expr | None = None


@dataclass(slots=True)
class ListExpr:
    id: int
    elements: list[Expr]
    optionals: frozenset[int] = frozenset()


@dataclass(slots=True)
class MapEntry:
    id: int
    key: Expr
    value: Expr
    optional: bool = False


@dataclass(slots=True)
class MapExpr:
    id: int
    entries: list[MapEntry]


@dataclass(slots=True)
class StructExpr:
    id: int
    name: str
    fields: list[tuple[int, str, Expr]] = field(default_factory=list)


@dataclass(slots=True)
class Comprehension:
    """A fold: every macro over a range becomes one. `cel.bind` is a fold over an empty range."""

    id: int
    range: Expr
    iter_var: str
    iter_var2: str
    accu_var: str
    init: Expr
    condition: Expr
    step: Expr
    result: Expr


Expr: TypeAlias = "Literal | Ident | Select | Call | ListExpr | MapExpr | StructExpr | Comprehension"

# No source text can contain the name of the accumulator.
ACCUMULATOR = "@result"
UNUSED = "#unused"


def children(node: Expr) -> Iterator[Expr]:
    match node:
        case Select():
            yield node.operand
        case Call():
            if node.target is not None:
                yield node.target
            yield from node.args
        case ListExpr():
            yield from node.elements
        case MapExpr():
            for entry in node.entries:
                yield entry.key
                yield entry.value
        case StructExpr():
            for _, _, value in node.fields:
                yield value
        case Comprehension():
            yield from (node.range, node.init, node.condition, node.step, node.result)
        case _:
            return


def qualified_name(node: Expr) -> str | None:
    """`a.b.c` as text, if the node consists of names and dots only."""
    match node:
        case Ident():
            return node.name
        case Select(test_only=False):
            prefix = qualified_name(node.operand)
            return None if prefix is None else f"{prefix}.{node.field}"
        case _:
            return None
