"""RE2's syntax in both engines."""

from __future__ import annotations

import string

import pytest

from bayplan.cel.regex.regex import NfaMachine, Regex
from bayplan.cel.regex.syntax import parse

MATCHES = [
    ("abc", "b", True),
    ("abc", "^b", False),
    ("a\nc", "a.c", False),
    ("a\nc", "(?s)a.c", True),
    ("abc\n", "abc$", False),
    ("abc\n", "(?m)abc$", True),
    ("x\nabc", "(?m)^abc", True),
    ("ABC", "(?i)abc", True),
    ("a b", r"a\b", True),
    ("ab", r"a\b", False),
    ("é", r"\w", False),
    ("é", r"\pL", True),
    ("é", r"\p{Lu}", False),
    ("Σ", "(?i)ς", True),
    ("]", "[]]", True),
    ("\n", "[^a]", True),
    ("5", "[[:digit:]]", True),
    ("a{,2}", "^a{,2}$", True),
    ("a.b", r"\Qa.b\E", True),
    ("a", r"\x{61}\z", True),
    ("abab", "^(?:ab)+$", True),
    ("ab", "^(?P<x>a)(?<y>b)$", True),
    ("", "", True),
    ("b", "(a*)+b", True),
    ("", r"\B", True),
]


@pytest.mark.parametrize(("text", "pattern", "expected"), MATCHES, ids=[f"{p!r} on {t!r}" for t, p, _ in MATCHES])
def test_matches(text: str, pattern: str, expected: bool) -> None:
    assert Regex(pattern).matches(text) is expected
    assert (NfaMachine(parse(pattern)).search(text, 0) is not None) is expected


REFUSED = {
    "(": "missing closing ): `(`",
    "a)": "unexpected ): `a)`",
    "[a": "missing closing ]: `[a`",
    "[b-a]": "invalid character class range: `b-a`",
    "*": "missing argument to repetition operator: `*`",
    "a**": "invalid nested repetition operator: `**`",
    "a{1001}": "invalid repeat count: `{1001}`",
    "a{1001}?": "invalid repeat count: `{1001}`",
    "(a{500}){500}": "invalid repeat count: `{500}`",
    "(a{500,}){3}?)": "invalid repeat count: `{3}?`",
    "a(?": "invalid or unsupported Perl syntax: `(?`",
    "a(?-": "invalid or unsupported Perl syntax: `(?-`",
    "(?i": "missing closing ): `(?i`",
    "a{2,1}": "invalid repeat count: `{2,1}`",
    r"\1": r"invalid escape sequence: `\1`",
    r"\Z": r"invalid escape sequence: `\Z`",
    "(?=a)": "invalid or unsupported Perl syntax: `(?=`",
    "(?!a)": "invalid or unsupported Perl syntax: `(?!`",
    r"\p{Foo}": r"invalid character class range: `\p{Foo}`",
    "(?P<1-2>a)": "invalid named capture: `(?P<1-2>`",
}


@pytest.mark.parametrize(("pattern", "reason"), REFUSED.items(), ids=REFUSED)
def test_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match="error parsing regexp") as caught:
        parse(pattern)
    assert str(caught.value) == f"error parsing regexp: {reason}"


CONTROLS = "".join(map(chr, range(32)))
CLASSES = {
    "[[:alnum:]]": string.ascii_letters + string.digits,
    "[[:alpha:]]": string.ascii_letters,
    "[[:ascii:]]": "".join(map(chr, range(128))),
    "[[:blank:]]": " \t",
    "[[:cntrl:]]": CONTROLS + "\x7f",
    "[[:digit:]]": string.digits,
    "[[:graph:]]": string.ascii_letters + string.digits + string.punctuation,
    "[[:lower:]]": string.ascii_lowercase,
    "[[:print:]]": string.ascii_letters + string.digits + string.punctuation + " ",
    "[[:punct:]]": string.punctuation,
    "[[:space:]]": string.whitespace,
    "[[:upper:]]": string.ascii_uppercase,
    "[[:word:]]": string.ascii_letters + string.digits + "_",
    "[[:xdigit:]]": string.hexdigits,
    r"\d": string.digits,
    r"\w": string.ascii_letters + string.digits + "_",
    r"\s": "\t\n\f\r ",
}


@pytest.mark.parametrize(("pattern", "members"), CLASSES.items(), ids=CLASSES)
def test_members_of_a_class(pattern: str, members: str) -> None:
    """Go's table of classes; both engines, and the class negated."""
    regex, machine = Regex(pattern), NfaMachine(parse(pattern))
    negated = Regex(f"[^{pattern[1:]}" if pattern.startswith("[") else f"[^{pattern}]")
    characters = [chr(each) for each in range(160)]
    assert {each for each in characters if regex.matches(each)} == set(members)
    assert {each for each in characters if machine.search(each, 0) is not None} == set(members)
    assert {each for each in characters if not negated.matches(each)} == set(members)


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(a|a)*$", "(a?){30}a{30}b", "(.*)(.*)(.*)(.*)(.*)x"])
def test_matching_is_linear(pattern: str) -> None:
    """With a backtracking engine this test would not end."""
    assert Regex(pattern).matches("a" * 60 + "!") is False


def test_the_leftmost_match_and_the_first_option_are_preferred() -> None:
    assert Regex("foo|foobar").find("a foobar") == "foo"
    assert Regex("(foo|foobar)$").find("a foobar") == "foobar"
    assert Regex("a+?").find("aaa") == "a"


def test_empty_matches_do_not_touch_other_matches() -> None:
    assert Regex("a*").find_all("baac", -1) == ["", "aa", ""]
    assert Regex("").find_all("ab", -1) == ["", "", ""]
    assert Regex("").find_all("ab", 0) == []
