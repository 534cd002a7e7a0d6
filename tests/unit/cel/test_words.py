"""Exact error messages of addresses, patterns, clauses and offsets, and limits that no expression reaches quickly."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bayplan.cel import CompileError
from bayplan.cel.errors import EvaluationAborted
from bayplan.cel.libraries import strings
from bayplan.cel.libraries.lists import numbers
from bayplan.cel.parser.source import MAX_ERRORS, ExpressionSource
from bayplan.cel.values.cost import LIMIT

Evaluate = Callable[[str], "bool | str"]

ADDRESSES = {
    "1:2:3:4:5:6:7:8:9": 'trailing garbage after address (at "9")',
    "1:2:3:4:5:6:7:8:": 'colon must be followed by more characters (at ":")',
    "1:2:3:4::5:6:7:8": "the :: must expand to at least one field of zeros",
    "1:2": "address string too short",
    "1::2::3": 'multiple :: in address (at ":3")',
    "12345::": 'each group must have 4 or less digits (at "12345::")',
    "1:::2": 'each colon-separated field must have at least one digit (at ":2")',
    "1g::": 'unexpected character, want colon (at "g::")',
    "::1%": "zone must be a non-empty string",
    "1%2": "missing IPv6 address",
    "12": "unable to parse IP",
    "1:2:3:1.2.3.4": 'embedded IPv4 address must replace the final 2 fields of the address (at "1.2.3.4")',
    "::1:2:3:4:5:6:7:1.2.3.4": 'too many hex fields to fit an embedded IPv4 at the end of the address (at "1.2.3.4")',
    "1.2.3.4.5": "IPv4 address too long",
    "1.2.3": "IPv4 address too short",
    "1.2.3.256": "IPv4 field has value >255",
    "01.2.3.4": "IPv4 field has octet with leading zero",
    ".1.2.3": 'IPv4 field must have at least one digit (at ".1.2.3")',
    "1..3.4": 'IPv4 field must have at least one digit (at ".3.4")',
    "1.2.3.": 'IPv4 field must have at least one digit (at ".")',
    "1.2.3.4x": 'unexpected character (at "x")',
}


@pytest.mark.parametrize(("text", "words"), ADDRESSES.items(), ids=ADDRESSES)
def test_invalid_addresses(evaluate: Evaluate, text: str, words: str) -> None:
    head = f'IP Address "{text}" parse error during conversion from string: ParseAddr("{text}"): '
    assert evaluate(f"ip('{text}').family() == 4") == f"failed: {head}{words}"


RANGES = {
    "1.2.3.4": "no '/'",
    "1.2.3.4/33": "prefix length out of range",
    "::/129": "prefix length out of range",
    "1.2.3.4/x": 'bad bits after slash: "x"',
    "1.2.3.4/08": 'bad bits after slash: "08"',
    "::1%a/3": "IPv6 zones cannot be present in a prefix",
    "1.2.3/8": 'ParseAddr("1.2.3"): IPv4 address too short',
}


@pytest.mark.parametrize(("text", "words"), RANGES.items(), ids=RANGES)
def test_invalid_ranges(evaluate: Evaluate, text: str, words: str) -> None:
    found = evaluate(f'cidr("{text}").prefixLength() == 8')
    assert str(found).endswith(f'parse error during conversion from string: netip.ParsePrefix("{text}"): {words}')


def test_addresses_with_zones_are_refused(evaluate: Evaluate) -> None:
    assert evaluate("ip('::1%a').family() == 6") == 'failed: IP address "::1%a" with zone value is not allowed'


PATTERNS = {
    "a**b": "invalid nested repetition operator: `**`",
    "a{2}{3}b": "invalid nested repetition operator: `{2}{3}`",
    "a{1001}b": "invalid repeat count: `{1001}`",
    "a{2,1}b": "invalid repeat count: `{2,1}`",
    r"\\xZ1b": r"invalid escape sequence: `\xZ1`",
    r"\\x4": r"invalid escape sequence: `\x4`",
    r"\\x{110000}b": r"invalid escape sequence: `\x{110000}`",
    r"\\1": r"invalid escape sequence: `\1`",
    r"\\18": r"invalid escape sequence: `\1`",
    r"\\8": r"invalid escape sequence: `\8`",
    "a\\\\": "trailing backslash at end of expression: ``",
    "[b-a]c": "invalid character class range: `b-a`",
    "[[:foo:]]": "invalid character class range: `[:foo:]`",
    "[a": "missing closing ]: `[a`",
    "a)b": "unexpected ): `a)b`",
    "*a": "missing argument to repetition operator: `*`",
}


@pytest.mark.parametrize(("pattern", "words"), PATTERNS.items(), ids=PATTERNS)
def test_invalid_patterns(evaluate: Evaluate, pattern: str, words: str) -> None:
    assert (
        evaluate(f"'a'.find('{pattern}') == ''")
        == f"refused: program instantiation failed: error parsing regexp: {words}"
    )


@pytest.mark.parametrize(
    "expression",
    [
        "!'a'.matches('a{1000}') && !'a'.matches('a{0,1000}b')",
        r"'\U0010ffff'.matches('^\\x{10FFFF}$') && 'é9'.matches('^\\xe99$')",
        "''.matches('^a?$') && 'a'.matches('^a?$') && !'aa'.matches('^a?$')",
        r"'A1'.matches('^\\1011$') && '\u0007a'.matches('^\\07a$') && '\u00008'.matches('^\\08$')",
        "''.matches('^a*$') && 'aa'.matches('^a*$') && !''.matches('^a+$') && 'aa'.matches('^a+$')",
        "dyn(9007199254740993) == 9007199254740992.0 && 9007199254740992.0 == dyn(9007199254740993)",
        "timestamp(0).getHours('3504000:00') == 0",
        "!isURL('/a\x7f') && !isURL('/a\x1f') && isURL('/a~')",
        "b'\\n\x00'.size() == 2",
        "'%s'.format([[null, true, 1u, type(1), {'a': [1]}]]) == '[null, true, 1, int, {\"a\":[1]}]'",
        "'%s'.format([[b'a', timestamp(0)]]) == '[b\"a\", timestamp(\"1970-01-01T00:00:00Z\")]'",
        "'%s'.format([[duration('1s'), 1.5]]) == '[duration(\"1s\"), 1.500000]'",
        "'%s'.format([[double('inf'), double('-inf'), double('nan')]]) == '[\"+Inf\", \"-Inf\", \"NaN\"]'",
        "!(dyn('a') in [1, 2]) && !(dyn(1) in ['a', 'b']) && dyn('b') in ['a', 'b']",
    ],
)
def test_valid_texts(evaluate: Evaluate, expression: str) -> None:
    assert evaluate(expression) is True


CLAUSES = {
    "('' + '%').format([]) == ''": "index 0 out of range",
    "('' + '%').format([1]) == ''": "unexpected end of string",
    "('' + '%s').format([]) == ''": "index 0 out of range",
    "('' + '%s%s').format([1]) == ''": "index 1 out of range",
    "('' + '%.3').format([1]) == ''": (
        "could not parse formatting clause: error while parsing precision: could not find end of precision specifier"
    ),
    "('' + '%.12345f').format([1.0]) == ''": "could not parse formatting clause: precision 12345 is too large",
    "('' + '%s').format([[ip('1.2.3.4')]]) == ''": "error during formatting: no formatting function for net.IP",
    "timestamp(0).getHours('3504001:00') == 0": "unknown time zone 3504001:00",
    "timestamp(0).getHours('-3504001:00') == 0": "unknown time zone -3504001:00",
}


@pytest.mark.parametrize(("expression", "text"), CLAUSES.items(), ids=CLAUSES)
def test_invalid_clauses_and_offsets(evaluate: Evaluate, expression: str, text: str) -> None:
    assert evaluate(expression) == f"failed: {text}"


@pytest.mark.parametrize(
    ("text", "new", "fits"),
    [("a" * 5, "bb", True), ("a" * 6, "bb", False), ("a" * 10, "", True), ("a" * 11, "", False)],
)
def test_the_length_of_strings_is_limited(monkeypatch: pytest.MonkeyPatch, text: str, new: str, fits: bool) -> None:
    monkeypatch.setattr(strings, "MAX_TEXT", 10)
    if fits:
        assert strings.replace(text, "x", new) == text
    else:
        with pytest.raises(EvaluationAborted):
            strings.replace(text, "x", new)


def test_the_length_of_a_range_is_limited_by_cost() -> None:
    assert len(numbers(LIMIT)) == LIMIT
    with pytest.raises(EvaluationAborted):
        numbers(LIMIT + 1)


@pytest.mark.parametrize("more", [0, 1, 2])
def test_the_number_of_reported_errors_is_limited(more: int) -> None:
    source = ExpressionSource("x")
    for number in range(MAX_ERRORS + more):
        source.error_at(0, f"error {number}")
    with pytest.raises(CompileError) as caught:
        source.check()
    text = str(caught.value)
    assert text.count("ERROR: ") == MAX_ERRORS
    assert text.endswith(f"\n{more} more errors were truncated") == bool(more)
