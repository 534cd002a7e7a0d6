from __future__ import annotations

import pytest

from bayplan.errors import ObjectError
from bayplan.objects.meta import LabelSelector, LabelSelectorRequirement
from bayplan.objects.selectors.label_selectors import (
    EVERYTHING,
    NOTHING,
    LabelMatcher,
    Requirement,
    SelectorError,
    compile_label_selector,
    equals,
    matcher_of,
    parse_int64,
    selector_from_map,
)


def expression(key: str, operator: str, *values: str) -> LabelSelectorRequirement:
    return LabelSelectorRequirement(key=key, operator=operator, values=values)


def compiled(*expressions: LabelSelectorRequirement, **labels: str) -> LabelMatcher:
    return compile_label_selector(LabelSelector(match_labels=labels, match_expressions=expressions))


@pytest.mark.parametrize(
    ("matcher", "labels", "expected"),
    [
        pytest.param(compiled(app="web"), {"app": "web", "x": "y"}, True, id="label"),
        pytest.param(compiled(app="web"), {"app": "db"}, False, id="other-value"),
        pytest.param(compiled(app="web"), {}, False, id="no-label"),
        pytest.param(compiled(app=""), {"app": ""}, True, id="empty-value"),
        pytest.param(compiled(app=""), {}, False, id="empty-value-is-not-absence"),
        pytest.param(compiled(expression("a", "In", "1", "2")), {"a": "2"}, True, id="in"),
        pytest.param(compiled(expression("a", "In", "1", "2")), {"a": "3"}, False, id="not-in-the-list"),
        pytest.param(compiled(expression("a", "NotIn", "1")), {"a": "2"}, True, id="notin"),
        pytest.param(compiled(expression("a", "NotIn", "1")), {"a": "1"}, False, id="notin-listed"),
        pytest.param(compiled(expression("a", "NotIn", "1")), {}, True, id="notin-absent"),
        pytest.param(compiled(expression("a", "Exists")), {"a": ""}, True, id="exists"),
        pytest.param(compiled(expression("a", "Exists")), {}, False, id="exists-absent"),
        pytest.param(compiled(expression("a", "DoesNotExist")), {}, True, id="doesnotexist"),
        pytest.param(compiled(expression("a", "DoesNotExist")), {"a": ""}, False, id="doesnotexist-present"),
        pytest.param(compiled(expression("b", "Exists"), a="1"), {"a": "1"}, False, id="all-must-hold"),
        pytest.param(compiled(expression("a", "NotIn", "1"), a="1"), {"a": "1"}, False, id="contradiction"),
    ],
)
def test_matching(matcher: LabelMatcher, labels: dict[str, str], expected: bool) -> None:
    assert matcher.matches(labels) is expected


def test_no_selector_and_an_empty_one() -> None:
    assert compile_label_selector(None) is NOTHING
    assert compile_label_selector(LabelSelector()) is EVERYTHING
    assert not NOTHING.matches({})
    assert not NOTHING.everything
    assert EVERYTHING.matches({})
    assert EVERYTHING.everything
    assert EVERYTHING != NOTHING


def test_equivalent_selectors_are_one_object() -> None:
    spelled = [
        compiled(a="1", b="2"),
        compiled(b="2", a="1"),
        compiled(expression("b", "In", "2"), expression("a", "In", "1", "1")),
        selector_from_map({"b": "2", "a": "1"}),
    ]
    assert len(set(spelled)) == 1
    assert all(matcher is spelled[0] for matcher in spelled)
    assert compiled(a="1") != compiled(a="2")
    assert compiled(expression("a", "In", "1", "2")) == compiled(expression("a", "In", "2", "1"))


def test_requirements_are_public_for_columns() -> None:
    matcher = compiled(expression("z", "NotIn", "x", "y"), a="1")
    assert matcher.requirements == (
        Requirement("a", "In", frozenset({"1"})),
        Requirement("z", "NotIn", frozenset({"x", "y"})),
    )


@pytest.mark.parametrize(
    ("value", "gt", "lt"),
    [("6", True, False), ("4", False, True), ("5", False, False), ("x", False, False), (None, False, False)],
)
def test_numbers(value: str | None, gt: bool, lt: bool) -> None:
    assert Requirement("n", "Gt", threshold=5).accepts(value) is gt
    assert Requirement("n", "Lt", threshold=5).accepts(value) is lt


def test_a_map_is_not_validated() -> None:
    assert selector_from_map({"not a key": "not a value"}).matches({"not a key": "not a value"})
    assert selector_from_map({}) is EVERYTHING


def test_narrowing() -> None:
    more = [equals("a", "1"), equals("b", "2")]
    assert compiled(a="1").with_requirements(more) == matcher_of(more)
    assert NOTHING.with_requirements(more) is NOTHING


VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


@pytest.mark.parametrize(
    ("expressions", "reason"),
    [
        pytest.param(
            [expression("a", "Near", "1")], '"Near" is not a valid label selector operator', id="unknown-operator"
        ),
        pytest.param(
            [expression("a", "Gt", "1")], '"Gt" is not a valid label selector operator', id="operator-of-nodes"
        ),
        pytest.param(
            [expression("a", "In")],
            "values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty",
            id="in-without-values",
        ),
        pytest.param(
            [expression("a", "Exists", "1")],
            'values: Invalid value: ["1"]: values set must be empty for exists and does not exist',
            id="exists-with-values",
        ),
        pytest.param(
            [expression("a", "NotIn", "ok", "-1")],
            f'values[1][a]: Invalid value: "-1": {VALUE_RULE}',
            id="not-a-label-value",
        ),
        pytest.param(
            [expression("a", "In", "b c", "b c")],
            f'[values[0][a]: Invalid value: "b c": {VALUE_RULE}, values[1][a]: Invalid value: "b c": {VALUE_RULE}]',
            id="two-complaints",
        ),
    ],
)
def test_malformed(expressions: list[LabelSelectorRequirement], reason: str) -> None:
    with pytest.raises(SelectorError) as caught:
        compiled(*expressions)
    assert caught.value.reason == reason
    assert isinstance(caught.value, ObjectError)


def test_malformed_key() -> None:
    with pytest.raises(SelectorError, match=r'key: Invalid value: "a b": name part must consist of'):
        compile_label_selector(LabelSelector(match_labels={"a b": "1"}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("-7", -7),
        ("+7", 7),
        ("007", 7),
        (str(2**63 - 1), 2**63 - 1),
        (str(2**63), None),
        ("1_000", None),
        ("1.5", None),
        ("", None),
        (" 1", None),
        ("١", None),
        ("9" * 5000, None),
    ],
)
def test_integers(text: str, expected: int | None) -> None:
    assert parse_int64(text) == expected
