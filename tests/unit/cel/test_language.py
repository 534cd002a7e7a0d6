"""Operators, numbers, logic, macros and optionals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bayplan.cel import CompileError
from bayplan.cel.parser.source import ExpressionSource

Evaluate = Callable[[str], "bool | str"]

HOLDS = [
    # arithmetic
    "1 + 2 * 3 == 7 && (1 + 2) * 3 == 9",
    "-7 / 2 == -3 && -7 % 3 == -1 && 7 % -3 == 1",
    "7u / 2u == 3u && 3.5 * 2.0 == 7.0",
    "1.0 / 0.0 > 1e308 && 0.0 / 0.0 != 0.0 / 0.0",
    "--1 == 1 && !!true",
    # comparison across types
    "1 < 2.5 && 1u < 2 && 2.5 > 1u",
    "dyn(1) == 1u && dyn(1) == 1.0 && dyn(1) != '1'",
    "attr.index == 2.0 && attr.index == 2u && attr.index != 'h100'",
    "9007199254740993 > 9007199254740992.0 == false",
    # logic swallows errors
    "1 / 0 == 1 || true",
    "!(1 / 0 == 1 && false)",
    "attr.missing || true",
    # collections
    "[1, 2] + [3] == [1, 2, 3] && {'a': 1}.a == 1 && {1: 2}[dyn(1.0)] == 2",
    "2 in [1, 2] && 'a' in {'a': 1} && dyn(1.0) in [1] && !(dyn(true) in [1])",
    "!(1 / 0 in [])",
    # macros
    "[1, 2, 3].filter(x, x > 1).map(x, x * 2) == [4, 6] && [1, 2, 3].map(x, x > 1, -x) == [-2, -3]",
    "[1, 0].exists(x, 1 / x == 1) && ![0, 2].all(x, 1 / x == 1)",
    "[1, 2, 3].exists_one(x, x > 2) && {'a': 1}.all(k, v, v == 1)",
    "[5].transformList(i, v, v + i) == [5] && {'a': 1}.transformMap(k, v, v + 1) == {'a': 2}",
    "{'a': 1}.transformMapEntry(k, v, {v: k}) == {1: 'a'}",
    "['bb', 'a'].sortBy(s, s.size()) == ['a', 'bb']",
    "cel.bind(x, 2, x * x) == 4 && cel.bind(x, 1 / 0, true)",
    # optionals
    "optional.of(1).value() == 1 && !optional.none().hasValue() && optional.none().orValue(3) == 3",
    "{'a': {'b': 1}}.?a.b.value() == 1 && !{}.?a.b.hasValue() && [1][?5].orValue(9) == 9",
    "[?optional.none(), 1] == [1] && {?'a': optional.of(1)} == {'a': 1}",
    "optional.of(2).optMap(x, x + 1) == optional.of(3)",
    "optional.of(2).optFlatMap(x, optional.none()) == optional.none()",
    "attr.?link.orValue('up') == 'up'",
    # types
    "type(1) == int && type(type(1)) == type && type(timestamp(0)) == google.protobuf.Timestamp",
    "type(attr.firmware) == type(semver('1.0.0'))",
]


@pytest.mark.parametrize("expression", HOLDS)
def test_true_expressions(evaluate: Evaluate, expression: str) -> None:
    assert evaluate(expression) is True


FAILS = {
    "9223372036854775807 + 1 == 0": "integer overflow",
    "-9223372036854775808 / -1 == 0": "integer overflow",
    "1u - 2u == 0u": "unsigned integer overflow",
    "1 / 0 == 0": "division by zero",
    "1 % 0 == 0": "modulus by zero",
    "attr.missing == 1": "no such key: missing",
    "[1][dyn(7)] == 1": "index out of bounds: 7",
    "[1][dyn('a')] == 1": "unsupported index type 'string' in list",
    "attr.model < 3": "no such overload",
    "attr.healthy + 1 == 2": "no such overload: _+_",
    "attr.index + 'x' == ''": "no such overload",
    "attr.index.charAt(0) == ''": "no such overload: charAt(int, int)",
    "attr.firmware == 'x'": "no such overload",
    "dyn(1) < double('NaN')": "NaN values cannot be ordered",
    "optional.none().value() == 1": "optional.none() dereference",
    "dyn(1).exists(x, true)": "got 'types.Int', expected iterable type",
    "attr.firmware in ['1.10.0']": "internal error: runtime error: hash of unhashable type cel.Semver",
    "attr.index": (
        "CEL result of type int could not be converted to bool: unsupported type conversion from 'int' to bool"
    ),
    # An optional of Kubernetes' own types does not survive a variable, as in cel-go.
    "cel.bind(v, attr.?firmware, v.value().major() == 1)": (
        "unsupported conversion to ref.Val: (semver.Version)1.10.0"
    ),
    "quantity('2') == quantity('1').add(1)": "no such overload",
}


@pytest.mark.parametrize(("expression", "text"), FAILS.items(), ids=FAILS)
def test_evaluation_errors_are_upstreams(evaluate: Evaluate, expression: str, text: str) -> None:
    assert evaluate(expression) == f"failed: {text}"


REFUSED = {
    "device.nosuch == 1": "compilation failed: ERROR: <input>:1:7: undefined field 'nosuch'",
    "foo == 1": "compilation failed: ERROR: <input>:1:1: undeclared reference to 'foo' (in container '')",
    "1.0 == 1": (
        "compilation failed: ERROR: <input>:1:5: found no matching overload for '_==_' applied to '(double, int)'"
    ),
    "as == 1": "compilation failed: ERROR: <input>:1:1: reserved identifier: as",
    "'a'.matches('(')": "compilation failed: ERROR: <input>:1:13: invalid matches argument",
    "duration('1x') > duration('1s')": "compilation failed: ERROR: <input>:1:10: invalid duration argument",
    "[1, 'a'].size() == 2": "compilation failed: ERROR: <input>:1:5: expected type 'int' but found 'string'",
    "int('abc') == 1": "program instantiation failed: type conversion error from 'string' to 'int'",
    "'a'.find('(') == ''": "program instantiation failed: error parsing regexp: missing closing ): `(`",
    "dyn(true)": "must evaluate to bool or the unknown type, not dyn",
    "1": "must evaluate to bool or the unknown type, not int",
    "[1].all(1, true)": "compilation failed: ERROR: <input>:1:9: argument must be a simple name",
    "has(device)": "compilation failed: ERROR: <input>:1:5: invalid argument to has() macro",
    "attr.model.exists(c, true)": (
        "compilation failed: ERROR: <input>:1:37: expression of type 'any' cannot be range of a comprehension "
        "(must be list, map, or dynamic)"
    ),
    "Foo{a: 1} == 1": "compilation failed: ERROR: <input>:1:4: undeclared reference to 'Foo' (in container '')",
    "9223372036854775808 == 0": "compilation failed: ERROR: <input>:1:1: invalid int literal",
    "'%d'.format(['a']) == ''": (
        "compilation failed: ERROR: <input>:1:14: error during formatting: "
        "decimal clause can only be used on integers, was given string"
    ),
}


@pytest.mark.parametrize(("expression", "text"), REFUSED.items(), ids=REFUSED)
def test_compile_errors_are_upstreams(evaluate: Evaluate, expression: str, text: str) -> None:
    assert evaluate(expression) == f"refused: {text}"


def test_all_errors_have_their_position() -> None:
    source = ExpressionSource("日本 + x\n  y")
    source.error_at(9, "second")
    source.error_at(5, "first")
    with pytest.raises(CompileError) as caught:
        source.check()
    assert str(caught.value) == (
        "compilation failed: ERROR: <input>:1:6: first\n | 日本 + x\n | \uff0e\uff0e...^\n"
        "ERROR: <input>:2:3: second\n |   y\n | ..^"
    )
