"""Parser of regular expressions in RE2 syntax.

RE2 has no back-references and no look-around, so every pattern can be matched in linear time. Raises `ValueError` with
the message of Go's regexp package.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, replace
from typing import TypeAlias

from bayplan.cel.regex.char_sets import PERL, POSIX, CharSet, Ranges, named_property, union

MAX_REPEAT = 1000
MAX_NESTING = 250


@dataclass(frozen=True, slots=True)
class Assertion:
    """A position between characters: text or line begin and end, word boundary or its opposite."""

    kind: str


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    body: Node
    low: int
    high: int | None
    greedy: bool


Node: TypeAlias = "CharSet | Assertion | Sequence | Alternation | Repeat"


_CONTROL = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_FLAGS = "imsU"


def _error(reason: str, text: str) -> ValueError:
    return ValueError(f"error parsing regexp: {reason}: `{text}`")


@dataclass(slots=True)
class _Flags:
    i: bool = False
    m: bool = False
    s: bool = False
    U: bool = False


class _OpenGroup:
    """An open parenthesis: finished options, the parts of the current one, and the flags to restore."""

    def __init__(self, flags: _Flags) -> None:
        self.flags = flags
        self.options: list[Node] = []
        self.parts: list[Node] = []

    def close(self) -> Node:
        self.next_option()
        return self.options[0] if len(self.options) == 1 else Alternation(tuple(self.options))

    def next_option(self) -> None:
        self.options.append(self.parts[0] if len(self.parts) == 1 else Sequence(tuple(self.parts)))
        self.parts = []


def parse(pattern: str) -> Node:
    return _RegexParser(pattern).parse()


class _RegexParser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._flags = _Flags()
        self._stack = [_OpenGroup(self._flags)]
        # The position of the last repetition operator: another one directly after it is refused.
        self._repeated_at = self._repeat_ended = -1

    def parse(self) -> Node:
        while self._at < len(self._text):
            self._step(self._text[self._at])
        if len(self._stack) > 1:
            raise _error("missing closing )", self._text)
        return self._stack[0].close()

    def _step(self, c: str) -> None:
        group = self._stack[-1]
        match c:
            case "(":
                self._open()
            case ")":
                self._close()
            case "|":
                self._at += 1
                group.next_option()
            case "^" | "$":
                self._at += 1
                kind = ("begin" if c == "^" else "end") + ("_line" if self._flags.m else "_text")
                group.parts.append(Assertion(kind))
            case ".":
                self._at += 1
                excluded: Ranges = () if self._flags.s else ((10, 10),)
                group.parts.append(CharSet(excluded, negated=True))
            case "[":
                group.parts.append(self._class())
            case "*" | "+" | "?" | "{":
                self._repeat(c)
            case "\\":
                self._backslash()
            case _:
                self._at += 1
                self._literal(ord(c))

    def _literal(self, code: int) -> None:
        self._stack[-1].parts.append(CharSet(((code, code),), fold=self._flags.i))

    # Groups.

    def _open(self) -> None:
        if len(self._stack) > MAX_NESTING * 4:
            raise _error("expression nests too deeply", self._text)
        if not self._text.startswith("(?", self._at):
            self._at += 1
            self._push()
        elif self._text.startswith(("(?P<", "(?<"), self._at):
            self._parse_named_group()
        else:
            self._set_flags()

    def _push(self) -> None:
        self._stack.append(_OpenGroup(self._flags))

    def _parse_named_group(self) -> None:
        begin = self._text.index("<", self._at) + 1
        end = self._text.find(">", begin)
        if end < 0:
            raise _error("invalid named capture", self._text[self._at :])
        name = self._text[begin:end]
        if not name or not all(c.isascii() and (c.isalnum() or c == "_") for c in name):
            raise _error("invalid named capture", self._text[self._at : end + 1])
        self._at = end + 1
        self._push()

    def _set_flags(self) -> None:
        start, at = self._at, self._at + 2
        flags, on, seen = replace(self._flags), True, False
        while at < len(self._text):
            c = self._text[at]
            at += 1
            if c in _FLAGS:
                setattr(flags, c, on)
                seen = True
            elif c == "-" and on:
                on, seen = False, False
            elif c in ":)" and (on or seen):
                self._at = at
                if c == ":":
                    self._push()
                self._flags = flags
                return
            else:
                raise _error("invalid or unsupported Perl syntax", self._text[start:at])
        if self._text[start:] in ("(?", "(?-"):
            raise _error("invalid or unsupported Perl syntax", self._text[start:])
        raise _error("missing closing )", self._text)

    def _close(self) -> None:
        if len(self._stack) == 1:
            raise _error("unexpected )", self._text)
        group = self._stack.pop()
        self._flags = group.flags
        self._stack[-1].parts.append(group.close())
        self._at += 1

    # Repetition.

    def _repeat(self, c: str) -> None:
        bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(c) or self._braces()
        if bounds is None:
            self._at += 1
            self._literal(ord(c))
            return
        low, high = bounds
        begin = self._at
        end = begin + (self._text.index("}", begin) - begin + 1 if c == "{" else 1)
        if low > MAX_REPEAT or (high is not None and (high > MAX_REPEAT or low > high)):
            raise _error("invalid repeat count", self._text[begin:end])
        greedy = not self._flags.U
        if self._text.startswith("?", end):
            end += 1
            greedy = not greedy
        parts = self._stack[-1].parts
        if not parts:
            raise _error("missing argument to repetition operator", self._text[begin:end])
        if self._repeat_ended == begin:
            raise _error("invalid nested repetition operator", self._text[self._repeated_at : end])
        repeat = Repeat(parts.pop(), low, high, greedy)
        if max(low, high or 0) >= 2 and not _is_valid_repeat(repeat, MAX_REPEAT):
            raise _error("invalid repeat count", self._text[begin:end])
        parts.append(repeat)
        self._repeated_at, self._repeat_ended, self._at = begin, end, end

    def _braces(self) -> tuple[int, int | None] | None:
        """`{2}`, `{2,}` or `{2,5}`; any other brace is a plain character."""
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(end, self._at + 1)].partition(",")
        if end < 0 or not _is_count(low) or (high and not _is_count(high)):
            return None
        return int(low), (int(high) if high else None) if comma else int(low)

    # Escapes and classes.

    def _backslash(self) -> None:
        parts = self._stack[-1].parts
        following = self._text[self._at + 1 : self._at + 2]
        assertion = {"A": "begin_text", "z": "end_text", "b": "word", "B": "not_word"}.get(following)
        if assertion:
            self._at += 2
            parts.append(Assertion(assertion))
        elif following == "Q":
            end = self._text.find("\\E", self._at + 2)
            for c in self._text[self._at + 2 : None if end < 0 else end]:
                self._literal(ord(c))
            self._at = len(self._text) if end < 0 else end + 2
        elif (group := self._class_escape()) is not None:
            parts.append(group)
        else:
            self._literal(self._escape())

    def _class_escape(self) -> CharSet | None:
        """Classes such as `\\d` and `\\pL`."""
        letter = self._text[self._at + 1 : self._at + 2]
        if letter and letter.lower() in PERL:
            self._at += 2
            return CharSet(PERL[letter.lower()], negated=letter.isupper(), fold=self._flags.i)
        if letter and letter in "pP":
            return self._unicode(letter)
        return None

    def _unicode(self, letter: str) -> CharSet:
        start = self._at
        if self._text.startswith("{", start + 2):
            end = self._text.find("}", start)
            if end < 0:
                raise _error("invalid character class range", self._text[start:])
            name, self._at = self._text[start + 3 : end], end + 1
        else:
            name, self._at = self._text[start + 2 : start + 3], start + 3
        negated = letter == "P"
        if name.startswith("^"):
            name, negated = name[1:], not negated
        predicate = named_property(name)
        if predicate is None:
            raise _error("invalid character class range", self._text[start : self._at])
        return CharSet((), (predicate,), negated, self._flags.i)

    def _escape(self) -> int:
        start = self._at
        self._at += 1
        if self._at >= len(self._text):
            raise ValueError("error parsing regexp: trailing backslash at end of expression: ``")
        c = self._text[self._at]
        self._at += 1
        if (
            c in "1234567"
            and self._text[self._at : self._at + 1] in string.octdigits[:8]
            and self._at < len(self._text)
        ):
            return self._octal(c)
        if c == "0":
            return self._octal(c)
        if c == "x":
            return self._hex(start)
        if c in _CONTROL:
            return _CONTROL[c]
        if c.isascii() and not c.isalnum():
            return ord(c)
        raise _error("invalid escape sequence", self._text[start : self._at])

    def _octal(self, digits: str) -> int:
        while len(digits) < 3 and self._text[self._at : self._at + 1] in tuple("01234567"):
            digits += self._text[self._at]
            self._at += 1
        return int(digits, 8)

    def _hex(self, start: int) -> int:
        if self._text.startswith("{", self._at):
            end = self._text.find("}", self._at)
            digits, after = self._text[self._at + 1 : max(end, self._at + 1)], end + 1
        else:
            digits, after = self._text[self._at : self._at + 2], self._at + 2
            digits = digits if len(digits) == 2 else ""
        if not digits or after <= self._at or not set(digits) <= set(string.hexdigits) or int(digits, 16) > 0x10FFFF:
            raise _error("invalid escape sequence", self._text[start : max(after, start + 2)])
        self._at = after
        return int(digits, 16)

    def _class(self) -> CharSet:
        start = self._at
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        members: list[CharSet] = []
        first = True
        while first or not self._text.startswith("]", self._at):
            if self._at >= len(self._text):
                raise _error("missing closing ]", self._text[start:])
            members.append(self._class_member(start))
            first = False
        self._at += 1
        return union(members, negated=negated, fold=self._flags.i)

    def _class_member(self, start: int) -> CharSet:
        if self._text.startswith("[:", self._at):
            end = self._text.find(":]", self._at + 2)
            if end >= 0:
                return self._posix(end)
        if self._text.startswith("\\", self._at) and (group := self._class_escape()) is not None:
            return group
        begin = self._at
        low = self._class_char(start)
        high = low
        if self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
            self._at += 1
            high = self._class_char(start)
        if high < low:
            raise _error("invalid character class range", self._text[begin : self._at])
        return CharSet(((low, high),), fold=self._flags.i)

    def _class_char(self, start: int) -> int:
        if self._at >= len(self._text):
            raise _error("missing closing ]", self._text[start:])
        if self._text[self._at] == "\\":
            return self._escape()
        self._at += 1
        return ord(self._text[self._at - 1])

    def _posix(self, end: int) -> CharSet:
        name = self._text[self._at + 2 : end]
        ranges = POSIX.get(name.removeprefix("^"))
        if ranges is None:
            raise _error("invalid character class range", self._text[self._at : end + 2])
        self._at = end + 2
        return CharSet(ranges, negated=name.startswith("^"), fold=self._flags.i)


def _is_count(digits: str) -> bool:
    """A number without leading zeros and of limited length."""
    return digits.isascii() and digits.isdigit() and len(digits) < 9 and (digits == "0" or digits[0] != "0")


def _is_valid_repeat(node: Node, budget: int) -> bool:
    """Whether nested repetitions make at most `budget` copies: they multiply."""
    match node:
        case Repeat():
            count = node.low if node.high is None else node.high
            return node.high == 0 or (count <= budget and _is_valid_repeat(node.body, budget // max(count, 1)))
        case Sequence():
            return all(_is_valid_repeat(part, budget) for part in node.parts)
        case Alternation():
            return all(_is_valid_repeat(option, budget) for option in node.options)
        case _:
            return True
