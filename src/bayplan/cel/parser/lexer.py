"""Tokenizer of CEL expressions.

One pass of one regular expression; the longest match wins, as in CEL's grammar. Invalid characters are reported and
skipped, so that the parser still sees the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bayplan.cel.parser.source import ExpressionSource

_ESCAPE = r"\\(?:[abfnrtv\"'\\?`]|[0-3][0-7][0-7]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
_STRING = rf"""
    [rR](?:\"\"\"[\s\S]*?\"\"\" | '''[\s\S]*?''' | "[^"\n\r]*" | '[^'\n\r]*')
  | \"\"\"(?:{_ESCAPE}|[^\\])*?\"\"\" | '''(?:{_ESCAPE}|[^\\])*?'''
  | "(?:{_ESCAPE}|[^\\"\n\r])*" | '(?:{_ESCAPE}|[^\\'\n\r])*'
"""
_TOKEN = re.compile(
    rf"""
    (?P<SPACE>[\t \r\n\f]+|//[^\n]*)
  | (?P<BYTES>[bB](?:{_STRING}))
  | (?P<STRING>{_STRING})
  | (?P<NUM_FLOAT>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
  | (?P<NUM_UINT>0x[0-9a-fA-F]+[uU]|[0-9]+[uU])
  | (?P<NUM_INT>0x[0-9a-fA-F]+|[0-9]+)
  | (?P<IDENTIFIER>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<ESC_IDENTIFIER>`[A-Za-z0-9_.\-/ ]+`)
  | (?P<OP>==|!=|<=|>=|&&|\|\||[<>\[\]{{}}().,\-!?:+*/%])
    """,
    re.VERBOSE,
)
# The longest prefix of an unfinished token: half an operator, or a string up to an invalid escape.
_PARTIAL_ESCAPE = r"\\(?:u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|[xX][0-9a-fA-F]?|[0-3][0-7]?)?"
_UNTERMINATED = re.compile(
    rf"""
    [&|=]
  | "(?:{_ESCAPE}|[^\\"\n\r])*(?:{_PARTIAL_ESCAPE})?
  | '(?:{_ESCAPE}|[^\\'\n\r])*(?:{_PARTIAL_ESCAPE})?
    """,
    re.VERBOSE,
)
_KEYWORDS = frozenset({"in", "true", "false", "null"})


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is the operator or keyword itself, or the grammar's name for a class of tokens."""

    kind: str
    text: str
    offset: int


END = "<EOF>"


def tokenize(source: ExpressionSource) -> list[Token]:
    text, at, tokens = source.text, 0, list[Token]()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            at = _report_and_skip(source, at)
            continue
        kind = found.lastgroup or "OP"
        if kind != "SPACE":
            word = found.group()
            is_fixed = kind == "OP" or (kind == "IDENTIFIER" and word in _KEYWORDS)
            tokens.append(Token(word if is_fixed else kind, word, at))
        at = found.end()
    tokens.append(Token(END, END, len(text)))
    return tokens


def _report_and_skip(source: ExpressionSource, at: int) -> int:
    """Report characters that cannot begin a token, up to the first invalid one."""
    text = source.text
    begun = _UNTERMINATED.match(text, at)
    end = min(begun.end() + 1 if begun else at + 1, len(text))
    source.error_at(at, f"Syntax error: token recognition error at: '{text[at:end]}'")
    return end
