"""Devices in expressions, caching of expressions, and cost limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bayplan import cel
from bayplan.cel import CompileError, DeviceEnvironment, DeviceView, EvaluationError, Semver
from bayplan.cel.parser.parser import parse
from bayplan.cel.parser.source import ExpressionSource
from bayplan.codec.quantity import Quantity
from bayplan.errors import ExpressionError

Evaluate = Callable[[str], "bool | str"]


SHAPES = {
    "fields": "device.driver == 'gpu.example.com' && !device.allowMultipleAllocations",
    "own-domain": "attr.model == 'h100' && device.attributes['gpu.example.com']['index'] == 2",
    "other-domain": "device.attributes['fabric.example.com'].plane == 'p1'",
    "unknown-is-empty": "!has(device.attributes['nosuch'].x) && size(device.attributes['nosuch']) == 0",
    "unknown-is-not-in": "!('nosuch' in device.attributes) && 'gpu.example.com' in device.capacity",
    "unknown-is-present": "has(device.attributes.nosuch) && device.attributes[?'nosuch'].hasValue()",
    "iterated": "device.attributes.size() == 2 && device.attributes.exists(d, d == 'fabric.example.com')",
    "whole": "dyn(device).driver == device.driver && device == device",
}


@pytest.mark.parametrize("expression", SHAPES.values(), ids=SHAPES)
def test_a_device_consists_of_nested_maps(evaluate: Evaluate, expression: str) -> None:
    assert evaluate(expression) is True


def test_a_name_with_a_slash_belongs_to_its_domain() -> None:
    view = DeviceView(driver="d", attributes={"d/x": 1, "y": 2, "e/x": [1, 2]}, capacity={})
    assert view.attribute_domains == {"d": {"x": 1, "y": 2}, "e": {"x": (1, 2)}}


def test_lists_need_their_feature(environment: DeviceEnvironment) -> None:
    view = DeviceView(driver="d", attributes={"x": ["a", "b"]}, capacity={})
    text = "device.attributes['d'].x.exists(v, v == 'b')"
    with pytest.raises(CompileError, match="cannot be range of a comprehension"):
        environment.compile(text)
    lists = DeviceEnvironment(parse_quantity=Quantity.parse, list_attributes=True)
    assert lists.compile(text).evaluate(view)
    assert lists.compile("device.attributes['d'].x.includes('a')").evaluate(view)


def test_a_text_is_compiled_once(environment: DeviceEnvironment) -> None:
    assert environment.compile("1 == 1") is environment.compile("1 == 1")


def test_compile_and_evaluation_errors(environment: DeviceEnvironment, gpu: DeviceView) -> None:
    for _ in range(2):
        with pytest.raises(ExpressionError):
            environment.compile("nope")
    with pytest.raises(ExpressionError):
        environment.compile("1 / 0 == 1").evaluate(gpu)


@pytest.mark.parametrize(
    ("expression", "cost"),
    [
        pytest.param("device.driver == 'x'", 3, id="field-and-comparison"),
        pytest.param("has(device.attributes['gpu.example.com'].model)", 3, id="has-is-a-step-cheaper"),
        pytest.param("attr.model in ['a', 'b']", 4, id="constant-set-is-free"),
        pytest.param("[attr.model] == ['a']", 15, id="list"),
        pytest.param("attr.model.matches('^[ah]100$')", 7, id="regex"),
        pytest.param("[1, 2, 3].all(x, x > 0)", 16, id="loop"),
        pytest.param("attr.nope == 'x' || true", 5, id="failed-steps-cost-too"),
    ],
)
def test_costs(environment: DeviceEnvironment, gpu: DeviceView, expression: str, cost: int) -> None:
    text = expression.replace("attr.", "device.attributes['gpu.example.com'].")
    assert environment.compile(text).cost(gpu) == cost


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param("lists.range(400000).all(x, x >= 0)", id="long-loop"),
        pytest.param("lists.range(700).all(x, lists.range(700).all(y, x + y >= 0)) || true", id="not-swallowed"),
        pytest.param("lists.range(2000000).size() > 0", id="big-result"),
    ],
)
def test_too_expensive_expressions(environment: DeviceEnvironment, gpu: DeviceView, expression: str) -> None:
    with pytest.raises(EvaluationError, match="operation cancelled: actual cost limit exceeded"):
        environment.compile(expression).evaluate(gpu)


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param("(" * 2000 + "true" + ")" * 2000, id="parentheses"),
        pytest.param(" + ".join(["1"] * 3000) + " == 3000", id="sums"),
        pytest.param("{}" + ".a" * 3000 + " == 1", id="selects"),
        pytest.param("!" + "[" * 900 + "]" * 900, id="lists"),
    ],
)
def test_depth_is_limited(environment: DeviceEnvironment, expression: str) -> None:
    with pytest.raises(CompileError, match=r"recursion (limit|depth) exceeded"):
        environment.compile(expression)


def test_a_long_expression_is_not_deep(environment: DeviceEnvironment, gpu: DeviceView) -> None:
    assert environment.compile(" && ".join(["true"] * 2000)).evaluate(gpu)
    assert environment.compile(" + ".join(["1"] * 200) + " == 200").evaluate(gpu)


SUM, RELATION = " + ".join(["1"] * 200), " == ".join(["1"] * 200)


@pytest.mark.parametrize(
    ("expression", "is_too_deep"),
    [
        pytest.param(" + ".join(["1"] * 300), True, id="sum"),
        pytest.param(" * ".join(["1"] * 300), True, id="product"),
        pytest.param(" == ".join(["1"] * 300), True, id="relation"),
        pytest.param("1" + ".a" * 300, True, id="selects"),
        pytest.param(f"{SUM} == 200 && {SUM} == 200 || {SUM} == 200", False, id="sums-side-by-side"),
        pytest.param(f"{SUM} < {SUM}", False, id="sums-of-a-relation"),
        pytest.param(f"{RELATION} && {RELATION}", False, id="relations-side-by-side"),
        pytest.param(f"[{SUM}, {SUM}]", False, id="sums-of-a-list"),
    ],
)
def test_the_depth_of_a_chain_is_limited(expression: str, is_too_deep: bool) -> None:
    if is_too_deep:
        with pytest.raises(CompileError, match="expression recursion limit exceeded: 250"):
            parse(ExpressionSource(expression))
    else:
        assert parse(ExpressionSource(expression))


def test_public_names() -> None:
    assert cel.__all__ == sorted(cel.__all__, key=lambda n: (not n.isupper(), n))
    assert all(hasattr(cel, name) for name in cel.__all__)


def test_versions_print_as_they_were_written() -> None:
    for text in ("1.2.3", "1.2.3-rc.1", "1.2.3-rc.1+build.5"):
        assert str(Semver.parse(text)) == text
