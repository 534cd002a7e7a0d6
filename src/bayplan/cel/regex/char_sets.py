"""Character classes of regular expressions.

Ranges, Unicode properties and case folding, as in RE2. The NFA machine tests every character with them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

# Longer ranges are not searched for characters that fold to the same one.
_BINARY_SEARCH_MIN = 64

Ranges: TypeAlias = "tuple[tuple[int, int], ...]"
Predicate: TypeAlias = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class CharSet:
    """A set of characters by range and by Unicode property; `fold` ignores case."""

    ranges: Ranges = ()
    predicates: tuple[Predicate, ...] = ()
    negated: bool = False
    fold: bool = False

    def matches(self, c: str) -> bool:
        found = self._holds(c) or (self.fold and self._holds_folded(c))
        return found != self.negated

    def _holds(self, c: str) -> bool:
        code = ord(c)
        return any(lo <= code <= hi for lo, hi in self.ranges) or any(p(c) for p in self.predicates)

    def _holds_folded(self, c: str) -> bool:
        key = fold_case(c)
        if any(self._holds(v) for v in (key, key.lower(), c.upper(), c.lower()) if len(v) == 1):
            return True
        # Three and more characters may fold together; the search is done for short ranges only.
        short = ((lo, hi) for lo, hi in self.ranges if hi - lo < _BINARY_SEARCH_MIN)
        return any(fold_case(chr(code)) == key for lo, hi in short for code in range(lo, hi + 1))


def fold_case(c: str) -> str:
    """One representative for all characters that are equal regardless of case."""
    lower = c.lower()
    upper = lower.upper()
    if len(upper) == 1:
        return upper
    return lower if len(lower) == 1 else c


DIGIT: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE: Ranges = ((9, 10), (12, 13), (32, 32))
PERL = {"d": DIGIT, "w": WORD, "s": SPACE}
POSIX: dict[str, Ranges] = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": DIGIT,
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": WORD,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
_CATEGORIES = frozenset(
    [
        "L",
        "Lu",
        "Ll",
        "Lt",
        "Lm",
        "Lo",
        "M",
        "Mn",
        "Mc",
        "Me",
        "N",
        "Nd",
        "Nl",
        "No",
        "P",
        "Pc",
        "Pd",
        "Ps",
        "Pe",
        "Pi",
        "Pf",
        "Po",
        "S",
        "Sm",
        "Sc",
        "Sk",
        "So",
        "Z",
        "Zs",
        "Zl",
        "Zp",
        "C",
        "Cc",
        "Cf",
        "Co",
        "Cs",
    ]
)
# The first word of a character's name gives its script; rare scripts have no table here.
_SCRIPTS = {
    s: s.upper()
    for s in ["Latin", "Greek", "Cyrillic", "Hebrew", "Arabic", "Thai", "Hiragana", "Katakana", "Hangul", "Devanagari"]
}
_SCRIPTS["Han"] = "CJK"


def named_property(name: str) -> Predicate | None:
    if name == "Any":
        return lambda _: True
    if name in _CATEGORIES:
        return lambda c: unicodedata.category(c).startswith(name)
    if name in _SCRIPTS:
        return lambda c: unicodedata.name(c, "").startswith(_SCRIPTS[name])
    return None


def union(members: list[CharSet], *, negated: bool, fold: bool) -> CharSet:
    ranges: list[tuple[int, int]] = []
    predicates: list[Predicate] = []
    for member in members:
        if member.negated:
            predicates.append(member.matches)
        else:
            ranges += member.ranges
            predicates += member.predicates
    return CharSet(tuple(ranges), tuple(predicates), negated, fold)
