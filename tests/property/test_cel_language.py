"""Properties of CEL expressions: numbers, texts and logic equal their naive twins."""

from __future__ import annotations

import json
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from bayplan.cel import DeviceEnvironment, DeviceView, EvaluationError
from bayplan.cel.parser.literals import parse_bytes, parse_string
from bayplan.codec.quantity import Quantity

ENVIRONMENT = DeviceEnvironment(parse_quantity=Quantity.parse)
INT_MIN, INT_MAX, UINT_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1
ints = st.integers(INT_MIN, INT_MAX) | st.integers(-10, 10) | st.sampled_from([INT_MIN, INT_MAX, INT_MIN + 1])


def device(**attributes: int | str | bool) -> DeviceView:
    return DeviceView(driver="d", attributes=attributes, capacity={})


def ask(expression: str, view: DeviceView) -> bool | str:
    text = expression.replace("@", 'device.attributes["d"].')
    try:
        return ENVIRONMENT.compile(text).evaluate(view)
    except EvaluationError as error:
        return str(error)


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


@given(ints, ints)
@example(INT_MIN, -1)
def test_integers_are_exact_or_overflow(a: int, b: int) -> None:
    view = device(a=a, b=b)
    results = {"+": a + b, "-": a - b, "*": a * b}
    if b:
        results |= {"/": truncated(a, b), "%": a - b * truncated(a, b)}
    for operator, result in results.items():
        overflows = not INT_MIN <= result <= INT_MAX or (operator == "%" and (a, b) == (INT_MIN, -1))
        expected = "integer overflow" if overflows else True
        shown = result if not overflows else 0
        # The smallest integer has no positive counterpart, so literals are written as they are.
        assert ask(f"@a {operator} @b == {shown}", view) == expected


@given(ints, st.integers(0, UINT_MAX), st.floats(allow_nan=False))
def test_comparison_across_number_types(a: int, u: int, f: float) -> None:
    view = device(a=a)
    assert ask(f"@a < {u}u", view) is (a < u)
    assert ask(f"@a == {u}u", view) is (a == u)
    if abs(f) < 1e18 and f == int(f):
        assert ask(f"@a < {int(f)}", view) is (a < int(f))
        rounded = Fraction(float(a))
        assert ask(f"@a == double('{f!r}')", view) is (rounded == Fraction(f))


@given(st.text())
def test_string_literals_round_trip(text: str) -> None:
    """JSON's escapes are CEL's too, apart from surrogate pairs."""
    encodable = text.encode("utf-8", "ignore").decode()
    assert (
        parse_string(json.dumps(encodable, ensure_ascii=False).replace("\x7f", "\\x7f").replace("\\/", "/"))
        == encodable
    )
    escaped = '"' + "".join(f"\\U{ord(c):08x}" for c in encodable) + '"'
    assert parse_string(escaped) == encodable


@given(st.binary())
def test_bytes_literals_round_trip(data: bytes) -> None:
    assert parse_bytes('b"' + "".join(f"\\x{b:02x}" for b in data) + '"') == data
    assert parse_bytes("b'" + "".join(f"\\{b:03o}" for b in data) + "'") == data


TERMS = {"true": True, "false": False, "(1 / @zero == 1)": "division by zero", "@number": "no such overload"}


@given(st.lists(st.sampled_from(sorted(TERMS)), min_size=1, max_size=5), st.sampled_from(["&&", "||"]))
def test_logic_absorbs_errors_as_specified(terms: list[str], operator: str) -> None:
    view = device(zero=0, number=5)
    decisive = operator == "||"
    values = [TERMS[t] for t in terms]
    errors = [v for v in values if isinstance(v, str)]
    expected: bool | str = decisive if decisive in values else (errors[0] if errors else not decisive)
    if len(terms) > 1:  # a single term is not a logical operation
        assert ask(f" {operator} ".join(terms), view) == expected


@given(st.lists(st.integers(-5, 5), max_size=6), st.integers(-5, 5))
def test_macros_are_pythons_comprehensions(values: list[int], limit: int) -> None:
    view = device(limit=limit)
    assert ask(f"{values}.all(x, x < @limit)", view) is all(v < limit for v in values)
    assert ask(f"{values}.exists(x, x < @limit)", view) is any(v < limit for v in values)
    assert ask(f"{values}.exists_one(x, x < @limit)", view) is (sum(v < limit for v in values) == 1)
    kept = [v * 2 for v in values if v < limit]
    if values:
        # The elements of an empty literal have no type yet; the first use determines it, here as bool.
        assert ask(f"{values}.filter(x, x < @limit).map(x, x * 2) == {kept}", view) is True
    assert ask(f"{values}.sort() == {sorted(values)}", view) is True
    assert ask(f"{values}.distinct() == {list(dict.fromkeys(values))}", view) is True
