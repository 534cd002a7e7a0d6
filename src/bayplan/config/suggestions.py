"""Suggestions for misspelt names in error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_MIN_SIMILARITY = 0.85


def nearly(attribute: str, known: Iterable[str]) -> str:
    """The nearest of the known names to an attribute, regardless of case; "" if there is none."""
    by_letters = {name.lower(): name for name in known}
    found = get_close_matches(attribute.lower(), by_letters, n=1, cutoff=_MIN_SIMILARITY)
    return by_letters[found[0]] if found else ""
