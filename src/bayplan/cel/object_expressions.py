"""Compiles and evaluates validation rules of custom resources.

Rules see the value as `self` and, on updates, the old value as `oldSelf`. A rule is compiled once with its schema;
evaluating a common one takes a few microseconds. The language is that of device selectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.cel.checker.checker import NameScope, check_expression
from bayplan.cel.checker.validators import validate_expression
from bayplan.cel.device_expressions import TYPE_NAMES
from bayplan.cel.errors import CompileError
from bayplan.cel.evaluator.compiler import Program, compile_tree
from bayplan.cel.evaluator.frames import Frame
from bayplan.cel.libraries import functions
from bayplan.cel.parser.parser import parse
from bayplan.cel.parser.source import ExpressionSource
from bayplan.cel.types.types import CelType, TypeKind, optional_of
from bayplan.cel.values.quantities import ParseQuantity
from bayplan.cel.values.values import MISSING, OptionalValue


@dataclass(slots=True)
class _View:
    self: Any
    old: Any


class ObjectExpression:
    """A compiled rule. `reads_old`: whether it uses the old value."""

    __slots__ = ("_program", "optional_old", "reads_old", "text")

    def __init__(self, text: str, program: Program, *, uses_old: bool, optional_old: bool) -> None:
        self.text, self._program = text, program
        self.reads_old, self.optional_old = uses_old, optional_old

    def evaluate(self, value: Any, old: Any = MISSING) -> Any:
        """The result of the expression; raises `EvaluationError` if it fails."""
        return self._program.evaluate(_View(value, OptionalValue(old) if self.optional_old else old))


_VARIABLES: Mapping[str, Callable[[Frame], Any]] = {
    "self": lambda frame: frame.view.self,
    "oldSelf": lambda frame: frame.view.old,
}


class ObjectEnvironment:
    """Compiles rules. `fields` are the fields of the structs in the type of `self`."""

    def __init__(self, *, parse_quantity: ParseQuantity) -> None:
        self._functions = functions(parse_quantity)
        self._type_names = frozenset(name for name, t in TYPE_NAMES.items() if t.kind is TypeKind.TYPE)

    def compile(
        self,
        text: str,
        value: CelType,
        fields: Mapping[str, Mapping[str, CelType]],
        *,
        result: CelType,
        optional_old: bool = False,
    ) -> ObjectExpression:
        """The rule; raises `CompileError`. `result` is the required type of the result."""
        variables = {"self": value, "oldSelf": optional_of(value) if optional_old else value}
        names = NameScope({**TYPE_NAMES, **variables}, {name: dict(held) for name, held in fields.items()})
        source = ExpressionSource(text)
        try:
            checked = check_expression(parse(source), source, names, self._functions)
            source.check()
            validate_expression(checked, source)
            source.check()
            if checked.result != result and not checked.result.is_dyn:
                raise CompileError(f"must evaluate to a {result.name}")
            program = compile_tree(checked, self._functions, self._type_names, _VARIABLES)
        except RecursionError:
            raise CompileError("compilation failed: ERROR: <input>:-1:0: max recursion depth exceeded") from None
        uses_old = "oldSelf" in checked.names.values()
        return ObjectExpression(text, program, uses_old=uses_old, optional_old=optional_old)
