from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from bayplan.batch.config.arguments import Arguments


@dataclass(frozen=True)
class Weights:
    enable: bool = False
    weight: int = 1
    resource_weight: dict[str, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    inner: Weights | None = None
    anything: Any = None


GETTERS = [
    ("get_int", 5, 5, True),
    ("get_int", -1, -1, True),
    ("get_int", 1.0, 7, False),
    ("get_int", "1", 7, False),
    ("get_int", True, 7, False),
    ("get_int", 2**63, 7, False),
    ("get_float", 1.5, 1.5, True),
    ("get_float", 2, 2.0, True),
    ("get_float", "2", 7, False),
    ("get_float", False, 7, False),
    ("get_float", 2**63, 7, False),
    ("get_bool", True, True, True),
    ("get_bool", "t", True, True),
    ("get_bool", "TRUE", True, True),
    ("get_bool", "1", True, True),
    ("get_bool", "False", False, True),
    ("get_bool", "yes", 7, False),
    ("get_bool", "tRUE", 7, False),
    ("get_bool", 1, 7, False),
    ("get_str", "x", "x", True),
    ("get_str", "", "", True),
    ("get_str", 5, 7, False),
]


@pytest.mark.parametrize(("getter", "value", "expected", "fits"), GETTERS)
def test_getters(getter: str, value: Any, expected: Any, fits: bool) -> None:
    arguments = Arguments({"key": value})
    found = getattr(arguments, getter)("key", 7)
    assert (type(found), found) == (type(expected), expected)
    assert (arguments.warnings == []) is fits


def test_missing_and_null_are_silent() -> None:
    arguments = Arguments({"key": None})
    assert [arguments.get_int(key, 3) for key in ("key", "other")] == [3, 3]
    assert [arguments.get_str(key, "x") for key in ("key", "other")] == ["x", "x"]
    assert arguments.warnings == []


def test_a_warning_names_owner_key_and_value_once() -> None:
    arguments = Arguments({"binpack.weight": [1, "two", 1e6, None, {"a": True}]}, owner="binpack")
    assert arguments.get_int("binpack.weight", 4) == arguments.get_int("binpack.weight", 4) == 4
    assert arguments.warnings == [
        "binpack: Could not parse argument: [1 two 1e+06 <nil> map[a:true]] for key binpack.weight to int; 4 is used"
    ]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        pytest.param(5, int, 5, id="int"),
        pytest.param(1.9, int, 1, id="floats-are-cut"),
        pytest.param(-1.9, int, -1, id="towards-zero"),
        pytest.param(float("inf"), int, -(2**63), id="infinity"),
        pytest.param(2**64 - 1, int, -1, id="unsigned"),
        pytest.param(5, float, 5.0, id="float"),
        pytest.param(None, int, 0, id="null-is-zero"),
        pytest.param(None, list[str], [], id="null-is-empty"),
        pytest.param(["a", None], list[str], ["a", ""], id="list"),
        pytest.param({"a": 1, "b": 2.5}, dict[str, int], {"a": 1, "b": 2}, id="dict"),
        pytest.param({}, Weights, Weights(), id="defaults"),
        pytest.param(None, Weights, Weights(), id="null-is-all-defaults"),
        pytest.param({"Enable": True, "WEIGHT": 2}, Weights, Weights(enable=True, weight=2), id="any-case"),
        pytest.param({"resourceWeight": {"a": 1}}, Weights, Weights(resource_weight={"a": 1}), id="camel"),
        pytest.param({"resource_weight": {"a": 1}, 5: 6}, Weights, Weights(), id="unknown-keys"),
        pytest.param({"weight": None}, Weights, Weights(), id="null-keeps-the-default"),
        pytest.param(
            {"inner": {"weight": 3}, "anything": [1]},
            Weights,
            Weights(inner=Weights(weight=3), anything=[1]),
            id="nested",
        ),
        pytest.param({"p": {"weight": 3}}, dict[str, Weights], {"p": Weights(weight=3)}, id="dict-of-structs"),
        pytest.param([{"weight": 3}], list[Weights], [Weights(weight=3)], id="list-of-structs"),
    ],
)
def test_typed_values(value: Any, kind: Any, expected: Any) -> None:
    arguments = Arguments({"key": value})
    assert arguments.get("key", kind) == expected
    assert arguments.warnings == []


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        pytest.param("10", int, "'' expected type 'int', got unconvertible type 'string', value: '10'", id="text"),
        pytest.param(True, int, "got unconvertible type 'bool', value: 'true'", id="truth"),
        pytest.param(1, bool, "expected type 'bool'", id="number-for-truth"),
        pytest.param(1, str, "expected type 'string', got unconvertible type 'int'", id="number-for-text"),
        pytest.param("a", list[str], "source data must be an array or slice, got string", id="no-list"),
        pytest.param(["a", 1], list[str], "'[1]' expected type 'string'", id="item"),
        pytest.param([], dict[str, int], "expected a map, got 'slice'", id="no-dict"),
        pytest.param({1: 1}, dict[str, int], "'[1]' expected type 'string', got unconvertible type 'int'", id="key"),
        pytest.param({"a": "x"}, dict[str, int], "'[a]' expected type 'int'", id="value"),
        pytest.param(5, Weights, "expected a map, got 'int'", id="no-struct"),
        pytest.param({"weight": "x"}, Weights, "'weight' expected type 'int'", id="field"),
    ],
)
def test_a_value_of_the_wrong_type_counts_as_missing(value: Any, kind: Any, words: str) -> None:
    arguments = Arguments({"key": value}, owner="fit")
    assert arguments.get("key", kind) is None
    (warning,) = arguments.warnings
    assert warning.startswith("fit: Could not parse argument for key key to type ")
    assert words in warning


def test_a_missing_key_is_none() -> None:
    assert Arguments().get("key", int) is None


def test_an_unsupported_type_is_an_error_of_the_plugin() -> None:
    with pytest.raises(TypeError, match=r"name a plain type, list\[int\]"):
        Arguments({"key": 1}).get("key", complex)
    with pytest.raises(TypeError, match=r"no argument can be read as <class 'list'>; name a plain type, list\[int\]"):
        Arguments({"key": [1]}).get("key", list)


def test_arguments_are_iterable() -> None:
    arguments = Arguments({"a": 1, "b": 2})
    assert (list(arguments), len(arguments), arguments["a"], "b" in arguments) == (["a", "b"], 2, 1, True)
    assert repr(Arguments({"a": 1}, owner="x")) == "Arguments({'a': 1}, owner='x')"
