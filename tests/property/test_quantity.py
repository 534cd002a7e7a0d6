"""Quantities against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from bayplan.codec.quantity import Quantity

SUFFIXES = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
SUFFIXES |= {suffix: Fraction(1000**power) for power, suffix in enumerate("kMGT", start=1)}
SUFFIXES |= {f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGT", start=1)}
SUFFIXES |= {"e3": Fraction(1000), "E-3": Fraction(1, 1000), "e+1": Fraction(10)}
NANO = Fraction(1, 10**9)


@st.composite
def written(draw: st.DrawFn, *, signs: str = "+-") -> tuple[str, Fraction]:
    """A text and its exact number, before rounding."""
    sign = draw(st.sampled_from(["", *signs]))
    whole, places = draw(st.integers(0, 5000)), draw(st.text("0123456789", max_size=12))
    suffix = draw(st.sampled_from(sorted(SUFFIXES)))
    number = Fraction(int(f"{whole}{places}"), 10 ** len(places)) * SUFFIXES[suffix]
    dot = f".{places}" if places or draw(st.booleans()) else ""
    return f"{sign}{whole}{dot}{suffix}", -number if sign == "-" else number


def exact(quantity: Quantity) -> Fraction:
    return Fraction(quantity.amount) * Fraction(10) ** quantity.exponent


def away_from_zero(number: Fraction) -> int:
    return math.ceil(number) if number >= 0 else math.floor(number)


@given(written())
def test_parsing_is_exact_down_to_a_nano(case: tuple[str, Fraction]) -> None:
    text, number = case
    assert exact(Quantity.parse(text)) == away_from_zero(number / NANO) * NANO


@given(written(signs="+"))
def test_whole_and_thousandth_values_are_rounded_up(case: tuple[str, Fraction]) -> None:
    quantity = Quantity.parse(case[0])
    assert quantity.value() == math.ceil(exact(quantity))
    assert quantity.milli_value() == math.ceil(exact(quantity) * 1000)


@given(written(), written())
def test_arithmetic_is_exact(a: tuple[str, Fraction], b: tuple[str, Fraction]) -> None:
    left, right = Quantity.parse(a[0]), Quantity.parse(b[0])
    assert exact(left.add(right)) == exact(left) + exact(right)
    assert exact(left.sub(right)) == exact(left) - exact(right)
    assert left.sub(right).add(right) == left


@given(written(), written())
def test_order_and_equality_are_those_of_the_numbers(a: tuple[str, Fraction], b: tuple[str, Fraction]) -> None:
    left, right = Quantity.parse(a[0]), Quantity.parse(b[0])
    assert left.compare(right) == (exact(left) > exact(right)) - (exact(left) < exact(right))
    assert left.sign() == left.compare(Quantity())
    assert exact(left.larger(right)) == max(exact(left), exact(right))
    if left == right:
        assert hash(left) == hash(right)


@given(written(), written())
def test_the_canonical_form_reads_back_as_itself(a: tuple[str, Fraction], b: tuple[str, Fraction]) -> None:
    for quantity in (Quantity.parse(a[0]), Quantity.parse(a[0]).add(Quantity.parse(b[0]))):
        again = Quantity.parse(str(quantity))
        assert again == quantity
        assert str(again) == str(quantity)


@given(written())
def test_an_integer_is_only_claimed_where_there_is_one(case: tuple[str, Fraction]) -> None:
    quantity = Quantity.parse(case[0])
    integer = quantity.as_integer()
    assert integer is None or integer == exact(quantity) == quantity.value()
