"""Formatting and parsing of Go durations are inverse."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bayplan.codec.go_duration import GoDuration, parse_duration


@given(st.integers(-(2**63), 2**63 - 1))
def test_printing_and_reading_are_inverse(nanoseconds: int) -> None:
    duration = GoDuration(nanoseconds)
    assert parse_duration(str(duration)) == duration


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 10_000))
def test_terms_add_up(hours: int, minutes: int, milliseconds: int) -> None:
    total = (hours * 3600 + minutes * 60) * 1000 + milliseconds
    assert parse_duration(f"{hours}h{minutes}m{milliseconds}ms").nanoseconds == total * 1_000_000
