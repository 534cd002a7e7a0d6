"""Quantities. Every expected value is the result of k8s.io/apimachinery 0.36.4 for the same text."""

from __future__ import annotations

import math
import operator

import pytest

from bayplan.codec.quantity import (
    FORMAT_ERROR,
    NUMBER_ERROR,
    SUFFIX_ERROR,
    Quantity,
    QuantityError,
    QuantityFormat,
    parse_quantity,
)
from bayplan.errors import ObjectError

SI, BI, EXP = QuantityFormat.DECIMAL_SI, QuantityFormat.BINARY_SI, QuantityFormat.DECIMAL_EXPONENT
MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "written", "unit", "value", "milli", "integer"),
    [
        ("0", "0", SI, 0, 0, 0),
        ("1", "1", SI, 1, 1000, 1),
        ("-1", "-1", SI, -1, -1000, -1),
        ("+1", "+1", SI, 1, 1000, 1),
        ("001", "001", SI, 1, 1000, 1),
        ("1.", "1.", SI, 1, 1000, 1),
        ("1.5", "1500m", SI, 2, 1500, None),
        (".5", "500m", SI, 1, 500, None),
        ("1.500", "1.500", SI, 2, 1500, None),
        ("1000m", "1", SI, 1, 1000, None),
        ("100m", "100m", SI, 1, 100, None),
        ("1n", "1n", SI, 1, 1, None),
        ("0.1n", "1n", SI, 1, 1, None),
        ("-0.1n", "-1n", SI, 1, 1, None),
        ("1u", "1u", SI, 1, 1, None),
        ("1000k", "1M", SI, 10**6, 10**9, 10**6),
        ("2G", "2G", SI, 2 * 10**9, 2 * 10**12, 2 * 10**9),
        ("3T", "3T", SI, 3 * 10**12, 3 * 10**15, 3 * 10**12),
        ("4P", "4P", SI, 4 * 10**15, 4 * 10**18, 4 * 10**15),
        ("5E", "5E", SI, 5 * 10**18, 0, 5 * 10**18),
        ("1Ki", "1Ki", BI, 1024, 1024000, 1024),
        ("1024Mi", "1Gi", BI, 2**30, 2**30 * 1000, 2**30),
        ("1.5Gi", "1536Mi", BI, 1536 * 2**20, 1536 * 2**20 * 1000, None),
        ("0.5Ki", "512", BI, 512, 512000, None),
        ("1.1Ki", "1126400m", BI, 1127, 1126400, None),
        ("0.000000001Ki", "1024n", SI, 1, 1, None),
        ("99Ti", "99Ti", BI, 99 * 2**40, 99 * 2**40 * 1000, 99 * 2**40),
        ("100Ti", "100Ti", BI, 100 * 2**40, 100 * 2**40 * 1000, None),
        ("99999Gi", "99999Gi", BI, 99999 * 2**30, 99999 * 2**30 * 1000, 99999 * 2**30),
        ("100000Gi", "100000Gi", BI, 100000 * 2**30, 100000 * 2**30 * 1000, None),
        ("1Pi", "1Pi", BI, 2**50, 2**50 * 1000, None),
        ("1e3", "1e3", EXP, 1000, 10**6, 1000),
        ("1E3", "1E3", EXP, 1000, 10**6, 1000),
        ("1.5e3", "1500", EXP, 1500, 1500000, 1500),
        ("1e-3", "1e-3", EXP, 1, 1, None),
        ("k", "0", SI, 0, 0, 0),
        ("+", "0", SI, 0, 0, 0),
        (".", "0", SI, 0, 0, 0),
    ],
)
def test_parsing(text: str, written: str, unit: QuantityFormat, value: int, milli: int, integer: int | None) -> None:
    quantity = Quantity.parse(text)
    assert (str(quantity), quantity.format) == (written, unit)
    assert (quantity.value(), quantity.milli_value(), quantity.as_integer()) == (value, milli, integer)


@pytest.mark.parametrize(
    ("text", "written", "value", "milli"),
    [
        pytest.param("8Ei", str(MAX), MAX, -1000, id="binary-capped"),
        pytest.param("-100Ei", str(-MAX), -MAX, 1000, id="binary-capped-below"),
        pytest.param("10E", "10E", 0, 0, id="decimal-is-not-capped"),
        pytest.param("10000000000000000", "10P", 10**16, 10**19 - 2**64, id="milli-wraps-around"),
        pytest.param("1000E", "1", 0, 0, id="no-suffix-beyond-exa"),
        pytest.param("1e20", "100e18", 0, 0, id="exponent"),
        pytest.param("9223372036854775808", "9223372036854775808", -(2**63), 0, id="wide-wraps-around"),
        pytest.param("1e4294967299", "1e4294967299", 1000, 10**6, id="exponent-of-32-bits"),
        pytest.param("1e-2000000000", "1e-9", 1, 1, id="a-crumb-is-a-nano"),
        pytest.param("-1.5", "-1500m", -2, -1500, id="narrow-rounds-away-from-zero"),
        pytest.param("-1.5000000001Ki", "-1536000000103n", -1535, -1535999, id="wide-rounds-up-twice"),
    ],
)
def test_out_of_bounds(text: str, written: str, value: int, milli: int) -> None:
    quantity = Quantity.parse(text)
    assert (str(quantity), quantity.value(), quantity.milli_value()) == (written, value, milli)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((text, FORMAT_ERROR) for text in ("", " 1", "1 ", "1.2.3", "abc", "1Kib", "1e3.5", "١", "1\n")),
        *(
            (text, SUFFIX_ERROR)
            for text in (
                "1ki",
                "1K",
                "1e",
                "1-3",
                "1i",
                "1e99999999999999999999",
                "1ee3",
                "--1",
                "1e9223372036854775808",
            )
        ),
        *((text, NUMBER_ERROR) for text in ("e-20", ".e-20", "+e-20", "9" * 5000, f"{'9' * 19}e9999")),
    ],
)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(QuantityError) as caught:
        Quantity.parse(text)
    assert caught.value.reason == reason
    assert isinstance(caught.value, ObjectError)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "written", "integer"),
    [
        pytest.param(2, "2", 2, id="int"),
        pytest.param(0.5, "500m", None, id="float"),
        pytest.param(1e5, "100k", 100000, id="whole-float"),
        pytest.param(1e-7, "100e-9", None, id="small-float"),
        pytest.param(" 1Gi\n", "1Gi", 2**30, id="spaces"),
    ],
)
def test_fields_of_objects(raw: str | float, written: str, integer: int | None) -> None:
    quantity = parse_quantity(raw)
    assert (str(quantity), quantity.as_integer()) == (written, integer)


