from __future__ import annotations

import pytest

from bayplan.objects.meta import LabelSelector
from bayplan.objects.selectors.label_selectors import EVERYTHING, SelectorError, compile_label_selector
from bayplan.objects.selectors.selector_text import FieldTerm, parse_field_selector, parse_selector

NO_NUMBER = "\"x\": for 'Gt', 'Lt' operators, the value must be an integer"


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("a=1", {"a": "1"}, True),
        ("a==1", {"a": "1"}, True),
        ("a = 1 , b=2", {"a": "1", "b": "2"}, True),
        ("a=1,b=2", {"a": "1"}, False),
        ("a!=1", {"a": "1"}, False),
        ("a!=1", {}, True),
        ("a", {"a": ""}, True),
        ("a", {}, False),
        ("!a", {}, True),
        ("! a", {"a": "1"}, False),
        ("a in (1,2)", {"a": "2"}, True),
        ("a notin (1,2)", {"a": "2"}, False),
        ("a notin (1,2)", {}, True),
        ("a in ()", {"a": ""}, True),
        ("a in (,1)", {"a": ""}, True),
        ("a in (1,)", {"a": ""}, True),
        ("a in (1,,2)", {"a": ""}, True),
        ("a in (1,2)", {"a": ""}, False),
        ("a=", {"a": ""}, True),
        ("a=,b", {"a": "", "b": ""}, True),
        ("in in (in,notin)", {"in": "notin"}, True),
        ("a>5", {"a": "6"}, True),
        ("a<5", {"a": "6"}, False),
        ("x.io/a=1", {"x.io/a": "1"}, True),
        ("", {}, True),
        (" ", {}, True),
    ],
)
def test_label_selectors(text: str, labels: dict[str, str], expected: bool) -> None:
    assert parse_selector(text).matches(labels) is expected


def test_the_same_value_as_in_a_manifest() -> None:
    assert parse_selector("b=2,a in (1)") is compile_label_selector(LabelSelector(match_labels={"a": "1", "b": "2"}))
    assert parse_selector("") is EVERYTHING


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a=1,", "found '', expected: identifier after ','"),
        (",a", "found ',', expected: !, identifier, or 'end of string'"),
        ("a=1 b", "found 'b', expected: ',' or 'end of string'"),
        ("!a=1", "found '=', expected: ',' or 'end of string'"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a in", "unable to parse requirement: found '' expected: '('"),
        ("a in 1", "unable to parse requirement: found '1' expected: '('"),
        ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
        ("a in (1", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("a in (,", "unable to parse requirement: found '', expected: ',', or identifier"),
        ("a=(", "unable to parse requirement: found '(', expected: identifier"),
        ("a>x", f"unable to parse requirement: values[0]: Invalid value: {NO_NUMBER}"),
    ],
)
def test_malformed_label_selectors(text: str, reason: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_selector(text)
    assert caught.value.reason == reason


def test_keys_and_values_are_validated() -> None:
    with pytest.raises(SelectorError, match=r'unable to parse requirement: <nil>: Invalid value: "-a": name part must'):
        parse_selector("-a=1")
    with pytest.raises(
        SelectorError, match=r'unable to parse requirement: values\[0\]\[a\]: Invalid value: "-1": a va'
    ):
        parse_selector("a=-1")


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ("", {}, True),
        ("spec.nodeName=n1", {"spec.nodeName": "n1"}, True),
        ("spec.nodeName==n1", {"spec.nodeName": "n2"}, False),
        ("spec.nodeName=", {}, True),
        ("status.phase!=Failed,spec.nodeName=n1", {"status.phase": "Running", "spec.nodeName": "n1"}, True),
        ("status.phase!=Failed", {"status.phase": "Failed"}, False),
        ("status.phase!=Failed", {}, True),
        ("a=x,,b=y", {"a": "x", "b": "y"}, True),
        (r"a=x\,y", {"a": "x,y"}, True),
        (r"a=x\=y", {"a": "x=y"}, True),
        (r"a=x\\", {"a": "x\\"}, True),
        ("!=", {}, True),
    ],
)
def test_field_selectors(text: str, fields: dict[str, str], expected: bool) -> None:
    assert parse_field_selector(text).matches(fields) is expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a=1,nonsense", "invalid selector: 'a=1,nonsense'; can't understand 'nonsense'"),
        ("a=b=c", "invalid field selector: unescaped character in value: 61"),
        (r"a=\x", r"invalid field selector: invalid escape sequence: \x"),
        ("a=\\", "invalid field selector: invalid escape sequence: \\"),
    ],
)
def test_malformed_field_selectors(text: str, reason: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_field_selector(text)
    assert caught.value.reason == reason


def test_the_required_value_of_a_field() -> None:
    selector = parse_field_selector("spec.nodeName=n1,status.phase!=Failed")
    assert selector.terms == (FieldTerm("spec.nodeName", "n1", False), FieldTerm("status.phase", "Failed", True))
    assert selector.exact("spec.nodeName") == "n1"
    assert selector.exact("status.phase") is None
