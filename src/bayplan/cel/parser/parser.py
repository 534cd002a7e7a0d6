"""Recursive-descent parser of CEL's grammar.

It expands macros while it parses, in one pass. The limits of nesting and of operator chains are those of cel-go's
parser.
"""

from __future__ import annotations

from collections.abc import Callable

from bayplan.cel.parser import literals
from bayplan.cel.parser.lexer import END, Token, tokenize
from bayplan.cel.parser.macros import MACROS, MacroError, NodeFactory
from bayplan.cel.parser.source import ExpressionSource
from bayplan.cel.parser.syntax import (
    Call,
    Expr,
    Ident,
    ListExpr,
    Literal,
    MapEntry,
    MapExpr,
    Scalar,
    Select,
    StructExpr,
)

MAX_DEPTH = 250
MAX_CODE_POINTS = 100_000

RESERVED = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "false",
        "for",
        "function",
        "if",
        "import",
        "in",
        "let",
        "loop",
        "package",
        "namespace",
        "null",
        "return",
        "true",
        "var",
        "void",
        "while",
    ]
)
_RELATIONS = {"<": "_<_", "<=": "_<=_", ">=": "_>=_", ">": "_>_", "==": "_==_", "!=": "_!=_", "in": "@in"}
_LOGIC = {"||": "_||_", "&&": "_&&_"}
_SUMS = {"+": "_+_", "-": "_-_"}
_PRODUCTS = {"*": "_*_", "/": "_/_", "%": "_%_"}
_BINARY = _LOGIC | _RELATIONS | _SUMS | _PRODUCTS
_RELATION_LEVEL = 3
_LEVELS = {"||": 1, "&&": 2} | dict.fromkeys(_RELATIONS, 3) | dict.fromkeys(_SUMS, 4) | dict.fromkeys(_PRODUCTS, 5)
_EXPRESSION_START_TEXT = (
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
)

_EXPRESSION_START_TOKENS = frozenset(
    [
        "[",
        "{",
        "(",
        ".",
        "-",
        "!",
        "true",
        "false",
        "null",
        "NUM_FLOAT",
        "NUM_INT",
        "NUM_UINT",
        "STRING",
        "BYTES",
        "IDENTIFIER",
    ]
)


class _ParseStopped(Exception):
    """Stops the parser at the first unexpected token; the error itself is in the source."""


def parse(source: ExpressionSource) -> Expr:
    """The tree; raises `CompileError` with all errors of the parser."""
    if len(source.text) > MAX_CODE_POINTS:
        size = len(source.text)
        source.error_at(-1, f"expression code point size exceeds limit: size: {size}, limit {MAX_CODE_POINTS}")
        source.check()
    parser = _CelParser(source)
    try:
        tree = parser.start()
    except (_ParseStopped, RecursionError) as stop:
        if isinstance(stop, RecursionError):
            source.error_at(-1, f"expression recursion limit exceeded: {MAX_DEPTH}")
        source.check()
        raise
    source.check()
    return tree


