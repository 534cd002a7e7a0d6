from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bayplan.codec.yaml import is_json, read_document, read_documents, read_manifests, to_json
from bayplan.errors import ObjectError


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("y", True),
        ("N", False),
        ("on", True),
        ("OFF", False),
        ("~", None),
        ("", None),
        ("Null", None),
        ("12:30:45", "12:30:45"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("=", "="),
        ("1e3", 1000),
        ("-.5", -0.5),
        (".5e1", 5),
        ("0o17", 15),
        ("017", 15),
        ("09", 9),
        ("0X1f", 31),
        ("-0b11", -3),
        ("1_000", 1000),
        ("+3", 3),
        ("4.0", 4),
        ("4.5", 4.5),
        ("1e21", 1e21),
        ("18446744073709551615", 18446744073709551615),
        ("123456789012345678901", 123456789012345680000),
        ("1e999", "1e999"),
        (".5_0", 0.5),
        (".5_", ".5_"),
        ("0x", "0x"),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("!!int '5'", 5),
        ("!!float 5", 5),
        ("! 5", "5"),
        ("!!binary aGk=", "hi"),
        ("!custom 5", "5"),
        ("278e142335", "278e142335"),
    ],
)
def test_scalars_are_those_of_kubernetes(scalar: str, value: Any) -> None:
    found = read_document(f"a:\n  {scalar}\n")["a"]
    assert found == value
    assert type(found) is type(value)


def test_the_order_of_keys_is_preserved() -> None:
    assert list(read_document("b: 1\na: 2\nc: 3\n")) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("1: a\ntrue: b\n1.5: c\n", {"1": "a", "true": "b", "1.5": "c"}, id="keys become texts"),
        pytest.param("a: &x {b: 1}\nc: *x\n", {"a": {"b": 1}, "c": {"b": 1}}, id="alias"),
        pytest.param("a: &x 1\nb: &x 2\nc: *x\n", {"a": 1, "b": 2, "c": 2}, id="anchor given anew"),
        pytest.param("a: &x {b: 1}\nc: {<<: *x, d: 2}\n", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}, id="merge"),
    ],
)
def test_mappings(text: str, value: Any) -> None:
    assert read_document(text) == value


def test_a_merge_that_sets_a_key_again_is_refused() -> None:
    with pytest.raises(ObjectError, match='key "b" already set in map'):
        read_document("a: {<<: [{b: 1}, {b: 2, c: 3}]}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: 1\nb: [\n", "yaml: line 2: did not find expected node content", id="open list"),
        pytest.param("a: 1\nb: c: d\n", "yaml: line 2: mapping values are not allowed in this context", id="colon"),
        pytest.param("\ta: 1\n", "yaml: found character that cannot start any token", id="tab on the first line"),
        pytest.param("a: *x\n", "yaml: unknown anchor 'x' referenced", id="unknown anchor"),
        pytest.param("a: &x [*x]\n", "yaml: anchor 'x' value contains itself", id="endless alias"),
        pytest.param("a: !!int abc\n", "yaml: cannot decode !!str `abc` as a !!int", id="tag that does not fit"),
        pytest.param("a: \x01\n", "yaml: control characters are not allowed", id="control character"),
        pytest.param(
            "<<: 5\n", "yaml: map merge requires map or sequence of maps as the value", id="merge of a number"
        ),
        pytest.param("? [a]\n: 1\n", 'yaml: invalid map key: []interface {}{"a"}', id="list as key"),
        pytest.param("~: 1\n", "unsupported map key of type: %!s(<nil>), key: <nil>, value: 1", id="nothing as key"),
        pytest.param("a: .inf\n", "json: unsupported value: +Inf", id="infinity"),
        pytest.param("a: -.inf\n", "json: unsupported value: -Inf", id="minus infinity"),
        pytest.param("a: [.nan]\n", "json: unsupported value: NaN", id="not a number"),
        pytest.param("%YAML 1.2\n---\na: 1\n", "yaml: found incompatible YAML document", id="YAML 1.2"),
        pytest.param(
            "a: 1\nb:\n  c: 1\n  c: 2\na: 3\n",
            'yaml: unmarshal errors:\n  line 4: key "c" already set in map\n  line 5: key "a" already set in map',
            id="every key that is set twice, inner ones first",
        ),
    ],
)
def test_errors_are_go_s(text: str, message: str) -> None:
    with pytest.raises(ObjectError) as caught:
        read_document(text)
    assert str(caught.value) == message


def test_conversion_to_json_sorts_keys_takes_the_last_and_reports_the_repeated() -> None:
    conversion = to_json("b: <x>\na: 1\nb: 1.50\n---\n@@@\n")
    assert conversion.text == '{"a":1,"b":1.5}'
    assert conversion.duplicate_key_error == 'yaml: unmarshal errors:\n  line 3: key "b" already set in map'


def test_html_is_escaped_in_json() -> None:
    assert to_json("a: '<&>é'\n").text == '{"a":"\\u003c\\u0026\\u003eé"}'


def test_an_empty_text_is_null() -> None:
    assert to_json("").text == "null"
    assert read_document("# nothing\n") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [(" \n{", True), ("[", False), ("a: {}", False), ("\ufeff{}", False), ("", False), ("\xa0{}", True)],
)
def test_a_brace_makes_it_json(text: str, expected: bool) -> None:
    assert is_json(text) is expected