def test_parsing_is_cached() -> None:
    assert parse_quantity("123Mi") is parse_quantity("123Mi")


@pytest.mark.parametrize(
    ("a", "b", "total", "difference"),
    [
        ("1", "500m", "1500m", "500m"),
        ("1Gi", "1", "1073741825", "1073741823"),
        ("1", "1Gi", "1073741825", "-1073741823"),
        ("0", "1Gi", "1Gi", "-1Gi"),
        ("1.5Gi", "512Mi", "2Gi", "1Gi"),
        ("1e3", "1k", "2e3", "0"),
        ("9223372036854775807", "1", "9223372036854775808", "9223372036854775806"),
        ("9E", "9E", "18E", "0"),
        ("1Gi", "1n", "1073741824000000001n", "1073741823999999999n"),
    ],
)
def test_arithmetic(a: str, b: str, total: str, difference: str) -> None:
    left, right = Quantity.parse(a), Quantity.parse(b)
    assert str(left.add(right)) == total
    assert left + right == left.add(right)
    assert str(left.sub(right)) == difference


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("1", "1000m", 0),
        ("1Gi", "1G", 1),
        ("-1", "1", -1),
        ("1.5Gi", "1536Mi", 0),
        ("1e2000000000", "9223372036854775807", 1),
        ("-1e2000000000", "0", -1),
        ("1n", "0", 1),
    ],
)
def test_comparison(a: str, b: str, expected: int) -> None:
    left, right = Quantity.parse(a), Quantity.parse(b)
    assert left.compare(right) == expected
    assert right.compare(left) == -expected
    assert (left == right) is (expected == 0)
    assert (left < right) is (expected < 0)
    assert len({left, right}) == (1 if expected == 0 else 2)


def test_equality_is_of_values_only_among_quantities() -> None:
    assert Quantity.parse("0Gi") == Quantity() == Quantity.parse("0.000")
    assert Quantity.of(1) != 1


def test_larger_widens_the_winner_over_a_wide_quantity() -> None:
    wide, huge = Quantity.parse("1.5Gi"), Quantity.parse("10E")
    assert wide.larger(huge) == huge
    assert (huge.value(), wide.larger(huge).value()) == (0, 10**19 - 2**64)
    assert Quantity.of(1).larger(huge) is huge
    assert huge.larger(wide) is huge


@pytest.mark.parametrize(
    ("text", "sign", "negated"), [("1Gi", 1, "-1Gi"), ("-500m", -1, "500m"), ("0", 0, "0"), ("-1.5Gi", -1, "1536Mi")]
)
def test_sign(text: str, sign: int, negated: str) -> None:
    quantity = Quantity.parse(text)
    assert (quantity.sign(), quantity.is_zero()) == (sign, sign == 0)
    assert str(quantity.neg()) == negated


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.5Gi", 1610612736.0),
        ("1n", 1e-9),
        ("100m", 0.1),
        ("1e20", 1e20),
        ("1e400", math.inf),
        ("-1e400", -math.inf),
        ("9" * 400, math.inf),
        ("-" + "9" * 400, -math.inf),
        ("0." + "0" * 400, 0.0),
    ],
)
def test_floats(text: str, expected: float) -> None:
    assert Quantity.parse(text).as_float() == expected


def test_floats_are_rounded_twice() -> None:
    assert Quantity.parse("5u").as_float() == 4.9999999999999996e-06 != 5e-06


def test_quantities_from_numbers() -> None:
    assert str(Quantity.of(2048, QuantityFormat.BINARY_SI)) == "2Ki"
    assert str(Quantity.of(1000, QuantityFormat.BINARY_SI)) == "1k"
    assert str(Quantity.of_milli(100)) == "100m"


def test_a_sum_with_too_many_digits_is_refused() -> None:
    with pytest.raises(QuantityError):
        Quantity.parse("1e2000000000").add(Quantity.parse("1"))


def test_inequality_ignores_the_form() -> None:
    assert parse_quantity("8Gi") == parse_quantity("8192Mi")
    assert operator.ne(parse_quantity("8Gi"), parse_quantity("8192Mi")) is False
    assert operator.ne(parse_quantity("8Gi"), parse_quantity("8G")) is True
