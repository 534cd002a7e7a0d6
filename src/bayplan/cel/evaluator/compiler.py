"""Compiles a checked expression to Python functions.

Called once per expression text. Every node becomes a function of a frame. Constants are folded, static types decide
which guards are needed, and costs are charged where cel-go's observer charges them. A part that can only fail is
refused with "program instantiation failed".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.cel.checker.checker import CheckedExpression
from bayplan.cel.errors import COST_EXCEEDED, CelError, CompileError, EvaluationAborted, EvaluationError
from bayplan.cel.evaluator import calls, predicates
from bayplan.cel.evaluator.attributes import (
    AttributeChain,
    Qualifier,
    attribute_resolver,
    check_key,
    comprehension_variable,
    presence_test,
)
from bayplan.cel.evaluator.folds import growable, run_comprehension
from bayplan.cel.evaluator.frames import Frame, Run
from bayplan.cel.libraries.conversions import CONVERSIONS
from bayplan.cel.parser.syntax import Call, Comprehension, Expr, Ident, ListExpr, Literal, MapExpr, Select
from bayplan.cel.regex.regex import compile_regex
from bayplan.cel.types.declarations import Functions
from bayplan.cel.types.types import TypeKind, mentions_dyn
from bayplan.cel.values.cost import LIMIT, LIST_COST, MAP_COST, ONE, Cost, cost_of
from bayplan.cel.values.device_view import DeviceView
from bayplan.cel.values.values import OptionalValue, TypeValue


@dataclass(slots=True)
class CompiledNode:
    """A compiled node: a constant, a chain that may still grow, or a function."""

    run: Run
    constant: Any = calls.NOT_CONSTANT
    chain: AttributeChain | None = None

    @property
    def is_constant(self) -> bool:
        return self.constant is not calls.NOT_CONSTANT


def constant(value: Any) -> CompiledNode:
    return CompiledNode(lambda _: value, value)


@dataclass(frozen=True, slots=True)
class Program:
    run: Run
    slots: int

    def evaluate(self, view: Any) -> Any:
        """The result of the expression for a view; raises `EvaluationError` if it fails or is too expensive."""
        frame = Frame(view, self.slots)
        try:
            result = self.run(frame)
        except CelError as fault:
            raise EvaluationError(COST_EXCEEDED if frame.cost > LIMIT else fault.text) from None
        except EvaluationAborted as abort:
            raise EvaluationError(abort.text) from None
        if frame.cost > LIMIT:
            raise EvaluationError(COST_EXCEEDED)
        return result


def compile_tree(
    checked: CheckedExpression, functions: Functions, types: frozenset[str], variables: Mapping[str, Run] | None = None
) -> Program:
    """`types` are the names of types. Without `variables` the only variable is the device."""
    compiler = _Compiler(checked, functions, types, variables or {})
    try:
        node = compiler.finish(compiler.node(checked.tree))
    except (CelError, EvaluationAborted) as stop:
        raise CompileError(f"program instantiation failed: {stop.text}") from None
    return Program(node, compiler.slots)


class _Compiler:
    def __init__(
        self, checked: CheckedExpression, functions: Functions, types: frozenset[str], variables: Mapping[str, Run]
    ) -> None:
        self._checked = checked
        self._variables = variables
        self._types = types
        self._functions = functions
        self._scopes: list[dict[str, Run]] = []
        self.slots = 0

    def finish(self, node: CompiledNode) -> Run:
        """The function of a complete node. A chain is closed and charged one extra for its evaluation."""
        return node.run if node.chain is None else attribute_resolver(node.chain, surcharge=1)

    def run(self, tree: Expr) -> Run:
        return self.finish(self.node(tree))

    def node(self, tree: Expr) -> CompiledNode:
        match tree:
            case Literal():
                return constant(tree.value)
            case Ident():
                return self._name(tree)
            case Select():
                return self._select(tree)
            case Call():
                return self._call(tree)
            case ListExpr():
                return self._list(tree)
            case MapExpr():
                return self._map(tree)
            case Comprehension():
                return self._comprehension(tree)
            case _:
                raise CompileError(f"program instantiation failed: unknown type: {tree.name}")

    # Names and chains.

    def _name(self, tree: Ident | Select) -> CompiledNode:
        name, t = self._checked.names[tree.id], self._checked.types[tree.id]
        if t.kind is TypeKind.TYPE:
            if name not in self._types:
                raise CelError(f"reference to undefined type: {name}")
            return constant(TypeValue(t.params[0].name))
        for scope in reversed(self._scopes):
            if name in scope:
                return self._chain(AttributeChain(scope[name]))
        if name in self._variables:
            return self._chain(AttributeChain(self._variables[name]))
        return self._chain(AttributeChain(lambda frame: frame.view.root, is_device=True))

    @staticmethod
    def _chain(chain: AttributeChain) -> CompiledNode:
        return CompiledNode(chain.root, chain=chain)

    def _open_chain(self, tree: Expr) -> AttributeChain:
        """The chain of a node, so that a step can be added to it."""
        node = self.node(tree)
        return node.chain if node.chain is not None else AttributeChain(node.run)

    def _select(self, tree: Select) -> CompiledNode:
        if tree.id in self._checked.names:
            return self._name(tree)
        chain = self._open_chain(tree.operand)
        chain.add_qualifier(Qualifier(tree.field, presence_only=tree.test_only))
        if not tree.test_only:
            return self._chain(chain)
        # cel-go refunds the extra charge; a conditional has not paid it and so becomes cheaper.
        return CompiledNode(presence_test(attribute_resolver(chain), refund=1 if chain.branches is not None else 0))

    def _index(self, tree: Call, *, optional: bool) -> CompiledNode:
        chain = self._open_chain(tree.args[0])
        key = self.node(tree.args[1])
        if key.is_constant:
            chain.add_qualifier(Qualifier(check_key(key.constant), optional=optional))
        elif key.chain is not None:
            chain.add_qualifier(Qualifier(key=attribute_resolver(key.chain), optional=optional))
        else:
            chain.add_qualifier(Qualifier(key=key.run, optional=optional))
        return self._chain(chain)

    def _conditional(self, tree: Call) -> CompiledNode:
        condition = self.run(tree.args[0])
        branches = (self._open_chain(tree.args[1]), self._open_chain(tree.args[2]))
        return self._chain(AttributeChain(condition, branches=branches))

    # Calls.

    def _call(self, tree: Call) -> CompiledNode:
        match tree.function:
            case "_&&_":
                return CompiledNode(predicates.conjunction([self.run(arg) for arg in tree.args]))
            case "_||_":
                return CompiledNode(predicates.disjunction([self.run(arg) for arg in tree.args]))
            case "_?_:_":
                return self._conditional(tree)
            case "_[_]":
                return self._index(tree, optional=False)
            case "_[?_]" | "_?._":
                return self._index(tree, optional=True)
            case "_==_" | "_!=_":
                return self._equality(tree)
            case "or" | "orValue" if tree.target is not None and len(tree.args) == 1:
                return self._optional_or(tree)
            case _:
                return self._function(tree)

    def _equality(self, tree: Call) -> CompiledNode:
        left, right = self.node(tree.args[0]), self.node(tree.args[1])
        negated = tree.function == "_!=_"
        if right.is_constant:
            return CompiledNode(predicates.equal_to_constant(self.finish(left), right.constant, negated=negated))
        return CompiledNode(predicates.equality(self.finish(left), self.finish(right), negated=negated))

    def _optional_or(self, tree: Call) -> CompiledNode:
        assert tree.target is not None
        left, right = self.run(tree.target), self.run(tree.args[0])
        unwrap = tree.function == "orValue"

        def run(frame: Frame) -> Any:
            held = left(frame)
            if type(held) is not OptionalValue:
                return held
            if held.has_value:
                return held.get() if unwrap else held
            return right(frame)

        return CompiledNode(run)

    def _function(self, tree: Call) -> CompiledNode:
        trees = tree.args if tree.target is None else [tree.target, *tree.args]
        args = [self.node(arg) for arg in trees]
        overloads = self._checked.overloads[tree.id]
        if tree.function == "@in" and overloads == ("in_list",) and args[1].is_constant:
            folded = self._membership(args[0], args[1].constant)
            if folded is not None:
                return folded
        bound = self._bind(tree, trees, args, overloads)
        if tree.function in CONVERSIONS and len(args) == 1 and args[0].is_constant:
            return constant(bound.run(args[0].constant))
        return CompiledNode(self._add_cost(tree.function, args, bound, cost_of(tree.function, overloads)))

    def _add_cost(self, function: str, args: list[CompiledNode], bound: calls.BoundCall, cost: Cost) -> Run:
        if args and all(arg.is_constant for arg in args):
            folded = calls.constant_call(bound, [arg.constant for arg in args], cost)
            if folded is not None:
                return folded
        runs = [self.finish(arg) for arg in args]
        if function in predicates.INT_RELATIONS and type(args[1].constant) is int and cost == ONE:
            return predicates.relation_to_int(runs[0], function, args[1].constant, bound.run)
        return calls.call(runs, bound, cost)

    def _bind(
        self, tree: Call, trees: list[Expr], args: list[CompiledNode], overloads: tuple[str, ...]
    ) -> calls.BoundCall:
        if tree.function in ("matches", "find", "findAll") and type(args[1].constant) is str:
            return calls.constant_regex(tree.function, self._regex(args[1].constant))
        function = self._functions.find(tree.function)
        assert function is not None
        if function.singleton is not None:
            return calls.BoundCall(function.singleton, eager=True)
        # Static types are not certain: an optional that passes a variable may come back with another type.
        certain = [
            node.is_constant and not mentions_dyn(self._checked.types[arg.id])
            for node, arg in zip(args, trees, strict=True)
        ]
        return calls.bind_overload(function, overloads, certain)

    @staticmethod
    def _regex(pattern: str) -> Any:
        try:
            return compile_regex(pattern)
        except ValueError as error:
            raise CelError(str(error)) from None

    def _membership(self, element: CompiledNode, values: tuple[Any, ...]) -> CompiledNode | None:
        """A constant list becomes a set.

        It is free of charge, and the element is not evaluated if the list is empty.
        """
        if not values:
            return constant(value=False)
        test = predicates.set_membership_test(values)
        return None if test is None else CompiledNode(predicates.membership(self.finish(element), test))

    # Aggregates.

    def _list(self, tree: ListExpr) -> CompiledNode:
        nodes = [self.node(element) for element in tree.elements]
        runs = [(self.finish(node), i in tree.optionals) for i, node in enumerate(nodes)]
        build = calls.list_of(runs)
        if all(node.is_constant for node in nodes):
            return constant(build(_NO_FRAME))
        return CompiledNode(calls.with_cost(build, LIST_COST))

    def _map(self, tree: MapExpr) -> CompiledNode:
        nodes = [(self.node(e.key), self.node(e.value), e.optional) for e in tree.entries]
        build = calls.map_of([(self.finish(k), self.finish(v), optional) for k, v, optional in nodes])
        if all(k.is_constant and v.is_constant for k, v, _ in nodes):
            return constant(build(_NO_FRAME))
        return CompiledNode(calls.with_cost(build, MAP_COST))

    # Folds.

    def _comprehension(self, tree: Comprehension) -> CompiledNode:
        init = self.run(tree.init)
        over = self.run(tree.range)
        accumulator, first, second = self.slots, self.slots + 1, self.slots + 2
        self.slots += 3
        self._scopes.append({tree.accu_var: comprehension_variable(accumulator, init, growable)})
        inner = {tree.iter_var: comprehension_variable(first, None, growable)}
        if tree.iter_var2:
            inner[tree.iter_var2] = comprehension_variable(second, None, growable)
        self._scopes.append(inner)
        condition, step = self.run(tree.condition), self.run(tree.step)
        self._scopes.pop()
        result = self.run(tree.result)
        self._scopes.pop()
        return CompiledNode(run_comprehension(over, accumulator, condition, step, result, two=bool(tree.iter_var2)))


_NO_FRAME = Frame(DeviceView(driver="", attributes={}, capacity={}), 0)
