from __future__ import annotations

from typing import Any

import pytest

from bayplan.codec.json_text import JsonNumber, JsonObject, JsonSyntaxError, parse, to_plain


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (' {"a": [1, -2.5, 1e3, "x", true, false, null]} ', {"a": [1, -2.5, 1000.0, "x", True, False, None]}),
        ("[]", []),
        ("{}", {}),
        ('"\\u00e9\\n\\/"', "é\n/"),
        ('"\\ud83d\\ude00"', "😀"),
        ('"\\ud800"', "\ufffd"),
        ('{"a": 1, "a": 2}', {"a": 2}),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert to_plain(parse(text)) == value


def test_the_tree_has_positions_and_repeated_keys() -> None:
    text = '{"b": 1.50, "a": { }, "b": null}'
    tree = parse(text)
    assert isinstance(tree, JsonObject)
    assert [(member.key, member.value) for member in tree.members] == [
        ("b", JsonNumber("1.50")),
        ("a", JsonObject(())),
        ("b", None),
    ]
    assert [text[member.start : member.end] for member in tree.members] == ["1.50", "{ }", "null"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unexpected end of JSON input"),
        ("{", "unexpected end of JSON input"),
        ('{"a"', "unexpected end of JSON input"),
        ('{"a":', "unexpected end of JSON input"),
        ('{"a":1', "unexpected end of JSON input"),
        ('["a', "unexpected end of JSON input"),
        ("{a", "invalid character 'a' looking for beginning of object key string"),
        ('{"a":1,}', "invalid character '}' looking for beginning of object key string"),
        ('{"a" 1}', "invalid character '1' after object key"),
        ('{"a":1 "b"}', "invalid character '\"' after object key:value pair"),
        ("[1,]", "invalid character ']' looking for beginning of value"),
        ("[1 2]", "invalid character '2' after array element"),
        ("1 2", "invalid character '2' after top-level value"),
        ("[+1]", "invalid character '+' looking for beginning of value"),
        ("[']", "invalid character '\\'' looking for beginning of value"),
        ("[é]", "invalid character 'Ã' looking for beginning of value"),
        ("[tru]", "invalid character ']' in literal true (expecting 'e')"),
        ("[fals", "invalid character ' ' in literal false (expecting 'e')"),
        ("[01]", "invalid character '1' after array element"),
        ("[1.]", "invalid character ']' after decimal point in numeric literal"),
        ("[1e]", "invalid character ']' in exponent of numeric literal"),
        ("[1e+]", "invalid character ']' in exponent of numeric literal"),
        ("[-", "invalid character ' ' in numeric literal"),
        ('["\n"]', "invalid character '\\n' in string literal"),
        ('["\\q"]', "invalid character 'q' in string escape code"),
        ('["\\u12g4"]', "invalid character 'g' in \\u hexadecimal character escape"),
        ("[" * 2000, "exceeded max depth"),
    ],
)
def test_errors_are_go_s(text: str, message: str) -> None:
    with pytest.raises(JsonSyntaxError) as caught:
        parse(text)
    assert str(caught.value) == message
