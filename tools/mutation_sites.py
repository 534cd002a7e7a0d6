"""Finds the places of a Python source that a mutation test run may change, and makes the changed source.

Called by `tools/mutants.py`. A mutation replaces the bytes of one AST node, so that its diff is as small as possible.
A site is a place with an operator, and holds one mutation or two of which a run takes one. Not mutated: strings,
annotations, decorators, class keywords, `__all__`, `TYPE_CHECKING` and `__name__` blocks, log calls, messages of
assertions, `zip(strict=True)`, and plain attribute assignments of `__init__`, without which everything fails.
"""

from __future__ import annotations

import ast
import difflib
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOKENS: dict[type[ast.AST], tuple[bytes, bytes]] = {
    ast.Lt: (rb"<", b"<="),
    ast.LtE: (rb"<=", b"<"),
    ast.Gt: (rb">", b">="),
    ast.GtE: (rb">=", b">"),
    ast.Eq: (rb"==", b"!="),
    ast.NotEq: (rb"!=", b"=="),
    ast.In: (rb"\bin\b", b"not in"),
    ast.NotIn: (rb"\bnot\s+in\b", b"in"),
    ast.Is: (rb"\bis\b", b"is not"),
    ast.IsNot: (rb"\bis\s+not\b", b"is"),
    ast.And: (rb"\band\b", b"or"),
    ast.Or: (rb"\bor\b", b"and"),
    ast.Add: (rb"\+", b"-"),
    ast.Sub: (rb"-", b"+"),
    ast.Mult: (rb"\*", b"//"),
    ast.FloorDiv: (rb"//", b"*"),
    ast.Div: (rb"/", b"*"),
    ast.BitAnd: (rb"&", b"|"),
    ast.BitOr: (rb"\|", b"&"),
}
NAMES = {"min": b"max", "max": b"min", "any": b"all", "all": b"any"}
LOGGERS = re.compile(r"^(self\.)?_?(log|logger|logging|warnings)\.\w+$", re.IGNORECASE)
SKIPPED_BLOCKS = re.compile(r"TYPE_CHECKING|__name__ == ")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one file. `first` to `last` are the lines of the statement, which coverage counts."""

    path: str
    line: int
    operator: str
    start: int
    end: int
    text: bytes
    first: int
    last: int
    in_function: bool

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text + source[self.end :]

    def changed_lines(self, source: bytes) -> tuple[str, str]:
        """The lines that differ, before and after, each joined and without indentation."""
        begin = source.rfind(b"\n", 0, self.start) + 1
        end = source.find(b"\n", self.end)
        before, after = source[begin:end], source[begin : self.start] + self.text + source[self.end : end]
        return " ".join(before.decode().split()), " ".join(after.decode().split())

    def diff(self, source: bytes) -> str:
        before, after = (each.decode().splitlines(keepends=True) for each in (source, self.apply(source)))
        return "".join(difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}", n=1))


def find_sites(source: bytes, path: str) -> list[list[Mutation]]:
    """Every site of a file in order of the text. A few of the changes do not parse: see `is_valid`."""
    finder = _Finder(source, path)
    finder.walk(ast.parse(source))
    sites: dict[tuple[int, str], list[Mutation]] = {}
    for mutation in finder.found:
        sites.setdefault((mutation.start, mutation.operator), []).append(mutation)
    return [sites[key] for key in sorted(sites)]


def is_valid(mutation: Mutation, source: bytes) -> bool:
    """Whether the changed source parses, and to another tree. Parses the file twice, so only a sample is asked."""
    try:
        return ast.dump(ast.parse(mutation.apply(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


class _Finder:
    def __init__(self, source: bytes, path: str) -> None:
        self.found: list[Mutation] = []
        self._source = source
        self._path = path
        self._starts = [0, *(found.end() for found in re.finditer(rb"\n", source))]
        self._lines = (1, 1)
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []

    def walk(self, node: ast.AST) -> None:
        before = self._lines
        if isinstance(node, ast.stmt):
            self._lines = _counted_lines(node)
        for operator, (start, end), text in self._mutations(node):
            line = bisect_right(self._starts, start)
            place = (self._path, line, operator, start, end, text)
            self.found.append(Mutation(*place, *self._lines, in_function=bool(self._functions)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._lines = (node.lineno, node.end_lineno or node.lineno)  # a default counts where the function runs
            for default in filter(None, (*node.args.defaults, *node.args.kw_defaults)):
                self.walk(default)
            self._functions.append(node)
            for statement in node.body:
                self.walk(statement)
            self._functions.pop()
        else:
            for each in self._children(node):
                self.walk(each)
        self._lines = before

    def _children(self, node: ast.AST) -> Iterator[ast.AST]:
        skipped: tuple[ast.AST | None, ...] = ()
        match node:
            case ast.JoinedStr() | ast.Assign(targets=[ast.Name(id="__all__")]):
                return
            case ast.Call() if LOGGERS.match(ast.unparse(node.func)):
                return
            case ast.Call(func=ast.Name(id="zip")):
                skipped = tuple(node.keywords)
            case ast.If() if SKIPPED_BLOCKS.search(ast.unparse(node.test)):
                skipped = (node.test, *node.body)
            case ast.ClassDef():
                skipped = (*node.decorator_list, *node.bases, *node.keywords)
            case ast.AnnAssign():
                skipped = (node.annotation,)
            case ast.Assert():
                skipped = (node.msg,)
            case ast.Lambda():
                yield from filter(None, (*node.args.defaults, *node.args.kw_defaults))
                skipped = (node.args,)
        for child in ast.iter_child_nodes(node):
            if child not in skipped:
                yield child

    def _mutations(self, node: ast.AST) -> Iterator[tuple[str, tuple[int, int], bytes]]:
        match node:
            case ast.Compare():
                for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                    yield from self._swap("comparison", op, left, right)
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self._swap("and/or", node.op, left, right)
            case ast.BinOp():
                if not isinstance(node.op, ast.BitAnd | ast.BitOr) or self._functions:  # else it is often a type
                    yield from self._swap("arithmetic", node.op, node.left, node.right)
            case ast.AugAssign():
                yield from self._swap("arithmetic", node.op, node.target, node.value)
            case ast.UnaryOp(op=ast.Not()):
                yield "not", self._span(node), self._text(node.operand)
            case ast.Constant(value=bool()):
                yield "boolean", self._span(node), str(not node.value).encode()
            case ast.Constant(value=int() as number):
                yield "integer", self._span(node), str(number + 1).encode()
                yield "integer", self._span(node), str(number - 1).encode()
            case ast.Break():
                yield "loop", self._span(node), b"continue"
            case ast.Continue():
                yield "loop", self._span(node), b"break"
            case ast.Call(func=ast.Name(id="min" | "max" | "any" | "all" as name)):
                yield "function", self._span(node.func), NAMES[name]
            case ast.Slice():
                for bound in filter(None, (node.lower, node.upper)):
                    if not isinstance(bound, ast.Constant):
                        yield "slice", self._span(bound), b""
            case ast.Return(value=ast.expr() as value) if self._returns_value() and not isinstance(value, ast.Constant):
                yield "return", self._span(value), b"None"
        if isinstance(node, ast.stmt) and _is_deletable(node, in_init=self._in_init()):
            yield "statement", self._span(node), b"pass"
        for test in _conditions(node):
            yield "condition", self._span(test), b"not (" + self._text(test) + b")"

    def _swap(
        self, operator: str, op: ast.AST, left: ast.expr, right: ast.expr
    ) -> Iterator[tuple[str, tuple[int, int], bytes]]:
        begin, end = self._span(left)[1], self._span(right)[0]
        token, text = TOKENS.get(type(op), (b"$^", b""))
        if found := re.search(token, self._source[begin:end]):
            yield operator, (begin + found.start(), begin + found.end()), text

    def _returns_value(self) -> bool:
        annotation = self._functions[-1].returns
        return annotation is not None and ast.unparse(annotation) not in ("None", "Never", "NoReturn")

    def _in_init(self) -> bool:
        return bool(self._functions) and self._functions[-1].name == "__init__"

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> bytes:
        start, end = self._span(node)
        return self._source[start:end]


def _counted_lines(node: ast.stmt) -> tuple[int, int]:
    """The lines of a simple statement, and of a compound one those before its body."""
    end = node.end_lineno or node.lineno
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    return node.lineno, max(node.lineno, body[0].lineno - 1 if body and hasattr(body[0], "lineno") else end)


def _is_deletable(node: ast.stmt, *, in_init: bool) -> bool:
    match node:
        case ast.Expr(value=ast.Call() as call) | ast.Expr(value=ast.Await(value=ast.Call() as call)):
            return LOGGERS.match(ast.unparse(call.func)) is None
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return not in_init
        case ast.AugAssign(target=ast.Attribute() | ast.Subscript()):
            return True
    return False


def _conditions(node: ast.AST) -> Iterator[ast.expr]:
    """Conditions to negate, but not those where another operator does the same."""
    tests: list[ast.expr] = []
    match node:
        case ast.If() | ast.While() | ast.IfExp():
            tests = [] if isinstance(node, ast.If) and SKIPPED_BLOCKS.search(ast.unparse(node.test)) else [node.test]
        case ast.comprehension():
            tests = node.ifs
        case ast.match_case(guard=ast.expr() as guard):
            tests = [guard]
    for test in tests:
        negated_elsewhere = ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], negated_elsewhere):
            continue
        if not isinstance(test, ast.Constant) and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            yield test


def package_of(path: str) -> str:
    """The folder below `src/bayplan` that a file is in, or its own name where it is in none."""
    return Path(path).relative_to("src/bayplan").parts[0].removesuffix(".py")
