"""Type checker of CEL expressions.

Called once per expression text. It finds the type of every node and the possible overloads of every call. A type that
depends on an attribute's value is `any` and is checked at run time. Errors are collected in the source, not raised.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bayplan.cel.parser.source import ExpressionSource
from bayplan.cel.parser.syntax import (
    Call,
    Comprehension,
    Expr,
    Ident,
    ListExpr,
    Literal,
    MapExpr,
    Select,
    StructExpr,
    qualified_name,
)
from bayplan.cel.types.declarations import Function, Functions
from bayplan.cel.types.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    ERROR,
    INT,
    NULL,
    STRING,
    UINT,
    CelType,
    TypeKind,
    describe_call,
    is_optional,
    list_of,
    map_of,
    optional_of,
    param,
    short_name,
    unwrap_optional,
)
from bayplan.cel.types.unification import TypeBindings, more_general_type, substitute
from bayplan.cel.values.values import Uint

_LITERAL_TYPES: dict[type, CelType] = {
    bool: BOOL,
    int: INT,
    Uint: UINT,
    float: DOUBLE,
    str: STRING,
    bytes: BYTES,
    type(None): NULL,
}


@dataclass(slots=True)
class CheckedExpression:
    """A tree and the facts about its nodes, by id."""

    tree: Expr
    types: dict[int, CelType] = field(default_factory=dict)
    overloads: dict[int, tuple[str, ...]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    @property
    def result(self) -> CelType:
        return self.types[self.tree.id]


@dataclass(frozen=True, slots=True)
class NameScope:
    """The names that an expression may use: variables, types, and the fields of structs."""

    variables: dict[str, CelType]
    fields: dict[str, dict[str, CelType]]


def check_expression(tree: Expr, source: ExpressionSource, names: NameScope, functions: Functions) -> CheckedExpression:
    checker = _Checker(source, names, functions, CheckedExpression(tree))
    checker.check(tree)
    return checker.finish()


class _Checker:
    def __init__(
        self, source: ExpressionSource, names: NameScope, functions: Functions, out: CheckedExpression
    ) -> None:
        self._source = source
        self._names = names
        self._functions = functions
        self._out = out
        self._bindings = TypeBindings()
        self._scopes: list[dict[str, CelType]] = [names.variables]
        self._free = 0

    def finish(self) -> CheckedExpression:
        types = self._out.types
        for node_id, t in types.items():
            types[node_id] = self._bindings.resolve(t, free_as_dyn=True)
        return self._out

    def check(self, node: Expr) -> None:
        match node:
            case Literal():
                self._set(node, _LITERAL_TYPES[type(node.value)])
            case Ident():
                self._ident(node)
            case Select():
                self._select(node)
            case Call():
                self._call(node)
            case ListExpr():
                self._list(node)
            case MapExpr():
                self._map(node)
            case StructExpr():
                self._source.error(node.id, f"undeclared reference to '{node.name}' (in container '')")
                self._set(node, ERROR)
            case Comprehension():
                self._comprehension(node)

    def _set(self, node: Expr, t: CelType) -> None:
        self._out.types[node.id] = t

    def _type(self, node: Expr) -> CelType:
        return self._out.types[node.id]

    def _fresh(self) -> CelType:
        self._free += 1
        return param(f"_var{self._free - 1}")

    def _lookup(self, name: str) -> CelType | None:
        name = name.removeprefix(".")
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return None

    def _report_undeclared(self, node: Expr, name: str) -> None:
        self._source.error(node.id, f"undeclared reference to '{name}' (in container '')")
        self._set(node, ERROR)

    def _mismatch(self, node: Expr, expected: CelType, actual: CelType) -> None:
        self._source.error(node.id, f"expected type '{short_name(expected)}' but found '{short_name(actual)}'")

    # Names and fields.

    def _ident(self, node: Ident) -> None:
        found = self._lookup(node.name)
        if found is None:
            self._report_undeclared(node, node.name)
            return
        self._set(node, found)
        self._out.names[node.id] = node.name.removeprefix(".")

    def _select(self, node: Select) -> None:
        name = qualified_name(node)
        found = None if name is None else self._lookup(name)
        if name is not None and found is not None:
            self._set(node, found)
            self._out.names[node.id] = name.removeprefix(".")
            return
        result = self._field(node, node.operand, node.field, optional=False)
        self._set(node, BOOL if node.test_only else self._bindings.resolve(result))

    def _opt_select(self, node: Call) -> None:
        operand, name = node.args
        assert isinstance(name, Literal)
        self._set(name, STRING)
        result = self._field(node, operand, str(name.value), optional=True)
        self._set(node, self._bindings.resolve(result))
        self._out.overloads[node.id] = ("select_optional_field",)

    def _field(self, node: Expr, operand: Expr, name: str, *, optional: bool) -> CelType:
        self.check(operand)
        operand_type = self._bindings.resolve(self._type(operand))
        target = unwrap_optional(operand_type)
        match target.kind:
            case TypeKind.MAP:
                result = target.params[1]
            case TypeKind.STRUCT:
                result = self._struct_field(node, target, name)
            case TypeKind.PARAM:
                self._bindings.fits(DYN, target)
                result = DYN
            case _:
                if not target.is_dyn_or_error:
                    self._source.error(node.id, f"type '{short_name(target)}' does not support field selection")
                result = DYN
        return optional_of(result) if optional or is_optional(operand_type) else result

    def _struct_field(self, node: Expr, struct: CelType, name: str) -> CelType:
        fields = self._names.fields.get(struct.name)
        if fields is None:
            self._source.error(node.id, f"unexpected failed resolution of '{struct.name}'")
            return ERROR
        if name not in fields:
            self._source.error(node.id, f"undefined field '{name}'")
            return ERROR
        return fields[name]

    # Calls.

    def _call(self, node: Call) -> None:
        if node.function == "_?._":
            self._opt_select(node)
            return
        for arg in node.args:
            self.check(arg)
        found = self._find_namespaced(node) if node.target is not None else self._functions.find(node.function)
        if found is not None:
            node.function, node.target = found.name, None
            self._resolve(node, found)
            return
        if node.target is None:
            self._report_undeclared(node, node.function)
            return
        self.check(node.target)
        found = self._functions.find(node.function)
        if found is None:
            self._report_undeclared(node, node.function)
        else:
            self._resolve(node, found)

    def _find_namespaced(self, node: Call) -> Function | None:
        """`sets.contains(x, y)` has the form of a method call, but is a function whose name contains a dot."""
        assert node.target is not None
        prefix = qualified_name(node.target)
        return None if prefix is None else self._functions.find(f"{prefix}.{node.function}")

    def _resolve(self, node: Call, fn: Function) -> None:
        args = node.args if node.target is None else [node.target, *node.args]
        types = [self._type(arg) for arg in args]
        if fn.name in ("_&&_", "_||_"):
            self._logical(node, fn, types)
            return
        result: CelType | None = None
        fitting: list[str] = []
        for overload in fn.overloads:
            if overload.member != (node.target is not None) or len(overload.args) != len(types):
                continue
            fresh = {p: self._fresh() for p in overload.params}
            wanted = [substitute(fresh, a) for a in overload.args]
            if not self._bindings.all_fit(types, wanted):
                continue
            fitting.append(overload.id)
            this = self._bindings.resolve(substitute(fresh, overload.result))
            if result is None:
                result = this
            elif not result.is_dyn and this != result:
                result = DYN
        if result is None:
            shown = [self._bindings.resolve(t, free_as_dyn=True) for t in types]
            signature = describe_call(shown, member=node.target is not None)
            self._source.error(node.id, f"found no matching overload for '{fn.name}' applied to '{signature}'")
            result = ERROR
        self._set(node, result)
        self._out.overloads[node.id] = tuple(fitting)

    def _logical(self, node: Call, fn: Function, types: list[CelType]) -> None:
        fine = True
        for arg, t in zip(node.args, types, strict=True):
            if not self._bindings.fits(t, BOOL):
                self._mismatch(arg, BOOL, t)
                fine = False
        self._set(node, BOOL if fine else ERROR)
        self._out.overloads[node.id] = (fn.overloads[0].id,)

    # Aggregates.

    def _list(self, node: ListExpr) -> None:
        joined: CelType | None = None
        for i, element in enumerate(node.elements):
            self.check(element)
            joined = self._join(joined, self._element_type(element, optional=i in node.optionals))
        self._set(node, list_of(self._fresh() if joined is None else joined))

    def _map(self, node: MapExpr) -> None:
        key: CelType | None = None
        value: CelType | None = None
        for entry in node.entries:
            self.check(entry.key)
            key = self._join(key, self._type(entry.key))
            self.check(entry.value)
            value = self._join(value, self._element_type(entry.value, optional=entry.optional))
        if key is None or value is None:
            key, value = self._fresh(), self._fresh()
        self._set(node, map_of(key, value))

    def _element_type(self, element: Expr, *, optional: bool) -> CelType:
        t = self._type(element)
        if not optional:
            return t
        inner = unwrap_optional(t)
        if not is_optional(t) and not inner.is_dyn:
            self._mismatch(element, optional_of(inner), inner)
        return inner

    def _join(self, previous: CelType | None, current: CelType) -> CelType:
        """Mixed elements have type dyn here; the validators decide whether they are allowed."""
        if previous is None:
            return current
        return more_general_type(previous, current) if self._bindings.fits(previous, current) else DYN

    # Folds.

    def _comprehension(self, node: Comprehension) -> None:
        self.check(node.range)
        self.check(node.init)
        accu_type = self._type(node.init)
        first, second = self._iteration_types(node)
        self._scopes.append({node.accu_var: accu_type})
        variables = {node.iter_var: first}
        if node.iter_var2:
            variables[node.iter_var2] = second
        self._scopes.append(variables)
        self.check(node.condition)
        self._assert(node.condition, BOOL)
        self.check(node.step)
        self._assert(node.step, accu_type)
        self._scopes.pop()
        self.check(node.result)
        self._scopes.pop()
        self._set(node, self._bindings.resolve(self._type(node.result)))

    def _iteration_types(self, node: Comprehension) -> tuple[CelType, CelType]:
        over = self._bindings.resolve(self._type(node.range))
        match over.kind:
            case TypeKind.LIST:
                return (INT, over.params[0]) if node.iter_var2 else (over.params[0], DYN)
            case TypeKind.MAP:
                return over.params[0], over.params[1]
            case TypeKind.DYN | TypeKind.ERROR | TypeKind.PARAM:
                self._bindings.fits(DYN, over)
                return DYN, DYN
            case _:
                message = (
                    f"expression of type '{short_name(over)}' cannot be range of a comprehension "
                    "(must be list, map, or dynamic)"
                )
                self._source.error(node.range.id, message)
                return ERROR, ERROR

    def _assert(self, node: Expr, wanted: CelType) -> None:
        if not self._bindings.fits(wanted, self._type(node)):
            self._mismatch(node, wanted, self._type(node))
