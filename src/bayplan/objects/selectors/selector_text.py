"""Parser of label and field selectors in text form: `app=web,tier in (a,b),!old`, or `spec.nodeName=,metadata.name!=x`.

Used by the command line and by the API's `labelSelector` and `fieldSelector` parameters. Label selectors become the
same `LabelMatcher` as in manifests; field selectors are simpler and have a matcher of their own. Errors are the API
server's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from bayplan.codec.field_errors import aggregate, invalid
from bayplan.objects.name_validation import label_key_problems
from bayplan.objects.selectors.label_selectors import (
    LabelMatcher,
    Operator,
    Requirement,
    SelectorError,
    make_requirement,
    matcher_of,
    requirement_problems,
)

_TOKEN = re.compile(r"[ \t\r\n]*(?:(==|!=|[=!<>(),])|([^=!<>(), \t\r\n]+))")
_BINARY: dict[str, Operator] = {
    "in": "In",
    "notin": "NotIn",
    "=": "In",
    "==": "In",
    "!=": "NotIn",
    ">": "Gt",
    "<": "Lt",
}
_EXPECTED_OPERATORS = "in, notin, =, ==, !=, gt, lt"
_FIELD_OPERATORS = re.compile(r"!=|==|=")
_FIELD_PART = re.compile(r"(?:\\.|[^\\,])*(?:\\\Z)?", re.DOTALL)
_ESCAPE = re.compile(r"\\(.?)|([,=])", re.DOTALL)


class FieldTerm(NamedTuple):
    field: str
    value: str
    negated: bool

    def matches(self, fields: Mapping[str, str]) -> bool:
        return (fields.get(self.field, "") == self.value) is not self.negated


class FieldMatcher(NamedTuple):
    """A compiled field selector: all terms hold; without terms it selects everything."""

    terms: tuple[FieldTerm, ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        return all(term.matches(fields) for term in self.terms)

    def exact(self, field: str) -> str | None:
        """The value that the selector requires of the field; None if it requires none."""
        return next((term.value for term in self.terms if term.field == field and not term.negated), None)


def parse_selector(text: str) -> LabelMatcher:
    """Parse a label selector; the empty text selects everything. Raises `SelectorError`."""
    return matcher_of(_SelectorParser(text).requirements())


def parse_field_selector(text: str) -> FieldMatcher:
    """Parse a field selector; the empty text selects everything. Raises `SelectorError`."""
    parts = sorted(part for part in _split_fields(text) if part)
    terms = [_field_term(part, text) for part in parts]
    return FieldMatcher(tuple(term for term in terms if term.field or term.value))


class _Token(NamedTuple):
    text: str
    is_word: bool

    @property
    def is_end(self) -> bool:
        return not self.text


class _SelectorParser:
    """Recursive-descent parser of a label selector."""

    def __init__(self, text: str) -> None:
        self._tokens = [_Token(match[1] or match[2], match[1] is None) for match in _TOKEN.finditer(text)]
        self._tokens.append(_Token("", False))
        self._next = 0

    def requirements(self) -> list[Requirement]:
        found: list[Requirement] = []
        while True:
            token = self._peek()
            if token.is_end:
                return found
            if not _starts_requirement(token):
                raise SelectorError(f"found '{token.text}', expected: !, identifier, or 'end of string'")
            try:
                found.append(self._requirement())
            except SelectorError as error:
                raise SelectorError(f"unable to parse requirement: {error.reason}") from None
            self._separator()

    def _separator(self) -> None:
        token = self._take()
        if token.is_end:
            self._next -= 1
        elif token.text != ",":
            raise SelectorError(f"found '{token.text}', expected: ',' or 'end of string'")
        elif not _starts_requirement(self._peek()):
            raise SelectorError(f"found '{self._peek().text}', expected: identifier after ','")

    def _requirement(self) -> Requirement:
        negated = self._peek().text == "!"
        if negated:
            self._take()
        key = self._key()
        if negated:  # complete; the caller refuses a following token that is no separator
            return _check_requirement(key, "DoesNotExist", ())
        if self._peek().text in ("", ","):
            return _check_requirement(key, "Exists", ())
        token = self._take()
        operator = _BINARY.get(token.text)
        if operator is None:
            raise SelectorError(f"found '{token.text}', expected: {_EXPECTED_OPERATORS}")
        values = self._values() if token.is_word else (self._exact_value(),)
        return _check_requirement(key, operator, values)

    def _key(self) -> str:
        token = self._take()
        if not token.is_word:
            raise SelectorError(f"found '{token.text}', expected: identifier")
        if problems := label_key_problems(token.text):
            raise SelectorError(str(invalid("<nil>", token.text, "; ".join(problems))))
        return token.text

    def _values(self) -> tuple[str, ...]:
        """`(a,b)`; an empty position between commas or parentheses is the empty value."""
        token = self._take()
        if token.text != "(":
            raise SelectorError(f"found '{token.text}' expected: '('")
        token = self._peek()
        if not (token.is_word or token.text in (",", ")")):
            raise SelectorError(f"found '{token.text}', expected: ',', ')' or identifier")
        values = [""] if token.text in (",", ")") else []
        while (token := self._take()).text != ")":
            if token.is_word:
                values.append(token.text)
                self._expect_after_value()
            elif token.text != ",":
                raise SelectorError(f"found '{token.text}', expected: ',', or identifier")
            elif self._peek().text in (",", ")"):
                values.append("")
        return tuple(sorted(set(values)))

    def _expect_after_value(self) -> None:
        token = self._peek()
        if token.text not in (",", ")"):
            raise SelectorError(f"found '{token.text}', expected: ',' or ')'")

    def _exact_value(self) -> str:
        if self._peek().text in ("", ","):
            return ""
        token = self._take()
        if not token.is_word:
            raise SelectorError(f"found '{token.text}', expected: identifier")
        return token.text

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next += 1
        return token


def _starts_requirement(token: _Token) -> bool:
    return token.is_word or token.text == "!"


def _check_requirement(key: str, operator: Operator, values: tuple[str, ...]) -> Requirement:
    if problems := requirement_problems(key, operator, values):
        raise SelectorError(aggregate(problems))
    return make_requirement(key, operator, values)


def _split_fields(text: str) -> list[str]:
    """The parts between commas; a backslash escapes the next character."""
    parts, start = [], 0
    while start <= len(text):
        match = _FIELD_PART.match(text, start)
        assert match is not None
        parts.append(match[0])
        start = match.end() + 1
    return parts


def _field_term(part: str, text: str) -> FieldTerm:
    operator = _FIELD_OPERATORS.search(part)
    if operator is None:
        raise SelectorError(f"invalid selector: '{text}'; can't understand '{part}'")
    return FieldTerm(part[: operator.start()], _unescape(part[operator.end() :]), operator[0] == "!=")


def _unescape(value: str) -> str:
    for match in _ESCAPE.finditer(value):
        if match[2] is not None:
            raise SelectorError(f"invalid field selector: unescaped character in value: {ord(match[2])}")
        if match[1] not in ("\\", ",", "="):
            raise SelectorError(f"invalid field selector: invalid escape sequence: \\{match[1]}")
    return _ESCAPE.sub(r"\1", value)
