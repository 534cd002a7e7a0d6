"""Expansion of macros.

The parser calls it for every call whose name, argument count and style match the table at the end. A macro may decline
(`cel.bind` is one only on `cel`); then the call stays a call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from bayplan.cel.parser.source import ExpressionSource
from bayplan.cel.parser.syntax import (
    ACCUMULATOR,
    UNUSED,
    Call,
    Comprehension,
    Expr,
    Ident,
    ListExpr,
    Literal,
    MapExpr,
    Scalar,
    Select,
    children,
)

_LEGACY_ACCUMULATOR = "__result__"
_SORT_INPUT = "@__sortBy_input__"


class MacroError(Exception):
    """The call has the form of a macro, but its arguments are invalid."""

    def __init__(self, node: Expr, message: str) -> None:
        super().__init__(message)
        self.node_id = node.id


class NodeFactory:
    """Creates nodes with new ids. Nodes of a macro have the position of the macro call."""

    def __init__(self, source: ExpressionSource) -> None:
        self._source = source
        self._last = 0
        self.at = 0

    def node_id(self, offset: int | None = None) -> int:
        self._last += 1
        self._source.positions[self._last] = self.at if offset is None else offset
        return self._last

    def literal(self, value: Scalar) -> Expr:
        return Literal(self.node_id(), value)

    def ident(self, name: str) -> Expr:
        return Ident(self.node_id(), name)

    def accumulator(self) -> Expr:
        return self.ident(ACCUMULATOR)

    def call(self, function: str, *args: Expr, target: Expr | None = None) -> Expr:
        return Call(self.node_id(), function, list(args), target)

    def list(self, *elements: Expr) -> Expr:
        return ListExpr(self.node_id(), list(elements))

    def copy(self, node: Expr) -> Expr:
        """A copy of the tree with new ids, since ids are the keys of types and references."""
        twin = copy.deepcopy(node)
        self._renumber(twin)
        return twin

    def _renumber(self, node: Expr) -> None:
        node.id = self.node_id(self._source.set_offset(node.id))
        for child in children(node):
            self._renumber(child)

    def comprehension(
        self,
        over: Expr,
        variables: tuple[str, str],
        accumulator: str,
        init: Expr,
        condition: Expr,
        step: Expr,
        result: Expr,
    ) -> Expr:
        return Comprehension(self.node_id(), over, *variables, accumulator, init, condition, step, result)

    def bind(self, name: str, value: Expr, result: Expr) -> Expr:
        """A fold over an empty range: only the initial value and the result are used."""
        return self.comprehension(
            self.list(), (UNUSED, ""), name, value, self.literal(value=False), self.ident(name), result
        )


Macro = Callable[[NodeFactory, "Expr | None", list[Expr]], "Expr | None"]


def _name(node: Expr, message: str) -> str:
    if not isinstance(node, Ident):
        raise MacroError(node, message)
    if node.name in (ACCUMULATOR, _LEGACY_ACCUMULATOR):
        raise MacroError(node, "iteration variable overwrites accumulator variable")
    return node.name


def _variables(args: list[Expr], message: str, count: int) -> tuple[str, str]:
    names = [_name(arg, message) for arg in args[:count]]
    if count == 1:
        return names[0], ""
    if names[0] == names[1]:
        raise MacroError(args[1], f"duplicate variable name: {names[0]}")
    return names[0], names[1]


def _has(make: NodeFactory, _: Expr | None, args: list[Expr]) -> Expr:
    tested = args[0]
    if not isinstance(tested, Select):
        raise MacroError(tested, "invalid argument to has() macro")
    return Select(make.node_id(), tested.operand, tested.field, test_only=True)


def _quantifier(kind: str, variables: int) -> Macro:
    def expand(make: NodeFactory, target: Expr | None, args: list[Expr]) -> Expr:
        assert target is not None
        names = _variables(args, "argument must be a simple name", variables)
        predicate = args[variables]
        accu = make.accumulator
        if kind == "all":
            init, result = make.literal(value=True), accu()
            condition = make.call("@not_strictly_false", accu())
            step = make.call("_&&_", accu(), predicate)
        elif kind == "exists":
            init, result = make.literal(value=False), accu()
            condition = make.call("@not_strictly_false", make.call("!_", accu()))
            step = make.call("_||_", accu(), predicate)
        else:
            init, condition = make.literal(0), make.literal(value=True)
            step = make.call("_?_:_", predicate, make.call("_+_", accu(), make.literal(1)), accu())
            result = make.call("_==_", accu(), make.literal(1))
        return make.comprehension(target, names, ACCUMULATOR, init, condition, step, result)

    return expand


def _collecting_comprehension(
    make: NodeFactory, over: Expr, names: tuple[str, str], init: Expr, keep: Expr | None, step: Expr
) -> Expr:
    """A fold that extends its accumulator by `step`, where `keep` is true."""
    if keep is not None:
        step = make.call("_?_:_", keep, step, make.accumulator())
    condition = make.literal(value=True)
    return make.comprehension(over, names, ACCUMULATOR, init, condition, step, make.accumulator())


def _map(make: NodeFactory, target: Expr | None, args: list[Expr]) -> Expr:
    assert target is not None
    names = _variables(args, "argument is not an identifier", 1)
    keep = args[1] if len(args) == 3 else None
    step = make.call("_+_", make.accumulator(), make.list(args[-1]))
    return _collecting_comprehension(make, target, names, make.list(), keep, step)


def _filter(make: NodeFactory, target: Expr | None, args: list[Expr]) -> Expr:
    assert target is not None
    names = _variables(args, "argument is not an identifier", 1)
    step = make.call("_+_", make.accumulator(), make.list(args[0]))
    return _collecting_comprehension(make, target, names, make.list(), args[1], step)


def _transform_list(make: NodeFactory, target: Expr | None, args: list[Expr]) -> Expr:
    assert target is not None
    names = _variables(args, "argument must be a simple name", 2)
    keep = args[2] if len(args) == 4 else None
    step = make.call("_+_", make.accumulator(), make.list(args[-1]))
    return _collecting_comprehension(make, target, names, make.list(), keep, step)


def _transform_map(*, entries: bool) -> Macro:
    def expand(make: NodeFactory, target: Expr | None, args: list[Expr]) -> Expr:
        assert target is not None
        names = _variables(args, "argument must be a simple name", 2)
        keep = args[2] if len(args) == 4 else None
        key = [] if entries else [make.ident(names[0])]
        step = make.call("cel.@mapInsert", make.accumulator(), *key, args[-1])
        return _collecting_comprehension(make, target, names, MapExpr(make.node_id(), []), keep, step)

    return expand


def _opt_map(*, flat: bool) -> Macro:
    macro = "optFlatMap" if flat else "optMap"

    def expand(make: NodeFactory, target: Expr | None, args: list[Expr]) -> Expr:
        assert target is not None
        if not isinstance(args[0], Ident):
            raise MacroError(args[0], f"{macro}() variable name must be a simple identifier")
        present = make.call("hasValue", target=target)
        bound = make.bind(args[0].name, make.call("value", target=make.copy(target)), args[1])
        then = bound if flat else make.call("optional.of", bound)
        return make.call("_?_:_", present, then, make.call("optional.none"))

    return expand


def _bind(make: NodeFactory, target: Expr | None, args: list[Expr]) -> Expr | None:
    if not (isinstance(target, Ident) and target.name == "cel"):
        return None
    if not isinstance(args[0], Ident):
        raise MacroError(args[0], "cel.bind() variable names must be simple identifiers")
    return make.bind(args[0].name, args[1], args[2])


def _sort_by(make: NodeFactory, target: Expr | None, args: list[Expr]) -> Expr:
    assert target is not None
    if isinstance(target, Literal | MapExpr):
        message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
        raise MacroError(target, message)
    keys = _map(make, make.ident(_SORT_INPUT), args)
    ordered = make.call("@sortByAssociatedKeys", keys, target=make.ident(_SORT_INPUT))
    return make.bind(_SORT_INPUT, target, ordered)


# Name, arguments and style of the macros in the device environment.
MACROS: dict[tuple[str, int, bool], Macro] = {
    ("has", 1, False): _has,
    ("all", 2, True): _quantifier("all", 1),
    ("all", 3, True): _quantifier("all", 2),
    ("exists", 2, True): _quantifier("exists", 1),
    ("exists", 3, True): _quantifier("exists", 2),
    ("exists_one", 2, True): _quantifier("one", 1),
    ("exists_one", 3, True): _quantifier("one", 2),
    ("existsOne", 3, True): _quantifier("one", 2),
    ("map", 2, True): _map,
    ("map", 3, True): _map,
    ("filter", 2, True): _filter,
    ("transformList", 3, True): _transform_list,
    ("transformList", 4, True): _transform_list,
    ("transformMap", 3, True): _transform_map(entries=False),
    ("transformMap", 4, True): _transform_map(entries=False),
    ("transformMapEntry", 3, True): _transform_map(entries=True),
    ("transformMapEntry", 4, True): _transform_map(entries=True),
    ("optMap", 2, True): _opt_map(flat=False),
    ("optFlatMap", 2, True): _opt_map(flat=True),
    ("sortBy", 2, True): _sort_by,
    ("bind", 3, True): _bind,
}