class _CelParser:
    def __init__(self, source: ExpressionSource) -> None:
        self._source = source
        self._tokens = tokenize(source)
        self._at = 0
        self._factory = NodeFactory(source)
        self._depth = dict.fromkeys(("expr", "relation", "calc", "member"), 0)

    # Tokens.

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _advance(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _take(self, *kinds: str) -> Token | None:
        return self._advance() if self._next.kind in kinds else None

    def _expect(self, kind: str) -> Token:
        if self._next.kind == kind:
            return self._advance()
        wanted, found = (kind if kind.isupper() else f"'{kind}'"), self._next.text
        if self._tokens[min(self._at + 1, len(self._tokens) - 1)].kind == kind:
            raise self._error(f"extraneous input '{found}' expecting {wanted}")
        if kind in (")", "]") and self._next.kind == END:
            raise self._error(f"missing {wanted} at '{found}'")
        raise self._error(f"mismatched input '{found}' expecting {wanted}")

    def _error(self, message: str) -> _ParseStopped:
        self._source.error_at(self._next.offset, f"Syntax error: {message}")
        return _ParseStopped()

    def _enter_nested(self, rule: str) -> None:
        self._depth[rule] += 1
        if self._depth[rule] > MAX_DEPTH:
            self._source.error_at(-1, f"expression recursion limit exceeded: {MAX_DEPTH}")
            raise _ParseStopped

    # Grammar rules.

    def start(self) -> Expr:
        tree = self._expr()
        if self._next.kind != END:
            last = self._tokens[self._at + 1].kind == END
            problem = "extraneous" if last else "mismatched"
            raise self._error(f"{problem} input '{self._next.text}' expecting <EOF>")
        return tree

    def _expr(self) -> Expr:
        saved = self._depth.copy()
        self._enter_nested("expr")
        condition = self._operators()
        if question := self._take("?"):
            node_id = self._factory.node_id(question.offset)
            then = self._operators()
            self._expect(":")
            condition = Call(node_id, "_?_:_", [condition, then, self._expr()])
        self._depth = saved
        return condition

    def _operators(self) -> Expr:
        """All binary operators in one loop: a function per level would exhaust the stack on nested parentheses."""
        base = self._depth.copy()
        operands, pending = [self._unary()], list[Token]()
        while (level := _LEVELS.get(self._next.kind, 0)) > 0:
            self._count_chain(level, base)
            while pending and _LEVELS[pending[-1].kind] >= level:
                self._reduce(operands, pending.pop())
            pending.append(self._advance())
            operands.append(self._unary())
        while pending:
            self._reduce(operands, pending.pop())
        self._depth.update(relation=base["relation"], calc=base["calc"])
        return operands[0]

    def _count_chain(self, level: int, base: dict[str, int]) -> None:
        if level <= _RELATION_LEVEL:
            self._depth["calc"] = base["calc"]
        if level < _RELATION_LEVEL:
            self._depth["relation"] = base["relation"]
        elif level == _RELATION_LEVEL:
            self._enter_nested("relation")
        else:
            self._enter_nested("calc")

    def _reduce(self, operands: list[Expr], token: Token) -> None:
        right, left = operands.pop(), operands.pop()
        function = _BINARY[token.kind]
        if token.kind in ("&&", "||") and isinstance(left, Call) and left.function == function:
            left.args.append(right)
            operands.append(left)
        else:
            operands.append(Call(self._factory.node_id(token.offset), function, [left, right]))

    def _unary(self) -> Expr:
        if self._next.kind == "!":
            return self._parse_prefixed("!", "!_")
        if self._next.kind == "-" and self._tokens[self._at + 1].kind not in ("NUM_INT", "NUM_FLOAT"):
            return self._parse_prefixed("-", "-_")
        return self._member()

    def _parse_prefixed(self, symbol: str, function: str) -> Expr:
        """`--x` is `x`: pairs cancel out in the grammar itself."""
        first = self._advance()
        count = 1
        while self._take(symbol):
            count += 1
        operand = self._member()
        return Call(self._factory.node_id(first.offset), function, [operand]) if count % 2 else operand

    def _member(self) -> Expr:
        saved = self._depth["member"]
        self._enter_nested("member")
        node = self._primary()
        while token := self._take(".", "["):
            self._enter_nested("member")
            node = self._dot(node, token) if token.kind == "." else self._index(node, token)
        self._depth["member"] = saved
        return node

    def _dot(self, operand: Expr, dot: Token) -> Expr:
        optional = self._take("?")
        if quoted := self._take("ESC_IDENTIFIER"):
            self._source.error_at(quoted.offset, "unsupported syntax: '`'")
            return operand
        name = self._expect("IDENTIFIER")
        if optional:
            field = Literal(self._factory.node_id(name.offset), name.text)
            return Call(self._factory.node_id(dot.offset), "_?._", [operand, field])
        if opening := self._take("("):
            return self._call(name.text, operand, opening)
        return Select(self._factory.node_id(dot.offset), operand, name.text)

    def _index(self, operand: Expr, bracket: Token) -> Expr:
        node_id = self._factory.node_id(bracket.offset)
        function = "_[?_]" if self._take("?") else "_[_]"
        index = self._expr()
        self._expect("]")
        return Call(node_id, function, [operand, index])

    def _call(self, function: str, target: Expr | None, opening: Token) -> Expr:
        node_id = self._factory.node_id(opening.offset)
        args: list[Expr] = []
        if not self._take(")"):
            args.append(self._expr())
            while self._take(","):
                args.append(self._expr())
            self._expect(")")
        macro = MACROS.get((function, len(args), target is not None))
        if macro is None:
            return Call(node_id, function, args, target)
        return self._expand(macro, node_id, function, target, args)

    def _expand(
        self,
        macro: Callable[[NodeFactory, Expr | None, list[Expr]], Expr | None],
        node_id: int,
        function: str,
        target: Expr | None,
        args: list[Expr],
    ) -> Expr:
        self._factory.at = self._source.set_offset(node_id)
        try:
            return macro(self._factory, target, args) or Call(node_id, function, args, target)
        except MacroError as error:
            self._source.error(error.node_id, str(error))
            return Ident(node_id, function)

    # Primary expressions.

    def _primary(self) -> Expr:
        token = self._next
        match token.kind:
            case "(":
                self._advance()
                inner = self._expr()
                self._expect(")")
                return inner
            case "[":
                return self._list(self._advance())
            case "{":
                return self._map(self._advance())
            case "." | "IDENTIFIER":
                return self._parse_named()
            case _:
                return self._literal()

    def _parse_named(self) -> Expr:
        begin = self._next.offset
        lead = "." if self._take(".") else ""
        name = self._expect("IDENTIFIER")
        if message := self._message(lead):
            return message
        if name.text in RESERVED:
            self._source.error_at(begin, f"reserved identifier: {name.text}")
        if opening := self._take("("):
            return self._call(lead + name.text, None, opening)
        return Ident(self._factory.node_id(name.offset), lead + name.text)

    def _message(self, lead: str) -> StructExpr | None:
        """`a.b.C{...}`: recognized only by the brace after the last name."""
        at = self._at
        while self._tokens[at].kind == "." and self._tokens[at + 1].kind == "IDENTIFIER":
            at += 2
        if self._tokens[at].kind != "{":
            return None
        name = lead + "".join(t.text for t in self._tokens[self._at - 1 : at])
        self._at = at + 1
        node = StructExpr(self._factory.node_id(self._tokens[at].offset), name)
        while self._next.kind != "}":
            self._take("?")
            field = self._expect("IDENTIFIER")
            colon = self._expect(":")
            node.fields.append((self._factory.node_id(colon.offset), field.text, self._expr()))
            if not self._take(","):
                break
        self._expect("}")
        return node

    def _list(self, bracket: Token) -> Expr:
        node_id = self._factory.node_id(bracket.offset)
        elements: list[Expr] = []
        optionals: set[int] = set()
        if not (self._next.kind == "," and self._tokens[self._at + 1].kind == "]"):
            while self._next.kind != "]":
                if self._take("?"):
                    optionals.add(len(elements))
                elements.append(self._expr())
                if self._next.kind != "," or not self._take(","):
                    break
        else:
            self._advance()
        self._expect("]")
        return ListExpr(node_id, elements, frozenset(optionals))

    def _map(self, brace: Token) -> Expr:
        node_id = self._factory.node_id(brace.offset)
        entries: list[MapEntry] = []
        if self._next.kind == "," and self._tokens[self._at + 1].kind == "}":
            self._advance()
        while self._next.kind != "}":
            optional = self._take("?") is not None
            key = self._expr()
            colon = self._expect(":")
            entries.append(MapEntry(self._factory.node_id(colon.offset), key, self._expr(), optional))
            if not self._take(","):
                break
        self._expect("}")
        return MapExpr(node_id, entries)

    def _literal(self) -> Expr:
        token = self._advance()
        minus = token if token.kind == "-" else None
        if minus and self._next.kind in ("NUM_INT", "NUM_FLOAT"):
            token = self._advance()
        elif minus or token.kind not in _LITERALS:
            self._at -= 1
            following = self._tokens[self._at + 1].kind if token.kind != END else END
            problem = "extraneous" if following in _EXPRESSION_START_TOKENS else "mismatched"
            raise self._error(f"{problem} input '{token.text}' expecting {_EXPRESSION_START_TEXT}")
        begin = (minus or token).offset
        try:
            value = _LITERALS[token.kind](("-" if minus else "") + token.text)
        except ValueError as error:
            self._source.error_at(begin, str(error))
            value = None
        return Literal(self._factory.node_id(begin), value)


_LITERALS: dict[str, Callable[[str], Scalar]] = {
    "NUM_INT": literals.parse_integer,
    "NUM_UINT": literals.parse_unsigned,
    "NUM_FLOAT": literals.parse_double,
    "STRING": literals.parse_string,
    "BYTES": literals.parse_bytes,
    "true": lambda _: True,
    "false": lambda _: False,
    "null": lambda _: None,
}
