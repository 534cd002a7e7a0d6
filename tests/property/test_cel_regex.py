"""CEL's regex engine and Python's agree on their common syntax, and spans equal Python's."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from bayplan.cel.regex.regex import NfaMachine, Regex
from bayplan.cel.regex.syntax import parse

atoms = st.sampled_from(["a", "b", "[ab]", "[^a]", ".", r"\w", "^", "$", r"\b", "(?:ab)"])


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    )


patterns = st.recursive(atoms, combined, max_leaves=6)
texts = st.text("ab \n", max_size=8)


@given(patterns, texts)
def test_both_engines_find_the_same_matches(pattern: str, text: str) -> None:
    machine = NfaMachine(parse(pattern))
    for start in range(len(text) + 1):
        assert machine.search(text, start) == Regex(pattern).search(text, start)


@given(st.lists(st.sampled_from(["a", "b", "[ab]", "a+", "b*", "(?:a|b)", "a??"]), min_size=1, max_size=5), texts)
def test_spans_are_pythons_where_the_syntax_is_shared(parts: list[str], text: str) -> None:
    pattern = "".join(parts)
    found = re.search(pattern, text)
    assert NfaMachine(parse(pattern)).search(text, 0) == (found.span() if found else None)


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_refused(pattern: str) -> None:
    refusal = ""
    try:
        Regex(pattern).matches("abc")
    except ValueError as error:
        refusal = str(error)
    assert not refusal or refusal.startswith("error parsing regexp: ")
