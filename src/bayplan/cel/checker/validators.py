"""Finds parts of a well-typed expression that can only fail.

Called once after type checking. It reports constant patterns, durations and times that do not parse, aggregates of
mixed types, and format calls whose clauses do not fit their arguments. Errors are collected in the source.
"""

from __future__ import annotations

from bayplan.cel.checker.checker import CheckedExpression
from bayplan.cel.errors import CelError
from bayplan.cel.libraries import conversions, string_format
from bayplan.cel.parser.source import ExpressionSource
from bayplan.cel.parser.syntax import Call, Expr, ListExpr, Literal, MapExpr, children
from bayplan.cel.regex.regex import compile_regex
from bayplan.cel.types.types import DYN, CelType, TypeKind, is_optional, short_name
from bayplan.cel.values import go_format
from bayplan.cel.values.values import Uint

_FORMATTABLE = frozenset(
    {
        TypeKind.LIST,
        TypeKind.MAP,
        TypeKind.INT,
        TypeKind.UINT,
        TypeKind.DOUBLE,
        TypeKind.BOOL,
        TypeKind.STRING,
        TypeKind.TIMESTAMP,
        TypeKind.BYTES,
        TypeKind.DURATION,
        TypeKind.TYPE,
        TypeKind.NULL,
    }
)


class _BadArgument(ValueError):
    def __init__(self, node: Expr, message: str) -> None:
        super().__init__(message)
        self.node = node


def validate_expression(checked: CheckedExpression, source: ExpressionSource) -> None:
    _Validator(checked, source).visit(checked.tree, exempt=False)


class _Validator:
    def __init__(self, checked: CheckedExpression, source: ExpressionSource) -> None:
        self._checked = checked
        self._source = source

    def visit(self, node: Expr, *, exempt: bool) -> None:
        """`exempt`: inside the arguments of format(), where lists may have mixed types."""
        if isinstance(node, Call):
            self._literal_argument(node)
            if node.function == "format":
                exempt = True
                self._format(node)
        elif not exempt and isinstance(node, ListExpr):
            self._uniform_list(node)
        elif not exempt and isinstance(node, MapExpr):
            self._uniform_map(node)
        for child in children(node):
            self.visit(child, exempt=exempt)

    # Literals.

    def _literal_argument(self, node: Call) -> None:
        if node.function not in ("matches", "duration", "timestamp") or not node.args:
            return
        literal = node.args[0]
        if isinstance(literal, Literal) and not _is_valid(node.function, literal):
            self._source.error(literal.id, f"invalid {node.function} argument")

    # Aggregates.

    def _uniform_list(self, node: ListExpr) -> None:
        first: CelType | None = None
        for i, element in enumerate(node.elements):
            t = self._entry_type(element, optional=i in node.optionals)
            if first is None:
                first = t
            elif not _equivalent(first, t):
                self._mismatch(element, first, t)
                return

    def _uniform_map(self, node: MapExpr) -> None:
        key: CelType | None = None
        value: CelType | None = None
        for entry in node.entries:
            key_type = self._checked.types[entry.key.id]
            value_type = self._entry_type(entry.value, optional=entry.optional)
            if key is None or value is None:
                key, value = key_type, value_type
                continue
            if not _equivalent(key, key_type):
                self._mismatch(entry.key, key, key_type)
            if not _equivalent(value, value_type):
                self._mismatch(entry.value, value, value_type)

    def _entry_type(self, node: Expr, *, optional: bool) -> CelType:
        t = self._checked.types[node.id]
        return t.params[0] if optional and is_optional(t) else t

    def _mismatch(self, node: Expr, expected: CelType, actual: CelType) -> None:
        self._source.error(node.id, f"expected type '{short_name(expected)}' but found '{short_name(actual)}'")

    # Format calls.

    def _format(self, node: Call) -> None:
        template = node.target
        if not (isinstance(template, Literal) and isinstance(template.value, str) and len(node.args) == 1):
            return
        given = node.args[0]
        if not isinstance(given, ListExpr):
            return

        def clause(index: int, letter: str, _: int | None) -> str:
            self._clause(given.elements[index], letter)
            return ""

        try:
            _, used = string_format.substitute_clauses(template.value, len(given.elements), clause)
        except _BadArgument as error:
            self._source.error(error.node.id, f"error during formatting: {error}")
        except ValueError as error:
            self._source.error(node.id, str(error))
        else:
            if len(given.elements) > used:
                count = len(given.elements)
                message = f"too many arguments supplied to string.format (expected {used}, got {count})"
                self._source.error(node.id, message)

    def _clause(self, arg: Expr, letter: str) -> None:
        if letter == "s":
            self._string_clause(arg)
            return
        t = self._checked.types[arg.id]
        allowed, refusal = string_format.REQUIREMENTS[letter.lower()]
        if t != DYN and t.name not in allowed:
            raise _BadArgument(arg, refusal.format(t.name))

    def _string_clause(self, arg: Expr) -> None:
        t = self._checked.types[arg.id]
        if t != DYN and t.kind not in _FORMATTABLE:
            raise _BadArgument(arg, string_format.STRING_CLAUSE.format(t.name))
        if isinstance(arg, ListExpr | MapExpr):
            for child in children(arg):
                self._string_clause(child)


def _is_valid(function: str, literal: Literal) -> bool:
    value = literal.value
    try:
        if function == "matches":
            compile_regex(str(value))
        elif isinstance(value, str):
            go_format.parse_duration(value) if function == "duration" else conversions.to_timestamp(value)
        elif function == "timestamp" and type(value) is int:
            conversions.to_timestamp(value)
        else:
            return not isinstance(value, int) or isinstance(value, bool | Uint)
    except (ValueError, CelError):
        return False
    return True


def _equivalent(left: CelType, right: CelType) -> bool:
    """Whether the types are equal up to the names of type parameters."""
    if left.kind is not right.kind or len(left.params) != len(right.params):
        return False
    if left.kind is not TypeKind.PARAM and left.name != right.name:
        return False
    return all(_equivalent(a, b) for a, b in zip(left.params, right.params, strict=True))
