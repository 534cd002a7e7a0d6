from __future__ import annotations

from typing import Any

import pytest

from bayplan.codec.go_text import go_syntax, go_value, json_float, json_text, quote


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("a", '"a"'),
        ('"\\', '"\\"\\\\"'),
        ("\a\b\f\n\r\t\v", '"\\a\\b\\f\\n\\r\\t\\v"'),
        ("\x01\x7f", '"\\x01\\x7f"'),
        ("é<>", '"é<>"'),
        ("\u00a0\u2028", '"\\u00a0\\u2028"'),
        ("\U000e0001", '"\\U000e0001"'),
    ],
)
def test_quoted_texts(text: str, quoted: str) -> None:
    assert quote(text) == quoted


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (4.0, "4"),
        (1.5, "1.5"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (0.000001, "0.000001"),
        (1e-7, "1e-7"),
        (-2.5e-10, "-2.5e-10"),
    ],
)
def test_floats(number: float, text: str) -> None:
    assert json_float(number) == text


@pytest.mark.parametrize(("number", "name"), [(float("inf"), "+Inf"), (float("-inf"), "-Inf"), (float("nan"), "NaN")])
def test_json_has_no_infinity(number: float, name: str) -> None:
    with pytest.raises(ValueError, match=f"json: unsupported value: \\{name}" if name[0] == "+" else name):
        json_float(number)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": [None, True, 1], "a": "<\x01>"}, '{"b":[null,true,1],"a":"\\u003c\\u0001\\u003e"}'),
        ([], "[]"),
        (("a",), '["a"]'),
    ],
)
def test_json(value: Any, text: str) -> None:
    assert json_text(value) == text


def test_maps_can_be_sorted() -> None:
    assert json_text({"b": {"d": 1, "c": 2}, "a": 1}, sort_keys=True) == '{"a":1,"b":{"c":2,"d":1}}'


def test_a_value_without_json_form_is_refused() -> None:
    with pytest.raises(TypeError, match="set has no JSON form"):
        json_text(set())


def test_go_syntax() -> None:
    assert go_syntax({"a": [None, 1, True, "x"]}) == (
        'map[interface {}]interface {}{"a":[]interface {}{interface {}(nil), 1, true, "x"}}'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "<nil>"),
        (True, "true"),
        ("a b", "a b"),
        (5, "5"),
        (1.0, "1"),
        (1.5, "1.5"),
        (100000.0, "100000"),
        (1234567.0, "1.234567e+06"),
        (1e20, "1e+20"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (-0.0, "-0"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (float("nan"), "NaN"),
        ([1, "a", None], "[1 a <nil>]"),
        ({"b": 1, "a": [2.5]}, "map[a:[2.5] b:1]"),
    ],
)
def test_values_as_percent_v_prints_them(value: Any, text: str) -> None:
    assert go_value(value) == text