def test_flow_yaml_is_refused_as_json() -> None:
    with pytest.raises(ObjectError, match="invalid character 'a' looking for beginning of object key string"):
        read_document("{a: 1}")


def test_empty_documents_are_skipped() -> None:
    assert read_documents("a: 1\n---\n---\n# none\n---\nb: 2\n...\n") == [{"a": 1}, {"b": 2}]
    assert read_documents('{"a": 1}\n{"b": 2.0}\n') == [{"a": 1}, {"b": 2.0}]


def test_repeated_keys_of_json_are_an_error() -> None:
    with pytest.raises(ObjectError, match='duplicate field "b"'):
        read_document('{"a": {"b": 1, "b": 2}}')


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": 1,}', '{"a": 1} x'])
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises(ObjectError, match="invalid character"):
        read_documents(text)


def test_manifests_have_their_file_and_document(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text("kind: Pod\n---\nkind: Node\n", encoding="utf-8")
    found = list(read_manifests(path))
    assert [(manifest.index, manifest.value["kind"]) for manifest in found] == [(0, "Pod"), (1, "Node")]
    assert found[1].place == f"{path}, document 2"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"kind: Pod\n---\n- a\n", "document 2: expected an object", id="a list"),
        pytest.param(b"a: [\n", "did not find expected node content", id="syntax"),
        pytest.param(b"\xff\xfe\xfa", "cannot read", id="not UTF-8"),
    ],
)
def test_errors_of_manifests_name_the_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    with pytest.raises(ObjectError, match=message) as caught:
        list(read_manifests(path))
    assert "broken.yaml" in str(caught.value)


def test_a_missing_manifest_is_an_object_error(tmp_path: Path) -> None:
    with pytest.raises(ObjectError, match="cannot read"):
        list(read_manifests(tmp_path / "absent.yaml"))


# Limits of memory and stack.

BOMB = "\n".join(
    ["a: &a [x,x,x,x,x,x,x,x,x]"] + [f"{b}: &{b} [{','.join(['*' + a] * 9)}]" for a, b in pairwise("abcdefgh")]
)


def test_a_few_lines_cannot_expand_to_a_million_values() -> None:
    with pytest.raises(ObjectError, match=r"^yaml: document contains excessive aliasing$"):
        read_document(BOMB)


def test_merges_count_as_aliases_do() -> None:
    lines = ["a: &a {" + ", ".join(f"k{number}: 1" for number in range(9)) + "}"]
    lines += [f"{b}: &{b} {{p: {{<<: *{a}}}, q: [{','.join([f'{{<<: *{a}}}'] * 9)}]}}" for a, b in pairwise("abcdefgh")]
    with pytest.raises(ObjectError, match="excessive aliasing"):
        read_document("\n".join(lines))


@pytest.mark.parametrize(
    ("own", "aliases", "refused"),
    [
        # Allowed: fewer than a thousand values, or a document of which a hundredth is not aliased.
        pytest.param(0, 30, False, id="small"),
        pytest.param(0, 2000, True, id="all-of-it"),
        pytest.param(6000, 1000, False, id="some-of-it"),
    ],
)
def test_aliases_are_allowed_up_to_a_limit(own: int, aliases: int, refused: bool) -> None:
    text = f"a: &a [{','.join(['x'] * 300)}]\nown: [{','.join(['y'] * own)}]\nb: [{','.join(['*a'] * aliases)}]"
    if refused:
        with pytest.raises(ObjectError, match="excessive aliasing"):
            read_document(text)
    else:
        assert len(read_document(text)["b"]) == aliases


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 300 + "]" * 300, id="lists"),
        pytest.param("".join(f"{' ' * level}a:\n" for level in range(300)), id="mappings"),
        pytest.param("a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 300)), id="aliases"),
        pytest.param(
            "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}}}\n" for n in range(1, 300)), id="merges"
        ),
    ],
)
def test_nesting_has_a_limit(text: str) -> None:
    with pytest.raises(ObjectError, match=r"yaml: line \d+: exceeded max depth of 200$"):
        read_document(text)


def test_nesting_below_the_limit() -> None:
    value = read_document("[" * 200 + "]" * 200)
    assert str(value) == "[" * 200 + "]" * 200


@pytest.mark.parametrize("text", ["a: &a {b: *a}", "a: &a [*a]", "a: &a {<<: *a}"])
def test_an_anchor_that_contains_itself(text: str) -> None:
    with pytest.raises(ObjectError, match="anchor 'a' value contains itself"):
        read_document(text)


def test_an_alias_refers_to_the_last_anchor_before_it() -> None:
    assert read_document("a: &x 1\nb: *x\nc: &x 2\nd: *x") == {"a": 1, "b": 1, "c": 2, "d": 2}


def test_numbers_with_thousands_of_digits_are_strings() -> None:
    digits = "9" * 5000
    assert read_document(f"a: {digits}") == {"a": digits}
    assert read_document(f"a: 0{'0' * 5000}7") == {"a": 7}


def test_invalid_binary() -> None:
    with pytest.raises(ObjectError, match="!!binary value contains invalid base64 data"):
        read_document("a: !!binary é")
